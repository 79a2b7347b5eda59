//! A program that has lost all other nodes of its cluster.

use std::sync::mpsc;
use std::time::Duration;

use pdbp::Builder;
use pdbp_tasks::{Limits, Program};

#[test]
fn a_program_whose_processors_are_all_lost_ends_and_names_them() {
    let mut nodes = Builder::new().nodes(3).start().unwrap().into_nodes();
    let others = nodes.split_off(1);
    let mut program = Program::new("test");
    let same = program.kind("same", |n: u32| n);
    program.limits(Limits { offer_wait: Duration::from_millis(300), ..Limits::default() });
    let (leave, left) = mpsc::channel::<()>();
    // They offer nothing, and leave when the client has added its tasks.
    let others = std::thread::spawn(move || {
        left.recv().unwrap();
        drop(others);
    });
    let mut leave = Some(leave);
    let ended = program.run_on(&nodes, 1, |tasks| {
        let mut job = tasks.job::<u32>("all");
        let task = job.add(same, 7)?;
        leave.take().unwrap().send(()).unwrap();
        job.wait(&task).map(drop)
    });
    others.join().unwrap();
    let error = ended.unwrap_err().to_string();
    assert!(
        error.contains("node1, node2") && error.contains("1 tasks") && error.contains("again"),
        "{error}"
    );
}
