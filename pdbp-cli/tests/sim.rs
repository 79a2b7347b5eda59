//! `pdbp sim`, run as a user runs it.

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pdbp")).arg("sim").args(arguments).env_clear().output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = sim(arguments);
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A figure by the name of its column.
type Row = Box<dyn Fn(&str) -> f64>;

/// The rows of the file that `--csv` writes.
fn figures(arguments: &[&str]) -> Vec<Row> {
    let file = tempfile::NamedTempFile::new().unwrap();
    printed(&[arguments, &["--csv", file.path().to_str().unwrap()]].concat());
    let text = std::fs::read_to_string(file.path()).unwrap();
    let names: Vec<String> = text.lines().next().unwrap().split(',').map(str::to_owned).collect();
    let row = |line: &str| -> Row {
        let (names, values) = (names.clone(), line.split(',').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(names.len(), values.len(), "{text}");
        Box::new(move |name| values[names.iter().position(|n| n == name).unwrap()].parse().unwrap())
    };
    text.lines().skip(1).map(row).collect()
}

#[test]
fn each_number_of_nodes_is_a_row_and_the_seed_repeats_it() {
    let arguments =
        ["--nodes", "2,5,9", "--seed", "7", "--time", "10ms", "--jitter", "5us", "--loss", "0.01"];
    let text = printed(&arguments);
    for nodes in ["2", "5", "9"] {
        let rows = text.lines().filter(|line| line.split_whitespace().next() == Some(nodes));
        assert_eq!(rows.count(), 2, "{text}");
    }
    assert_eq!(text, printed(&arguments));
    let rows = figures(&arguments);
    let column = |name| rows.iter().map(|row| row(name)).collect::<Vec<_>>();
    assert_eq!(column("nodes"), [2.0, 5.0, 9.0]);
    assert_eq!(column("sent"), column("delivered"));
    assert!(
        column("sent").iter().zip([200.0, 500.0, 900.0]).all(|(sent, due)| (sent / due - 1.0).abs() < 0.2)
    );
    assert!(column("table_bytes").is_sorted() && column("p50_us").iter().all(|us| *us >= 20.0));
    assert!(column("frames_lost").iter().sum::<f64>() > 0.0);
}

#[test]
fn faults_are_seen_and_mended() {
    let rows = figures(&[
        "--nodes",
        "4",
        "--time",
        "100ms",
        "--give-up",
        "4ms",
        "--rate",
        "5k",
        "--fault",
        "partition 0,1@10ms",
        "heal@40ms",
        "crash 2@60ms",
        "restart 2@80ms",
        "--lease",
        "10ms",
    ]);
    let row = &rows[0];
    assert!(row("links_failed") >= 4.0 && row("links_restored") >= 4.0 && row("refused") > 0.0);
}

#[test]
fn a_crashed_master_is_followed_by_one_of_a_later_epoch() {
    let epoch = |fault: &[&str]| {
        let always = ["--nodes", "3", "--time", "100ms", "--give-up", "4ms", "--lease", "10ms"];
        figures(&[&always, fault].concat())[0]("epoch")
    };
    assert!(epoch(&["--fault", "crash 0@20ms"]) > epoch(&[]));
}

#[test]
fn policies_arrivals_and_traffic_are_chosen() {
    let always =
        ["--nodes", "4", "--time", "5ms", "--rate", "100k", "--reorder", "--link", "100mbit", "--seed", "3"];
    let most = |more: &[&str]| {
        let row = &figures(&[&always, more].concat())[0];
        assert_eq!(row("sent"), row("delivered"), "{more:?}");
        row("most_blocks")
    };
    let fixed = most(&["--policy", "fixed"]);
    assert!(fixed < most(&["--policy", "threshold"]));
    assert!(fixed < most(&["--policy", "adaptive"]));
    assert!(fixed < most(&["--policy", "fixed", "--initial", "4"]));
    assert!(fixed > most(&["--policy", "fixed", "--arrival", "in-place"]));
    for traffic in ["hot-spot=0.9", "moving=0.9/1ms", "zipf=1.2", "bursty=1ms/1ms"] {
        most(&["--traffic", traffic]);
    }
}

/// What the default is there for: under a hot spot it is as fast as a static allocation of more memory, and no other is.
#[test]
fn policies_are_compared_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/report");
    let arguments = ["--compare", "hot-spot", "--time", "6ms", "--report", path.to_str().unwrap()];
    let text = printed(&arguments);
    assert!(
        text.contains("hot-spot, posted") && text.ends_with("adaptive is beaten in\n  nowhere\n"),
        "{text}"
    );
    let figures = std::fs::read_to_string(path.join("figures.csv")).unwrap();
    let efficiency = |policy: &str| -> f64 {
        let line = figures.lines().find(|line| line.starts_with(&format!("hot-spot,in-place,{policy},")));
        line.and_then(|line| line.split(',').nth(5)).unwrap().parse().unwrap()
    };
    assert!(efficiency("adaptive") > 0.95 && efficiency("threshold") < 0.8, "{figures}");
    for (file, part) in
        [("latency-posted.svg", "µs"), ("held-in-place.svg", "fixed-8x"), ("index.html", "<img")]
    {
        let text = std::fs::read_to_string(path.join(file)).unwrap();
        assert!(text.contains(part), "{file}: {text}");
    }
}

#[test]
fn a_report_has_plots_over_the_number_of_nodes() {
    let folder = tempfile::tempdir().unwrap();
    printed(&["--nodes", "2,8", "--time", "2ms", "--report", folder.path().to_str().unwrap()]);
    for file in ["memory.svg", "held.svg", "fill.svg", "latency.svg", "efficiency.svg"] {
        let text = std::fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(text.starts_with("<svg") && text.contains(">nodes<") && !text.contains("NaN"), "{text}");
    }
}

#[test]
fn both_routings_share_a_table_a_file_and_plots() {
    let folder = tempfile::tempdir().unwrap();
    let runs = ["--nodes", "36,9", "--time", "2ms", "--routing", "direct=9,grid"];
    let text = printed(&[&runs[..], &["--report", folder.path().to_str().unwrap()]].concat());
    assert!(text.contains("routing direct") && text.contains("routing grid"), "{text}");
    let nodes: Vec<_> = figures(&runs).iter().map(|row| (row("nodes"), row("relayed") > 0.0)).collect();
    assert_eq!(nodes, [(9.0, false), (9.0, true), (36.0, true)]);
    let plot = std::fs::read_to_string(folder.path().join("memory.svg")).unwrap();
    assert!(plot.contains("direct, tables") && plot.contains("grid, tables"), "{plot}");
    assert_eq!(plot.matches("<circle").count(), 2 + 4, "of blocks and tables: {plot}");
}

#[test]
fn a_grid_needs_less_memory_and_its_messages_more_time() {
    let run = |routing| {
        let arguments = ["--nodes", "36", "--time", "5ms", "--traffic", "sparse=2", "--routing", routing];
        figures(&arguments).remove(0)
    };
    let (direct, grid) = (run("direct"), run("grid"));
    assert_eq!((direct("sent"), direct("relayed")), (grid("delivered"), 0.0));
    assert!(grid("relayed") > grid("delivered") / 2.0);
    for bytes in ["block_bytes", "table_bytes"] {
        assert!(grid(bytes) < direct(bytes) * 0.6, "{bytes}: {} and {}", grid(bytes), direct(bytes));
    }
    assert!(grid("p50_us") > direct("p50_us"));
}

#[test]
fn traffic_comes_from_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "1000 0 1 64\n2000 1 0 100\n").unwrap();
    let row = &figures(&["--nodes", "2", "--traffic", file.path().to_str().unwrap()])[0];
    assert_eq!((row("sent"), row("delivered")), (2.0, 2.0));
}

#[test]
fn what_cannot_be_is_refused_with_the_value_and_a_remedy() {
    for (arguments, value, remedy) in [
        (&["--time", "5"] as &[&str], "--time 5", "50ms"),
        (&["--link", "fast"], "--link fast", "1gbit"),
        (&["--nodes", "4,0"], "--nodes 0", "from 1 to"),
        (&["--policy", "best"], "--policy best", "adaptive, threshold or fixed"),
        (&["--routing", "ring"], "--routing ring", "direct or grid"),
        (&["--routing", "direct=3,grid"], "direct=3", "leave it out"),
        (&["--routing", "grid=many"], "grid: many", "from 1 to"),
        (&["--nodes", "5000"], "5000 nodes", "--routing grid"),
        (&["--traffic", "sparse=0"], "sparse", "from 1 to"),
        (&["--arrival", "late"], "--arrival late", "posted or in-place"),
        (&["--traffic", "nowhere.trace"], "nowhere.trace", "zipf"),
        (&["--traffic", "zipf=much"], "zipf=much", "from 0 to 8"),
        (&["--fault", "crash 9@1ms"], "node 9", "below"),
        (&["--fault", "explode 1@1ms"], "explode 1@1ms", "restart 2@90ms"),
        (&["--size", "8"], "8 bytes", "24"),
        (&["--initial", "30"], "30 at the start", "no more at the start"),
        (&["--traffic", "moving=0.5"], "moving=0.5", "moving=0.8/5ms"),
        (&["--compare", "hot-spot,cold"], "--compare cold", "hot-spot,moving"),
        (&["--compare", "all", "--nodes", "9"], "--nodes", "--seed"),
        (&["--warp", "9"], "--warp", "--help"),
    ] {
        let output = sim(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(value) && text.contains(remedy) && output.stdout.is_empty(), "{text}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let output = sim(&["--time", "1ms", "--csv", "/nonexistent/figures.csv"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("/nonexistent/figures.csv"), "{text}");
}

#[test]
fn a_fabric_has_a_node_on_each_endpoint_and_says_what_a_block_reaches() {
    let arguments = ["--fabric", "boards=4,ring", "--time", "1ms", "--loss", "0.01"];
    let text = printed(&arguments);
    assert_eq!(text, printed(&arguments));
    assert_eq!(text.lines().filter(|line| line.split_whitespace().next() == Some("16")).count(), 2, "{text}");
    let says = text.lines().find(|line| line.starts_with("fabric boards=4,ring: 16 endpoints")).unwrap();
    let share = says.split(", ").last().unwrap().split_whitespace().next().unwrap();
    assert!(share.parse::<f64>().unwrap() >= 0.95, "{says}");
    let row = &figures(&["--fabric", "boards=2,chain", "--nodes", "5", "--time", "1ms"])[0];
    assert!(row("nodes") == 5.0 && row("sent") == row("delivered") && row("sent") > 30.0);
}

#[test]
fn a_fabric_that_cannot_be_is_refused_by_the_word() {
    for (arguments, part) in [
        (&["--fabric", "boards=4,rink"][..], "\"rink\" is not a step of a topology"),
        (&["--fabric", "boards=4"], "switch 1 is not connected"),
        (&["--fabric", "boards=2,chain", "--nodes", "9"], "9 nodes on a fabric of 8 endpoints"),
        (&["--fabric", "boards=2,chain", "--latency", "1us"], "--latency with --fabric boards=2,chain"),
    ] {
        let output = sim(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(part), "{arguments:?}: {error}");
    }
}
