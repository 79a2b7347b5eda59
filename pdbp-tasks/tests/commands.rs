//! The program `pdbp-tasks`.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::place::text;
use common::{Held, finish, send};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp-tasks"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PDBP_")) {
        command.env_remove(name);
    }
    command
}

fn spawn(arguments: &[&str]) -> Child {
    program(arguments).spawn().unwrap()
}

fn run(arguments: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut child = spawn(arguments);
    child.stdin.take().unwrap().write_all(input.as_ref()).unwrap();
    child.wait_with_output().unwrap()
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
    // Eight slots share two GPUs: never two commands run with the same GPU, or `mkdir` would fail.
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
fn lines_are_whatever_bytes_they_are_as_names_of_files_may_be() {
    let input = b"one\nt\xffwo\r\nthree";
    let ended = run(&["run", "--each-line", "-", "--keep-order", "--", "printf", "%s,", "<{}>"], input);
    assert!(ended.status.success() && ended.stdout == b"<one>,<t\xffwo>,<three>,", "{ended:?}");
    // An unreadable line is named, and commands that failed before it are counted.
    let ended = run(&["run", "--each-line", "/", "--", "false"], "");
    assert!(ended.status.code() == Some(1) && text(&ended.stderr).contains("cannot read / behind line 0"));
}

#[test]
fn a_command_that_leaves_something_behind_which_holds_its_output_ends() {
    // The limit is that of the command itself, and earlier than the time for which its output may stay open.
    let attempt = || {
        let held = Held::new();
        let script = format!("{} & echo printed", held.command());
        (finish(spawn(&["run", "--array", "1-1", "--limit", "4s", "--", "sh", "-c", &script])), held)
    };
    let (mut ended, mut held) = attempt();
    // A shell that gets no processor for 4 s is stopped at its limit.
    for _ in 0..10 {
        if text(&ended.stderr).contains("within its limit of 4s") {
            (ended, held) = attempt();
        }
    }
    held.await_begun(1);
    assert!(held.is_held(), "what it has left behind is left alone");
    assert!(ended.status.success() && text(&ended.stdout) == "printed\n", "{ended:?}");
    assert!(text(&ended.stderr).contains("still holds its output"), "{ended:?}");
}

#[test]
fn what_ignores_sigterm_is_killed_though_the_command_itself_has_ended() {
    let mut held = Held::new();
    let script = format!("(trap '' TERM; exec {}) & wait", held.command());
    let ended = finish(spawn(&["run", "--array", "1-1", "--limit", "2s", "--", "sh", "-c", &script]));
    assert!(text(&ended.stderr).contains("within its limit of 2s"), "{ended:?}");
    held.await_free();
}

#[test]
fn what_has_left_the_group_of_a_command_does_not_hold_up_its_end() {
    let held = Held::new();
    let script = format!("setsid {} & wait", held.command());
    let ended = finish(spawn(&["run", "--array", "1-1", "--limit", "2s", "--", "sh", "-c", &script]));
    assert!(text(&ended.stderr).contains("within its limit of 2s"), "{ended:?}");
}

/// Whether this process ignores a signal, as one that was started by `nohup` does; then those that it starts do so, too.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() >> (signal - 1) & 1 == 1
}

#[test]
fn a_signal_stops_commands_before_the_process_that_runs_them_dies_of_it() {
    let mut signals = vec![("HUP", 1), ("INT", 2), ("TERM", 15)];
    signals.retain(|(_, number)| !is_ignored(*number));
    while let Some((signal, number)) = signals.pop() {
        let mut held = Held::new();
        let cleaned = held.file("cleaned");
        // It takes its time to end, and is given it.
        let script =
            format!("trap 'sleep 0.1; touch {}; exit' TERM; {} & wait", cleaned.display(), held.command());
        let process = spawn(&["run", "--array", "1-3", "--slots", "1", "--", "sh", "-c", &script]);
        held.await_begun(1);
        let began = Instant::now();
        send(signal, &process);
        let ended = finish(process);
        assert_eq!(ended.status.signal(), Some(number), "{signal}: {ended:?}");
        held.await_free();
        if !cleaned.exists() {
            // A command that had no processor for as long as it is given time was killed.
            assert!(began.elapsed() >= Duration::from_secs(5), "{signal}: it has ended before its command");
            signals.push((signal, number));
        }
    }
}

#[test]
fn commands_end_with_a_run_that_is_killed() {
    let mut held = Held::new();
    let script = format!("(trap '' TERM; exec {}) & {} & wait", held.command(), held.command());
    let mut process = spawn(&["run", "--array", "1-1", "--", "sh", "-c", &script]);
    held.await_begun(2);
    process.kill().unwrap();
    process.wait().unwrap();
    held.await_free();
}

#[test]
fn commands_end_with_a_run_that_is_killed_though_their_guard_was_before() {
    let mut held = Held::new();
    let is_guard = "grep -qs \"^PPid:.$PPID$\" $d/status && grep -qsz '^guard$' $d/cmdline";
    let killed = held.file("killed");
    let kill = format!(
        "for d in /proc/[0-9]*; do {is_guard} && kill -KILL ${{d#/proc/}} && echo killed >>{}; done; true",
        killed.display()
    );
    let script = format!("if test {{}} = 1; then {kill}; else {} & wait; fi", held.command());
    let mut process = spawn(&["run", "--array", "1-2", "--slots", "1", "--", "sh", "-c", &script]);
    held.await_begun(1);
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(std::fs::read_to_string(&killed).unwrap(), "killed\n");
    held.await_free();
}

#[test]
fn a_run_that_was_started_to_ignore_a_signal_ignores_it() {
    let mut held = Held::new();
    let program = env!("CARGO_BIN_EXE_pdbp-tasks");
    let go = held.file("go");
    let script = format!("echo >&9; until test -e {}; do sleep 0.01; done; echo went on", go.display());
    let ignoring = format!("trap '' HUP INT; exec 9>{}; exec {program} \"$@\"", held.file("pipe").display());
    let mut command = Command::new("sh");
    command.args(["-c", &ignoring, "sh", "run", "--array", "1-1", "--", "sh", "-c", &script]);
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    held.await_begun(1);
    send("HUP", &process);
    send("INT", &process);
    std::fs::write(go, "").unwrap();
    let ended = finish(process);
    assert!(ended.status.success() && text(&ended.stdout) == "went on\n", "{ended:?}");
}

#[test]
fn a_command_line_that_cannot_be_used_says_why() {
    for (arguments, why) in [
        (&["run", "--array", "9-3", "--", "x"] as &[&str], "above the last"),
        (&["run", "--array", "x", "--", "x"], "FIRST-LAST"),
        (&["run", "--", "x"], "--each-line"),
        (&["run", "--array", "1-2"], "after --"),
        (&["walk"], "lists the commands"),
        (&["run", "--array", "1-2", "--needs", "gpus=x", "--", "x"], "\"gpus=x\""),
    ] {
        let ended = run(arguments, "");
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}");
        assert!(text(&ended.stderr).contains(why), "{}", text(&ended.stderr));
    }
    let ended = run(&["run", "--each-line", "/no/such/file", "--", "x"], "");
    assert!(ended.status.code() == Some(1) && text(&ended.stderr).contains("cannot read /no/such/file"));
}

/// As with `--help | true`, or `2>&1 | head -1`.
#[test]
fn who_does_not_read_what_is_said_breaks_nothing() {
    let unread = || Stdio::from(std::io::pipe().unwrap().1);
    for command in ["run", "serve", "work", "submit", "status"] {
        let ended = program(&[command, "--help"]).stdout(unread()).output().unwrap();
        assert!(ended.status.success() && ended.stderr.is_empty(), "{command}: {ended:?}");
    }
    let ended = program(&["run", "--array", "1-3", "--", "false"]).stderr(unread()).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(program(&["walk"]).stderr(unread()).status().unwrap().code(), Some(2));
}

#[test]
fn what_a_command_prints_without_end_stops_it_and_no_other() {
    let prints = "if [ {} = 1 ]; then yes; else echo {}; fi";
    let ended = run(&["run", "--slots", "2", "--array", "1-3", "--", "sh", "-c", prints], "");
    assert!(text(&ended.stderr).contains("more than 256 MiB"), "{}", text(&ended.stderr));
    let has = |line: &str| ended.stdout.split(|byte| *byte == b'\n').any(|one| one == line.as_bytes());
    assert!(has("2") && has("3"));
    assert_eq!(ended.status.code(), Some(1));
}

#[test]
fn outputs_come_while_more_lines_may_be_typed() {
    let mut child = spawn(&["run", "--each-line", "-", "--", "echo", "got"]);
    let (mut input, mut output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    for line in ["one", "two"] {
        writeln!(input, "{line}").unwrap();
        let mut said = String::new();
        output.read_line(&mut said).unwrap();
        assert_eq!(said, format!("got {line}\n"), "before the input has ended");
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}
