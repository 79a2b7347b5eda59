//! The program `pdbp`, run as a user runs it.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; a test that waits so long has failed.
const SOON: Duration = Duration::from_secs(60);

/// Runs the program without the settings of whoever runs the tests.
fn pdbp(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PDBP_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).envs(variables.iter().copied()).output().unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Runs it with arguments that it cannot use, and returns what it says.
fn refused(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let output = pdbp(arguments, variables);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
#[cfg(unix)]
fn a_program_beside_it_is_run_by_its_name_with_all_arguments() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (program, other) = (folder.path().join("pdbp"), folder.path().join("pdbp-other"));
    std::fs::copy(env!("CARGO_BIN_EXE_pdbp"), &program).unwrap();
    std::fs::write(&other, "#!/bin/sh\necho \"$@\"; exit 7\n").unwrap();
    std::fs::set_permissions(&other, PermissionsExt::from_mode(0o755)).unwrap();
    // A file that is written by another thread's child for a moment cannot be run.
    let run = |arguments: &[&str]| loop {
        match Command::new(&program).args(arguments).output() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
            output => break output.unwrap(),
        }
    };
    let ended = run(&["other", "--help", "-x", "a b", "--", "--count"]);
    assert_eq!((ended.status.code(), &*ended.stdout), (Some(7), b"--help -x a b -- --count\n".as_slice()));
    for strange in ["none", "../pdbp-other", "/other"] {
        let ended = run(&[strange]);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.code() == Some(2) && said.contains(strange), "{ended:?}");
    }
}

#[test]
fn config_shows_values_and_where_they_came_from() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "parts = 77\nrow_blocks = 5\npipe_depth = 9\n").unwrap();
    let path = file.path().to_str().unwrap();
    let variables = [("PDBP_ROW_BLOCKS", "6"), ("PDBP_PIPE_DEPTH", "10")];
    let text = printed(&pdbp(&["config", "--file", path, "--set", "pipe_depth=11"], &variables));
    for (start, origin) in [
        ("parts = 77 ", path),
        ("row_blocks = 6 ", "environment"),
        ("pipe_depth = 11 ", "command line"),
        ("nodes = 2 ", "default"),
    ] {
        assert!(text.lines().any(|l| l.starts_with(start) && l.contains(origin)), "{start}: {text}");
    }
    let named = printed(&pdbp(&["config"], &[("PDBP_CONFIG", path)]));
    assert!(named.contains("parts = 77 "), "{named}");
}

#[test]
fn what_config_prints_is_a_configuration_file() {
    let text = printed(&pdbp(&["config", "--set", "policy=threshold", "--set", "nodes=3"], &[]));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &text).unwrap();
    let again = printed(&pdbp(&["config", "--file", file.path().to_str().unwrap()], &[]));
    let values = |text: &str| text.lines().map(|l| l.split('#').next().unwrap().trim().to_owned()).collect();
    let (first, second): (Vec<String>, Vec<String>) = (values(&text), values(&again));
    assert_eq!(first, second);
    assert!(first.contains(&"policy = \"threshold\"".to_owned()), "{text}");
}

#[test]
fn the_table_of_settings_in_the_readme_is_the_programs() {
    let table = printed(&pdbp(&["config", "--markdown"], &[]));
    let readme = include_str!("../../pdbp/README.md");
    assert!(
        readme.contains(&table),
        "pdbp/README.md has another table of settings; put this there (cargo run -p pdbp-cli -- config --markdown):\n{table}"
    );
}

#[test]
fn unknown_keys_and_bad_values_are_named_with_their_origin() {
    let known = refused(&["config", "--set", "blok_bytes=1"], &[]);
    assert!(known.contains("blok_bytes") && known.contains("command line") && known.contains("block_bytes"));
    let value = refused(&["ping", "--set", "checksum=maybe"], &[]);
    assert!(value.contains("maybe") && value.contains("\"on\" or \"off\""), "{value}");
    let variable = refused(&["config"], &[("PDBP_NODES", "none")]);
    assert!(variable.contains("nodes") && variable.contains("environment"), "{variable}");
    let file = refused(&["config", "--file", "/nonexistent/pdbp.toml"], &[]);
    assert!(file.contains("/nonexistent/pdbp.toml"), "{file}");
}

#[cfg(unix)]
#[test]
fn a_foreign_variable_that_is_no_utf8_does_no_harm() {
    use std::os::unix::ffi::OsStrExt as _;
    let odd = std::ffi::OsStr::from_bytes(b"\xff");
    let run = |name| {
        Command::new(env!("CARGO_BIN_EXE_pdbp")).arg("config").env_clear().env(name, odd).output().unwrap()
    };
    assert!(printed(&run("OTHER")).contains("nodes = 2"));
    assert_eq!(run("PDBP_NODES").status.code(), Some(2));
}

#[test]
fn a_command_line_that_makes_no_sense_is_refused() {
    for (arguments, word) in [
        (&[] as &[&str], "command"),
        (&["pong"], "pong"),
        (&["config", "--count", "1"], "--count"),
        (&["config", "extra"], "extra"),
        (&["config", "--set", "nodes"], "KEY=VALUE"),
        (&["ping", "--count"], "--count"),
        (&["ping", "--count", "0"], "--count 0"),
        (&["ping", "--bytes", "many"], "--bytes many: expected a whole number"),
        (&["ping", "--bytes", "99999999999"], "assembly_bytes"),
        (&["ping", "--nodes", "1"], "--nodes 2"),
        (&["ping", "--nodes", "0"], "nodes"),
        (&["ping", "--transport", "pigeon"], "pigeon"),
        (&["config", "--transport", "mpi"], "--transport"),
    ] {
        let said = refused(arguments, &[]);
        assert!(said.contains(word) && said.contains("--help"), "{arguments:?}: {said}");
    }
}

#[test]
fn help_and_version_are_printed() {
    assert!(printed(&pdbp(&["--help"], &[])).contains("Usage: pdbp config"));
    assert!(printed(&pdbp(&["ping", "-h"], &[])).contains("--bytes N"));
    assert_eq!(printed(&pdbp(&["--version"], &[])), concat!("pdbp ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn ping_reaches_every_node() {
    for (arguments, node, bytes) in [
        (&["ping", "--count", "20"] as &[&str], "node1 ", "64 bytes"),
        (&["ping", "--count", "5", "--nodes", "4", "--bytes", "0"], "node3 ", "0 bytes"),
        (&["ping", "--count", "5", "--transport", "local"], "node1 ", "nodes in this process"),
        (
            &["ping", "--count", "3", "--bytes", "200000", "--set", "progress=inline"],
            "node1 ",
            "200000 bytes",
        ),
    ] {
        let text = printed(&pdbp(arguments, &[]));
        assert!(text.contains(node) && text.contains(bytes) && text.contains("million/s"), "{text}");
    }
}

#[cfg(not(feature = "mpi"))]
#[test]
fn without_mpi_a_launcher_is_told_once_what_to_do() {
    let rank = |rank| pdbp(&["ping"], &[("PMI_RANK", rank), ("PMI_SIZE", "3")]);
    let (first, second) = (rank("0"), rank("1"));
    let text = String::from_utf8_lossy(&first.stderr);
    assert!(text.contains("one of 3 ranks") && text.contains("the feature `mpi`"), "{text}");
    assert_eq!((first.status.code(), second.status.code()), (Some(1), Some(1)));
    assert!(second.stdout.is_empty() && second.stderr.is_empty(), "{second:?}");
    let alone = pdbp(&["ping", "--transport", "mpi"], &[]);
    assert!(String::from_utf8_lossy(&alone.stderr).contains("transport = \"mpi\" is set"), "{alone:?}");
}

#[test]
fn what_cannot_start_fails_with_a_reason() {
    let output = pdbp(&["ping", "--set", "memory_bytes=70000"], &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("blocks"), "{output:?}");
}

#[cfg(unix)]
#[test]
fn a_trace_is_complete_json_when_the_program_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp"));
    // The file is soon full. From then on only the number of events that it did not take is written, so that the program is not
    // killed in the middle of a long write.
    command.args(["ping", "--count", "10000000", "--transport", "local", "--set", "trace_events=2000"]);
    command.arg("--set").arg(format!("trace={}", path.display()));
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let has = |name: &str| {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let events = serde_json::from_str::<Vec<serde_json::Value>>(&text).unwrap_or_default();
        events.iter().any(|event| event["pid"] == 0 && event["name"] == name)
    };
    let began = Instant::now();
    while !has("events dropped") {
        assert!(began.elapsed() < SOON, "no trace");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(has("messages to node1"));
}

#[test]
fn ping_runs_on_a_fabric_and_says_what_is_wrong_with_one() {
    let variables = [("PDBP_TRANSPORT", "rapidio"), ("PDBP_FABRIC", "bare=3,endpoint=0,endpoint=2,chain")];
    let text = printed(&pdbp(&["ping", "--count", "20"], &variables));
    assert!(text.starts_with("2 nodes on a simulated fabric"), "{text}");
    let wrong = pdbp(&["ping", "--count", "20"], &[("PDBP_FABRIC", "boards=4,rink")]);
    let says = String::from_utf8(wrong.stderr).unwrap();
    assert!(!wrong.status.success() && says.contains("\"rink\" is not a step of a topology"), "{says}");
}
