//! Many tasks at a node, of which one polls for all.

use super::*;

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

const PARTS: usize = 24;

fn shared_parts(cluster: &Cluster, node: usize, count: usize) -> Vec<Part<Shared>> {
    let node = cluster.node(node).unwrap();
    (0..count).map(|n| node.register_shared(&format!("part{n}"), PartKind::Cpu).unwrap()).collect()
}

/// After which blocks leave by themselves.
const FLUSH_AFTER: Duration = Duration::from_secs(10);

/// Few blocks for many parts.
fn crowded(progress: Progress) -> Cluster {
    small_builder(2, progress).row_blocks(3).flush_after(FLUSH_AFTER).start().unwrap()
}

/// Calls `f` until it takes less than [`FLUSH_AFTER`].
fn in_time<R>(f: impl Fn() -> R) -> R {
    loop {
        let since = Instant::now();
        let result = f();
        if since.elapsed() < FLUSH_AFTER {
            return result;
        }
    }
}

#[test]
fn calls_of_many_tasks_are_answered() {
    const CALLS: u64 = 100;
    let current = || Builder::new_current_thread().build().unwrap();
    let multi = || Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let runtimes: [(&dyn Fn() -> Runtime, _); 3] = [(&current, false), (&current, true), (&multi, false)];
    for (runtime, is_apart) in runtimes {
        let cluster = crowded(Progress::Thread);
        let mut server = shared_parts(&cluster, 1, 1).remove(0);
        let to = server.id();
        let serving = async move {
            for _ in 0..PARTS as u64 * CALLS {
                let request = server.recv_async().await.unwrap();
                let answer = request.value::<u64>().unwrap() + 1;
                server.send_async(request.source(), &answer.to_ne_bytes()).await.unwrap();
            }
            server.flush();
        };
        let (clients, servers) = (runtime(), is_apart.then(runtime));
        let server = servers.as_ref().unwrap_or(&clients).spawn(serving);
        let calls = shared_parts(&cluster, 0, PARTS).into_iter().zip(0..).map(|(mut part, place)| {
            clients.spawn(async move {
                for call in (0..CALLS).map(|call| 1000 * place + call) {
                    part.send_async(to, &call.to_ne_bytes()).await.unwrap();
                    assert_eq!(part.recv_async().await.unwrap().value(), Some(call + 1));
                }
            })
        });
        let calls: Vec<_> = calls.collect();
        let others = servers.map(|servers| thread::spawn(move || servers.block_on(server).unwrap()));
        clients.block_on(async {
            for call in calls {
                call.await.unwrap();
            }
        });
        others.into_iter().for_each(|others| others.join().unwrap());
    }
}

/// Lets many parts of node 0 send, which then share a block, and wait for answers. Returns them, with the part that the messages are for.
fn waiting_senders(cluster: &Cluster, waker: &Waker) -> (Vec<Part<Shared>>, Part<Shared>) {
    let to = shared_parts(cluster, 1, 1).remove(0);
    let parts = shared_parts(cluster, 0, PARTS);
    for part in &parts {
        while let Err(SendError::WouldBlock) = part.try_send(to.id(), b"message") {
            cluster.nodes().iter().for_each(|node| _ = node.poll());
            take(&to);
        }
    }
    let cx = &mut Context::from_waker(waker);
    assert!(parts.iter().all(|part| part.poll_recv(cx).is_pending()));
    (parts, to)
}

fn take(part: &Part<Shared>) -> usize {
    std::iter::from_fn(|| part.try_recv()).count()
}

#[test]
fn what_tasks_have_packed_leaves_when_the_wait_of_the_one_that_polls_is_over() {
    let (before, after) = in_time(|| {
        let cluster = crowded(Progress::Host);
        let waker = Waker::from(this_thread());
        let (parts, to) = waiting_senders(&cluster, &waker);
        let poll = || (0..10).flat_map(|_| cluster.nodes()).for_each(|node| _ = node.poll());
        poll();
        let before = take(&to);
        for part in &parts {
            to.send(part.id(), b"answer").unwrap();
        }
        to.flush();
        poll();
        // One of them has polled for the others.
        let cx = &mut Context::from_waker(&waker);
        assert!(parts.iter().all(|part| part.poll_recv(cx).is_ready()));
        poll();
        (before, take(&to))
    });
    assert!(before < PARTS && after > 0, "{before} messages left at once, and then {after}");
}

#[test]
fn what_tasks_have_packed_leaves_though_the_one_that_polls_is_gone() {
    let wait = || {
        let cluster = crowded(Progress::Thread);
        let (_parts, to) = waiting_senders(&cluster, Waker::noop());
        let (since, mut received) = (Instant::now(), 0);
        while received == 0 && since.elapsed() < FLUSH_AFTER * 9 / 10 {
            received += take(&to);
            thread::yield_now();
        }
        received
    };
    assert!(in_time(wait) > 0, "what they have packed waits");
}
