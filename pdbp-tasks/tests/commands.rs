//! The program `pdbp-tasks`.

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp-tasks"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PDBP_")) {
        command.env_remove(name);
    }
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_command_runs_for_each_line_and_outputs_are_in_order_and_not_mixed() {
    let script = "echo begin $0; echo end $0";
    let input = "b\n\na\nc\n";
    let ended = run(&["run", "--each-line", "-", "--keep-order", "--", "sh", "-c", script], input);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(text(&ended.stdout), "begin b\nend b\nbegin a\nend a\nbegin c\nend c\n");
    let ended = run(&["run", "--array", "3-40", "--slots", "2", "--", "echo", "x{}y{}"], "");
    let mut lines: Vec<_> = text(&ended.stdout).lines().collect();
    lines.sort_unstable();
    let mut expected: Vec<_> = (3..=40).map(|i| format!("x{i}y{i}")).collect();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn commands_that_fail_are_named_and_counted_and_the_others_run() {
    let script = "echo out $0; echo err $0 >&2; exit $0";
    let ended = run(&["run", "--array", "0-2", "--keep-order", "--", "sh", "-c", script], "");
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(text(&ended.stdout), "out 0\nout 1\nout 2\n");
    let errors = text(&ended.stderr);
    assert!(
        errors.contains("err 2")
            && errors.contains("ended with exit status: 1")
            && errors.contains("2 failed")
    );
    let ended = run(&["run", "--array", "0-0", "--", "/no/such/program"], "");
    assert!(text(&ended.stderr).contains("cannot run `/no/such/program`") && ended.status.code() == Some(1));
}

#[test]
fn a_command_is_tried_again() {
    let folder = std::env::temp_dir().join(format!("pdbp-tasks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("tries");
    let script = format!("echo x >> {0}; test $(wc -l < {0}) -ge 3", file.display());
    let ended = run(&["run", "--array", "1-1", "--retries", "4", "--", "sh", "-c", &script], "");
    let tries = std::fs::read_to_string(&file).unwrap().lines().count();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(ended.status.success() && tries == 3, "{tries} tries: {ended:?}");
}

#[test]
fn commands_that_need_a_gpu_have_one_each_and_wait_for_it() {
    // Two at a time of eight, and never two with the same GPU: the lock of each would be there.
    let folder = std::env::temp_dir().join(format!("pdbp-tasks-gpus-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let script = format!(
        "set -e; cd {}; mkdir $CUDA_VISIBLE_DEVICES; sleep 0.02; rmdir $CUDA_VISIBLE_DEVICES; echo $CUDA_VISIBLE_DEVICES",
        folder.display()
    );
    let options = ["run", "--array", "1-20", "--slots", "8", "--offer", "gpus=2", "--needs", "gpus=1"];
    let ended = run(&[&options[..], &["--", "sh", "-c", &script]].concat(), "");
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let mut seen: Vec<_> = text(&ended.stdout).lines().collect();
    assert_eq!(seen.len(), 20);
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.iter().all(|gpu| ["0", "1"].contains(gpu)), "{seen:?}");
}

#[test]
fn a_command_line_that_cannot_be_used_says_why() {
    for (arguments, why) in [
        (&["run", "--array", "9-3", "--", "x"] as &[&str], "above the last"),
        (&["run", "--array", "x", "--", "x"], "FIRST-LAST"),
        (&["run", "--", "x"], "--each-line"),
        (&["run", "--array", "1-2"], "behind --"),
        (&["walk"], "there is run"),
        (&["run", "--array", "1-2", "--needs", "gpus=x", "--", "x"], "\"gpus=x\""),
    ] {
        let ended = run(arguments, "");
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}");
        assert!(text(&ended.stderr).contains(why), "{}", text(&ended.stderr));
    }
    let ended = run(&["run", "--each-line", "/no/such/file", "--", "x"], "");
    assert!(ended.status.code() == Some(1) && text(&ended.stderr).contains("cannot read /no/such/file"));
}

/// Whether there is such a process, and it is not only waiting to be forgotten.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// Waits for it, on a busy machine too, but not for ever.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed().as_secs() < 300, "{what}: not yet");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_command_that_leaves_something_behind_which_has_its_output_open_is_over_when_it_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let leaves = "(until [ -e go ]; do sleep 0.1; done) & echo started {}";
    let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp-tasks"));
    command.current_dir(&folder).args(["run", "--array", "1-2", "--keep-order", "--", "sh", "-c", leaves]);
    let output = command.output().unwrap();
    std::fs::write(folder.path().join("go"), "").unwrap();
    assert_eq!(
        (text(&output.stdout), output.status.code()),
        ("started 1\nstarted 2\n", Some(0)),
        "{output:?}"
    );
}

#[test]
fn a_command_above_its_limit_is_stopped_with_what_does_not_heed_that_it_should_end() {
    let folder = tempfile::tempdir().unwrap();
    for open in ["", ">/dev/null 2>&1"] {
        let deaf = format!(
            "sh -c 'trap \"\" TERM; echo $$ > pid; until [ -e go ]; do sleep 0.1; done' {open} & wait"
        );
        let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp-tasks"));
        command
            .current_dir(&folder)
            .args(["run", "--limit", "2s", "--array", "1-1", "--", "sh", "-c", &deaf]);
        let output = command.output().unwrap();
        assert!(text(&output.stderr).contains("did not end within its limit of 2s"), "{output:?}");
        assert_eq!(output.status.code(), Some(1));
        let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
        until("it is killed", || !is_alive(&pid));
    }
}

#[test]
fn a_run_that_is_told_to_end_takes_its_commands_along() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp-tasks"));
    let runs = "echo $$ > pid.{}; mv pid.{} began.{}; until [ -e go ]; do sleep 0.1; done";
    command.current_dir(&folder).args(["run", "--slots", "2", "--array", "1-9", "--", "sh", "-c", runs]);
    let mut run = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let began = [1, 2].map(|number| folder.path().join(format!("began.{number}")));
    until("two run", || began.iter().all(|file| file.exists()));
    let pid = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let code = run.wait().unwrap().code();
    for file in began {
        let pid = std::fs::read_to_string(file).unwrap();
        until("its commands have ended", || !is_alive(&pid));
    }
    let mut said = String::new();
    std::io::Read::read_to_string(&mut run.stderr.take().unwrap(), &mut said).unwrap();
    assert!(code == Some(1) && said.contains("stopped by a signal"), "{code:?} {said}");
    assert!(!folder.path().join("began.9").exists());
}

#[test]
fn what_a_command_prints_without_end_stops_it_and_no_other() {
    let prints = "if [ {} = 1 ]; then yes; else echo {}; fi";
    let output = Command::new(env!("CARGO_BIN_EXE_pdbp-tasks"))
        .args(["run", "--slots", "2", "--array", "1-3", "--", "sh", "-c", prints])
        .output()
        .unwrap();
    assert!(text(&output.stderr).contains("more than 256 MiB"), "{}", text(&output.stderr));
    let others = |line: &str| output.stdout.split(|byte| *byte == b'\n').any(|one| one == line.as_bytes());
    assert!(others("2") && others("3"));
    assert_eq!(output.status.code(), Some(1));
}
