//! Waiting tasks, under loom: in every interleaving the task either sees what arrives or is woken.

#[path = "../src/sync/tasks.rs"]
#[allow(dead_code, unreachable_pub)]
mod tasks;

#[path = "../src/sync/task_leader.rs"]
#[allow(dead_code, unreachable_pub)]
mod task_leader;

mod primitives {
    pub(super) use std::sync::PoisonError;

    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(super) use loom::sync::{Mutex, MutexGuard};
}

use std::task::{Wake, Waker};
use std::time::Instant;

use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

use task_leader::TaskLeader;
use tasks::{Tasks, WakerList};

/// Counts wake-ups. The model checker knows nothing of it but the count.
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A node with an engine's lock, a pipe, and tasks.
#[derive(Default)]
struct Node {
    tasks: Tasks,
    list: WakerList<u8>,
    pipe: AtomicUsize,
    engine: Mutex<()>,
}

impl Node {
    /// Puts something into the pipe, as any polling thread does.
    fn deliver(&self) {
        let engine = self.engine.lock().unwrap();
        self.pipe.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.tasks.mark_due(&self.list);
        drop(engine);
        self.tasks.wake();
    }

    /// Returns whether the task finds something when it looks once more.
    fn wait(&self, key: u8, waker: &std::sync::Arc<Count>) -> bool {
        self.tasks.wait_on(&self.list, key, Waker::from(std::sync::Arc::clone(waker)), false);
        self.pipe.load(Ordering::Relaxed) > 0
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

#[test]
fn a_task_finds_what_came_or_is_woken() {
    model(|| {
        let node = Arc::new(Node::default());
        let count = std::sync::Arc::new(Count(AtomicUsize::new(0)));
        let other = Arc::clone(&node);
        let deliverer = thread::spawn(move || other.deliver());
        let found = node.wait(0, &count);
        deliverer.join().unwrap();
        assert!(found || count.0.load(Ordering::SeqCst) == 1);
    });
}

#[test]
fn two_tasks_that_wait_for_one_thing_are_both_woken() {
    model(|| {
        let node = Arc::new(Node::default());
        let counts = [(); 2].map(|()| std::sync::Arc::new(Count(AtomicUsize::new(0))));
        let first = node.wait(0, &counts[0]);
        let (other, second) = (Arc::clone(&node), std::sync::Arc::clone(&counts[1]));
        let waits = thread::spawn(move || other.wait(1, &second));
        node.deliver();
        let second = waits.join().unwrap();
        // No thread polls any more: a task that was not woken and has found nothing would sleep for ever.
        assert!(!first && counts[0].0.load(Ordering::SeqCst) == 1);
        assert!(second || counts[1].0.load(Ordering::SeqCst) == 1);
    });
}

#[test]
fn two_that_poll_wake_a_task_once() {
    model(|| {
        let node = Arc::new(Node::default());
        let count = std::sync::Arc::new(Count(AtomicUsize::new(0)));
        assert!(!node.wait(0, &count));
        let other = Arc::clone(&node);
        let deliverer = thread::spawn(move || other.deliver());
        node.deliver();
        deliverer.join().unwrap();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(!node.tasks.has_waiting());
    });
}

/// The progress thread leaves the node's bell to threads that poll, and parks, while a task begins to wait.
#[test]
fn a_task_that_begins_to_wait_is_counted_or_wakes_the_progress_thread() {
    model(|| {
        let node = Arc::new(Node::default());
        node.tasks.begin_watch();
        let known = node.tasks.registrations();
        let (other, count) = (Arc::clone(&node), std::sync::Arc::new(Count(AtomicUsize::new(0))));
        let waits = thread::spawn(move || {
            let waker = Waker::from(count);
            other.tasks.wait_on(&other.list, 0, waker, false)
        });
        node.tasks.end_watch();
        let is_counted = node.tasks.registrations() != known;
        let wakes = waits.join().unwrap();
        assert!(is_counted || wakes);
    });
}

#[test]
fn only_a_task_that_nobody_watches_for_wakes_the_progress_thread() {
    model(|| {
        let node = Node::default();
        let count = std::sync::Arc::new(Count(AtomicUsize::new(0)));
        let waits =
            |key| node.tasks.wait_on(&node.list, key, Waker::from(std::sync::Arc::clone(&count)), false);
        node.tasks.begin_watch();
        assert!(!waits(0));
        node.tasks.end_watch();
        assert!(waits(1) && !waits(1), "the second time it only replaces its waker");
        assert!(node.tasks.registrations() == 2 && node.tasks.has_waiting());
        let is_led =
            |key| node.tasks.wait_on(&node.list, key, Waker::from(std::sync::Arc::clone(&count)), true);
        assert!(!is_led(2) && node.tasks.registrations() == 2, "another task polls for it");
        assert!(waits(2), "until it does no more");
    });
}

/// Two threads wake what is due, since a task that was woken helps.
#[test]
fn tasks_that_are_due_are_woken_once_by_those_who_wake_them_together() {
    model(|| {
        let node = Arc::new(Node::default());
        let counts = [(); 2].map(|()| std::sync::Arc::new(Count(AtomicUsize::new(0))));
        assert!(!node.wait(0, &counts[0]) && !node.wait(1, &counts[1]));
        let other = Arc::clone(&node);
        let helper = thread::spawn(move || other.tasks.wake());
        node.deliver();
        helper.join().unwrap();
        assert!(counts.iter().all(|count| count.0.load(Ordering::SeqCst) == 1));
    });
}

/// A task leaves what it has packed to the leader, whose wait ends at the same time.
#[test]
fn what_is_left_to_a_leader_is_submitted_by_one_of_them() {
    model(|| {
        let (node, now) = (Arc::new((Mutex::new(0), TaskLeader::default())), Instant::now());
        node.1.lead(0, now);
        let other = Arc::clone(&node);
        let led = thread::spawn(move || {
            let (packed, leader) = &*other;
            *packed.lock().unwrap() += 1;
            let is_led = leader.leave_packed(1, || now);
            if !is_led {
                *packed.lock().unwrap() = 0;
            }
        });
        let (packed, leader) = &*node;
        leader.resign(0);
        if leader.take_packed() {
            *packed.lock().unwrap() = 0;
        }
        led.join().unwrap();
        assert_eq!(*packed.lock().unwrap(), 0, "nobody submits it");
    });
}
