//! Descriptors that become readable for loops over `poll`.

use pdbp::WakeFd;

use super::*;
use crate::BRIEFLY;

#[test]
fn a_descriptor_is_readable_for_whatever_comes() {
    const MESSAGES: u64 = 2_000;
    let cluster = small(3, Progress::Thread);
    let parts = [1, 2].map(|n| part(&cluster.node(n).unwrap(), "reader"));
    let waker = WakeFd::new().unwrap();
    thread::scope(|scope| {
        let node = cluster.node(0).unwrap();
        scope.spawn(move || {
            let sender = part(&node, "sender");
            let to = ["reader@node1", "reader@node2"].map(|name| find(&sender, name));
            for number in 0..MESSAGES {
                sender.send_value(to[number as usize % 2], &number).unwrap();
                if number % 7 == 0 {
                    sender.flush();
                }
            }
            sender.flush();
            sender.recv_timeout(SOON).unwrap();
        });
        let mut got = [0; 2];
        while got.iter().sum::<u64>() < MESSAGES {
            waker.clear();
            for (part, got) in parts.iter().zip(&mut got) {
                while let Poll::Ready(message) = part.poll_recv(&mut waker.context()) {
                    let message = message.unwrap();
                    *got += 1;
                    if message.value() == Some(MESSAGES - 1) || message.value() == Some(MESSAGES - 2) {
                        assert_eq!(*got, MESSAGES / 2);
                    }
                }
            }
            if got.iter().sum::<u64>() < MESSAGES {
                let mut waits = [rustix::event::PollFd::new(&waker, rustix::event::PollFlags::IN)];
                let soon = rustix::event::Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
                assert_eq!(rustix::event::poll(&mut waits, Some(&soon)).unwrap(), 1, "after {got:?}");
            }
        }
        let back = parts[0].lookup("sender@node0").unwrap();
        parts[0].send(back, b"all").unwrap();
        parts[0].flush();
    });
}

#[test]
fn a_descriptor_is_readable_without_cause_for_a_moment_only() {
    let cluster = small(2, Progress::Thread);
    let [a, b] = [0, 1].map(|n| part(&cluster.node(n).unwrap(), "part"));
    let waker = WakeFd::new().unwrap();
    let poll = |part: &Part| part.poll_recv(&mut waker.context());
    for _ in 0..10 {
        // At first it is time to poll again, for less than a millisecond.
        let mut times = 0;
        while poll(&b).is_pending() && waker.clear() {
            times += 1;
        }
        assert!(times < 10_000, "readable {times} times while nothing came");
        thread::sleep(BRIEFLY);
        assert!(!waker.is_rung(), "nothing has come");
        a.send(b.id(), b"something").unwrap();
        a.flush();
        let mut waits = [rustix::event::PollFd::new(&waker, rustix::event::PollFlags::IN)];
        let soon = rustix::event::Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut waits, Some(&soon)).unwrap(), 1);
        // Once, and with cause.
        assert!(waker.clear() && poll(&b).is_ready());
    }
}
