//! Parts that wait in tasks, on minimal executors.

mod crowd;
mod descriptors;
mod events;
mod streams;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use pdbp::{Cluster, Interest, Part, PartKind, Progress, RecvError, SendError, Shared, StreamReader};

use crate::{SOON, clusters, find, part, small, small_builder};

/// Wakes a thread, and counts.
struct Woken {
    thread: Thread,
    times: AtomicU64,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.thread.unpark();
    }
}

fn this_thread() -> Arc<Woken> {
    Arc::new(Woken { thread: thread::current(), times: AtomicU64::new(0) })
}

/// Runs a task on this thread, which does nothing else. A task that is not woken never continues, so the test fails.
fn block_on<F: Future>(task: F) -> F::Output {
    let woken = this_thread();
    let waker = Waker::from(Arc::clone(&woken));
    let mut task = pin!(task);
    loop {
        if let Poll::Ready(output) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let since = Instant::now();
        // Wakers of earlier tasks of this thread may end a pause as well.
        while woken.times.swap(0, Ordering::Relaxed) == 0 {
            assert!(since.elapsed() < SOON, "nothing has woken the task");
            thread::park_timeout(SOON);
        }
    }
}

/// Polls until the task sleeps: at first it wakes itself for a while.
fn sleep_with(woken: &Arc<Woken>, mut poll: impl FnMut(&mut Context<'_>) -> bool) {
    let waker = Waker::from(Arc::clone(woken));
    loop {
        woken.times.store(0, Ordering::Relaxed);
        assert!(poll(&mut Context::from_waker(&waker)), "there is something");
        if woken.times.load(Ordering::Relaxed) == 0 {
            return;
        }
    }
}

fn shared_pair(cluster: &Cluster) -> [Part<Shared>; 2] {
    [0, 1].map(|n| cluster.node(n).unwrap().register_shared(["a", "b"][n], PartKind::Cpu).unwrap())
}

#[test]
fn tasks_of_two_threads_play_ping_pong() {
    const ROUNDS: u64 = 2_000;
    let cluster = small(2, Progress::Thread);
    let [mut a, mut b] = shared_pair(&cluster);
    let to = b.id();
    let server = thread::spawn(move || {
        block_on(async {
            for round in 0..ROUNDS {
                let message = b.recv_async().await.unwrap();
                assert_eq!(message.value(), Some(round));
                let to = message.source();
                b.send_async(to, &message).await.unwrap();
            }
            b.flush();
        });
    });
    block_on(async {
        for round in 0..ROUNDS {
            a.send_async(to, &round.to_ne_bytes()).await.unwrap();
            assert_eq!(a.recv_async().await.unwrap().value(), Some(round));
        }
    });
    server.join().unwrap();
}

#[test]
fn a_task_whose_host_polls_is_woken_by_that() {
    let cluster = small(2, Progress::Host);
    let [a, b] = [0, 1].map(|n| part(&cluster.node(n).unwrap(), "part"));
    let woken = this_thread();
    for number in 0..100u64 {
        sleep_with(&woken, |cx| b.poll_recv(cx).is_pending());
        a.send_value(b.id(), &number).unwrap();
        a.flush();
        let waker = Waker::from(Arc::clone(&woken));
        let message = loop {
            while woken.times.swap(0, Ordering::Relaxed) == 0 {
                for node in cluster.nodes() {
                    node.poll();
                }
            }
            // It may be woken because the tables have changed.
            if let Poll::Ready(message) = b.poll_recv(&mut Context::from_waker(&waker)) {
                break message.unwrap();
            }
        };
        assert_eq!(message.value(), Some(number));
    }
}

#[test]
fn a_message_wakes_a_task_once() {
    const MESSAGES: u64 = 100;
    let cluster = small(2, Progress::Thread);
    let [a, b] = [0, 1].map(|n| part(&cluster.node(n).unwrap(), "part"));
    let (woken, mut wakes) = (this_thread(), 0);
    for number in 0..MESSAGES {
        sleep_with(&woken, |cx| b.poll_recv(cx).is_pending());
        a.send_value(b.id(), &number).unwrap();
        a.flush();
        while woken.times.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        assert_eq!(b.recv_timeout(SOON).unwrap().value(), Some(number));
        wakes += woken.times.load(Ordering::Relaxed);
    }
    // Changes of the tables, which are few, wake it as well.
    assert!(wakes <= MESSAGES + 5, "{wakes} wake-ups");
}

#[test]
fn a_task_that_nobody_would_wake_is_told_so() {
    let cluster = small(2, Progress::Inline);
    let [mut a, b] = shared_pair(&cluster);
    let error = block_on(a.recv_async()).unwrap_err();
    assert_eq!(error, RecvError::NobodyPolls);
    assert!(error.to_string().contains("set \"thread\""), "{error}");
    assert_eq!(block_on(a.ready_async(Interest::Recv)), Err(RecvError::NobodyPolls));
    assert_eq!(block_on(a.accept_async()).err(), Some(RecvError::NobodyPolls));
    let mut sent = 0;
    let full = loop {
        match block_on(a.send_async(b.id(), &[1; 200])) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full, SendError::NobodyPolls);
    // What was sent before arrives.
    a.flush();
    for _ in 0..sent {
        while b.try_recv().is_none() {
            cluster.node(0).unwrap().poll();
        }
    }
}

#[test]
fn tasks_that_send_wait_for_room_and_nothing_is_lost() {
    const MESSAGES: u64 = 20_000;
    let cluster = small(2, Progress::Thread);
    let [mut a, mut b] = shared_pair(&cluster);
    let to = b.id();
    let sender = thread::spawn(move || {
        block_on(async {
            for number in 0..MESSAGES {
                let message = [number; 25];
                a.send_async(to, bytemuck::bytes_of(&message)).await.unwrap();
            }
            a.flush();
            // Until the other has everything.
            a.recv_async().await.unwrap();
        });
    });
    block_on(async {
        for number in 0..MESSAGES {
            if number == MESSAGES / 2 {
                // The row is full by then.
                thread::sleep(crate::BRIEFLY);
            }
            let message = b.recv_async().await.unwrap();
            assert_eq!(message.value(), Some([number; 25]));
            if number + 1 == MESSAGES {
                b.send_async(message.source(), b"all").await.unwrap();
                b.flush();
            }
        }
    });
    sender.join().unwrap();
}

#[test]
fn long_messages_wait_for_room_at_their_reader() {
    // Two of these fit into the memory that the reader's node has for long messages.
    let message: Vec<u8> = (0..400_000u32).map(|n| (n % 251) as u8).collect();
    let cluster = small(2, Progress::Thread);
    let [mut a, mut b] = shared_pair(&cluster);
    let (to, expected) = (b.id(), message.clone());
    let reader = thread::spawn(move || {
        block_on(async {
            let mut kept = Vec::new();
            for number in 0..6 {
                let message = b.recv_async().await.unwrap();
                assert!(*message == *expected, "message {number}");
                kept.push(message);
                if kept.len() == 2 {
                    kept.clear();
                }
            }
        });
    });
    block_on(async {
        for _ in 0..6 {
            a.send_async(to, &message).await.unwrap();
        }
    });
    a.flush();
    reader.join().unwrap();
}

#[test]
fn a_long_message_whose_task_ends_is_given_up() {
    let cluster = small(2, Progress::Thread);
    let [mut a, b] = shared_pair(&cluster);
    let (to, message) = (b.id(), vec![7; 300_000]);
    {
        let waker = Waker::from(this_thread());
        let mut sending = pin!(a.send_async(to, &message));
        assert!(sending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    // The next one is not taken for its end.
    let reader = thread::spawn(move || b.recv().unwrap().into_vec());
    block_on(a.send_async(to, &[8; 300_000])).unwrap();
    a.flush();
    assert!(reader.join().unwrap() == vec![8; 300_000]);
}

#[test]
fn tasks_hear_that_nobody_is_left() {
    let mut nodes = small(2, Progress::Thread).into_nodes();
    let (second, first) = (nodes.pop().unwrap(), nodes.pop().unwrap());
    let mut part = first.register_shared("part", PartKind::Cpu).unwrap();
    let other = first.register_shared("other", PartKind::Cpu).unwrap();
    let waiting = thread::spawn(move || {
        let received = block_on(part.recv_async()).err();
        let ready = block_on(part.ready_async(Interest::Recv)).err();
        let accepted = block_on(part.accept_async()).err();
        [received, ready, accepted]
    });
    drop(second);
    // Not yet: this one could still send something.
    drop(other);
    assert_eq!(waiting.join().unwrap(), [const { Some(RecvError::NobodyLeft) }; 3]);
}

#[test]
fn a_task_on_a_part_without_a_pipe_is_told_so() {
    let cluster = small(2, Progress::Thread);
    let [mut a, _] = shared_pair(&cluster);
    let woken = this_thread();
    sleep_with(&woken, |cx| a.poll_recv(cx).is_pending());
    a.release_pipe().unwrap();
    assert_eq!(woken.times.load(Ordering::Relaxed), 1);
    assert_eq!(block_on(a.recv_async()).err(), Some(RecvError::NoPipe));
}

/// A task that ends when it is woken, and its part with it.
#[derive(Default)]
struct Ends {
    part: Mutex<Option<Part<Shared>>>,
    was_early: AtomicBool,
}

impl Wake for Ends {
    fn wake(self: Arc<Self>) {
        let mut part = self.part.lock().unwrap();
        self.was_early.store(part.is_none(), Ordering::SeqCst);
        *part = None;
    }
}

#[test]
fn a_waker_may_drop_a_part() {
    let cluster = small(2, Progress::Thread);
    let [a, b] = shared_pair(&cluster);
    let to = b.id();
    let ends = Arc::new(Ends::default());
    let waker = Waker::from(Arc::clone(&ends));
    sleep_with(&this_thread(), |cx| b.poll_recv(cx).is_pending());
    assert!(b.poll_recv(&mut Context::from_waker(&waker)).is_pending());
    *ends.part.lock().unwrap() = Some(b);
    a.send(to, b"the last message").unwrap();
    a.flush();
    while ends.part.lock().unwrap().is_some() {
        // It is also woken if a part comes or goes, and might be before it was handed over.
        if ends.was_early.swap(false, Ordering::SeqCst) {
            waker.wake_by_ref();
        }
        thread::yield_now();
    }
    // The node goes on.
    let again = cluster.node(1).unwrap().register("b", PartKind::Cpu).unwrap();
    a.send(again.id(), b"to its successor").unwrap();
    assert_eq!(*again.recv_timeout(SOON).unwrap(), *b"to its successor");
}

#[test]
fn tasks_of_one_part_wait_for_different_things() {
    let cluster = small(2, Progress::Thread);
    let [a, b] = [0, 1].map(|n| part(&cluster.node(n).unwrap(), "part"));
    let [messages, streams, replaced] = [(); 3].map(|()| this_thread());
    sleep_with(&replaced, |cx| b.poll_recv(cx).is_pending());
    sleep_with(&messages, |cx| b.poll_recv(cx).is_pending());
    sleep_with(&streams, |cx| b.poll_stream(cx).is_pending());
    a.send(b.id(), b"a message").unwrap();
    a.flush();
    for woken in [&messages, &streams] {
        while woken.times.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
    }
    assert_eq!(replaced.times.load(Ordering::Relaxed), 0, "it was replaced by the call after it");
    let mut cx = Context::from_waker(Waker::noop());
    assert!(b.poll_stream(&mut cx).is_pending());
    assert!(b.poll_recv(&mut cx).is_ready());
}

#[test]
fn a_thread_that_waits_and_a_task_share_a_node() {
    const ROUNDS: u64 = 500;
    let cluster = small(2, Progress::Thread);
    let node = cluster.node(1).unwrap();
    let mut task = node.register_shared("task", PartKind::Cpu).unwrap();
    let blocks = node.register_shared("blocks", PartKind::Cpu).unwrap();
    let a = part(&cluster.node(0).unwrap(), "a");
    let (to_task, to_thread) = (task.id(), blocks.id());
    let first = thread::spawn(move || {
        block_on(async {
            for _ in 0..ROUNDS {
                let message = task.recv_async().await.unwrap();
                task.send_async(message.source(), &message).await.unwrap();
            }
            task.flush();
        });
    });
    let second = thread::spawn(move || {
        for _ in 0..ROUNDS {
            let message = blocks.recv_timeout(SOON).unwrap();
            blocks.send(message.source(), &message).unwrap();
        }
        blocks.flush();
    });
    for round in 0..ROUNDS {
        a.send_value(to_task, &round).unwrap();
        a.send_value(to_thread, &round).unwrap();
        for _ in 0..2 {
            assert_eq!(a.recv_timeout(SOON).unwrap().value(), Some(round));
        }
    }
    first.join().unwrap();
    second.join().unwrap();
}

#[test]
fn whoever_selects_loses_nothing() {
    const MESSAGES: u64 = 3_000;
    let cluster = small(2, Progress::Thread);
    let [a, mut b] = shared_pair(&cluster);
    let to = b.id();
    let sender = thread::spawn(move || {
        for number in 0..MESSAGES {
            a.send_value(to, &number).unwrap();
        }
        a.flush();
        // Until the other has everything.
        a.recv().unwrap();
    });
    block_on(async {
        let mut next = 0;
        let mut given_up = 0;
        while next < MESSAGES {
            // A waiting task that is dropped every so often before it is woken.
            let mut once = false;
            let message = {
                let mut receiving = pin!(b.recv_async());
                poll_fn(|cx| match receiving.as_mut().poll(cx) {
                    Poll::Pending if once => Poll::Ready(None),
                    Poll::Pending => {
                        once = true;
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                    Poll::Ready(message) => Poll::Ready(Some(message.unwrap())),
                })
                .await
            };
            match message {
                Some(message) => {
                    assert_eq!(message.value(), Some(next));
                    next += 1;
                }
                None => given_up += 1,
            }
        }
        b.send_async(find_a(&b), b"all").await.unwrap();
        b.flush();
        given_up
    });
    sender.join().unwrap();
}

fn find_a(part: &Part<Shared>) -> pdbp::Target {
    part.lookup("a@node0").unwrap()
}

#[test]
fn what_needs_no_waiting_is_ready_at_once() {
    for cluster in clusters(2) {
        let [mut a, mut b] = shared_pair(&cluster);
        block_on(a.send_async(b.id(), b"one")).unwrap();
        a.flush();
        // With `inline` and `host` the task itself polls here.
        let mut message = None;
        while message.is_none() {
            let waker = Waker::noop();
            match Pin::new(&mut pin!(b.recv_async())).as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Ready(Ok(one)) => message = Some(one),
                Poll::Ready(Err(RecvError::NobodyPolls)) | Poll::Pending => {
                    cluster.nodes()[0].poll();
                }
                Poll::Ready(Err(error)) => panic!("{error}"),
            }
        }
        assert_eq!(*message.unwrap(), *b"one");
    }
}

#[test]
fn a_task_may_wait_for_either() {
    let cluster = small_builder(2, Progress::Thread).start().unwrap();
    let [mut a, b] = shared_pair(&cluster);
    let ready = block_on(a.ready_async(Interest::Either(b.id()))).unwrap();
    assert!(ready.send && !ready.recv);
    // Until its row is full.
    let sent = std::iter::from_fn(|| a.try_send(b.id(), &[0; 200]).ok()).count();
    a.flush();
    let reader = thread::spawn(move || (0..sent).for_each(|_| drop(b.recv_timeout(SOON).unwrap())));
    assert!(
        block_on(a.ready_async(Interest::Send(cluster.node(0).unwrap().lookup("b").unwrap()))).unwrap().send
    );
    reader.join().unwrap();
}
