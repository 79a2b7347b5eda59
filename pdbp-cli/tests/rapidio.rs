//! `pdbp rapidio`, run as a user runs it.

use std::path::Path;
use std::process::{Command, Output};

fn rapidio(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pdbp")).arg("rapidio").args(arguments).env_clear().output().unwrap()
}

#[test]
fn all_that_the_paper_states_holds_and_the_page_has_its_plots() {
    let folder = tempfile::tempdir().unwrap();
    let output = rapidio(&["paper", "--report", folder.path().to_str().unwrap()]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("DOES NOT HOLD"), "{text}");
    let last = text.lines().last().unwrap();
    let mut numbers = last.split(' ').filter_map(|word| word.parse::<u32>().ok());
    let (held, all) = (numbers.next().unwrap(), numbers.next().unwrap());
    assert!(held == all && all >= 10, "{last}");
    // The two times that the paper's text repeats, and what is said of how they come about.
    let text_in_a_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text_in_a_line.contains("That is a calibration"), "{text}");
    for part in ["201", "314", "Not to be matched"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(check_page(folder.path()) > 5);
    let again = rapidio(&["paper"]);
    assert_eq!(String::from_utf8(again.stdout).unwrap(), text, "the same each time, byte for byte");
}

/// The plots of a page, which it has all.
fn check_page(folder: &Path) -> usize {
    let page = std::fs::read_to_string(folder.join("index.html")).unwrap();
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let plots: Vec<_> = files.filter(|path| path.extension().unwrap() == "svg").collect();
    for plot in &plots {
        let name = plot.file_name().unwrap().to_str().unwrap();
        assert!(page.contains(&format!("src=\"{name}\"")), "{name} is not on the page");
        let svg = std::fs::read_to_string(plot).unwrap();
        assert!(svg.starts_with("<svg") && !svg.contains("NaN"), "{name}: {svg}");
    }
    plots.len()
}

/// In virtual time, so that it is the same on each machine.
#[test]
fn switches_are_faster_than_software_and_the_table_says_by_what() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().to_str().unwrap();
    let output = rapidio(&["scale", "--processes", "64,4,16", "--sizes", "1024,4", "--report", report]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("MISSED") && text.contains("4-nomial"), "{text}");
    assert!(text.contains("reached: (N − 1)·4/3 crossings in switches, exactly"), "{text}");
    let rows = text.lines().filter(|line| line.starts_with("  64  ") || line.starts_with("  4  "));
    assert!(rows.count() >= 8, "{text}");
    assert_eq!(check_page(folder.path()), 4);
}

#[test]
fn flows_of_high_priority_pass_and_groups_without_masks_get_the_right_results() {
    let folder = tempfile::tempdir().unwrap();
    let output = rapidio(&["congest", "--report", folder.path().to_str().unwrap()]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.lines().last().unwrap();
    assert!(!text.contains("MISSED") && last.starts_with("5 of 5 aims"), "{text}");
    assert_eq!(check_page(folder.path()), 5);
}

#[test]
fn other_experiments_are_refused() {
    for (arguments, part) in [
        (&["papers"][..], "papers"),
        (&[], "rapidio paper"),
        (&["paper", "--reports", "x"], "--reports"),
        (&["scale", "--processes", "16,17"], "powers of 4"),
        (&["scale", "--sizes", "6"], "multiples of 4"),
        (&["scale", "--sizes", ""], "multiples of 4"),
        (&["speed", "--sizes", "4"], "rapidio scale"),
    ] {
        let output = rapidio(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains(part));
    }
}
