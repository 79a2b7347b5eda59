//! The program `pdbp-video`, run as a user runs it.

use std::process::{Command, Output};

/// Runs the program without the settings of whoever runs the tests.
fn video(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp-video"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PDBP_")) {
        command.env_remove(name);
    }
    command.args(arguments).envs(variables.iter().copied()).output().unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_replay_says_so_and_lists_the_pairs_of_nodes() {
    let arguments = ["--streams", "20", "--replay", "--passes", "3", "--transport", "local", "--nodes", "4"];
    let text = printed(&video(&arguments, &[]));
    for word in ["replayed", "node0 → node2", "node1 → node3", "mean of a pair", "Mb/s"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn without_transport_no_pair_is_listed() {
    let text = printed(&video(&["--streams", "5", "--nodes", "0", "--replay"], &[]));
    assert!(text.contains("frames replayed") && !text.contains("Mb/s"), "{text}");
}

#[test]
fn a_transport_that_does_not_exist_is_refused() {
    let output = video(&["--transport", "pigeon"], &[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("auto, local, mpi"), "{output:?}");
    let output = video(&[], &[("PDBP_TRANSPORT", "pigeon")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("environment"), "{output:?}");
}

#[cfg(not(feature = "mpi"))]
#[test]
fn without_mpi_a_launcher_is_told_once_what_to_do() {
    let rank = |rank| video(&[], &[("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", "2")]);
    let (first, second) = (rank("0"), rank("1"));
    let text = String::from_utf8_lossy(&first.stderr);
    assert!(text.contains("one of 2 ranks") && text.contains("--features mpi"), "{text}");
    assert_eq!((first.status.code(), second.status.code()), (Some(1), Some(1)));
    assert!(first.stdout.is_empty() && second.stdout.is_empty() && second.stderr.is_empty(), "{second:?}");
}
