//! The pool of a processor that leaves.

use pdbp::PartKind;

use super::*;
use crate::wire::{self, Bytes, Down, KindId, Name, TaskId};

/// The thread that checks whether it is time to leave sent for ever, so that neither `--until` nor SIGTERM was heeded.
#[test]
fn who_speaks_to_a_pool_that_does_not_read_gives_up_when_it_is_time_to_leave() {
    const LONG: Duration = Duration::from_secs(60);
    let cluster = Builder::new().nodes(2).start().unwrap();
    let pool = cluster.nodes()[0].register(crate::serve::NAME, PartKind::Cpu).unwrap();
    let node = &cluster.nodes()[1];
    let seat = Seat::new(Worker::keeping(7, crate::Resources::none().cpus(1)), Duration::ZERO);
    let welcome = |term| Down::Welcome { term, number: 1, is_known: true, held: Vec::new() };
    // It has a result that is longer than the pool has room for, and runs something else.
    {
        let (task, name) = (TaskId { index: 0, generation: 0 }, Name { job: 0, number: 0, sub: 0, run: 0 });
        let (kind, input) = (KindId(0), Bytes::from(&[][..]));
        let given = Assignment { task, attempt: 1, kind, limit_ms: 0, gpus: 0, input, name: Some(name) };
        let worker = &mut seat.slot().worker;
        let _ = worker.speak(Duration::ZERO);
        worker.receive(welcome(1));
        worker.receive(Down::Tasks(vec![given]));
        while !matches!(worker.step(Duration::ZERO), Step::Run(_)) {}
        worker.ended(Duration::ZERO, Ending::Value(Bytes::from(vec![1; 64 << 20])), Vec::new());
        worker.lost();
    }
    lock(&seat.running).runs = true;
    let stays = |_| panic!("there is room for a hello");
    seat.speak_for(1, node, Duration::ZERO, &stays).unwrap();
    let hello = pool.recv_timeout(LONG).unwrap();
    assert!(matches!(wire::decode(&hello[1..]), Ok(Up::Hello { .. })));
    let answer: Vec<_> = pieces::cut(&postcard::to_stdvec(&welcome(2)).unwrap(), pool.longest()).collect();
    pool.send(hello.source(), &answer[0]).unwrap();
    pool.flush();
    let asked = std::cell::Cell::new(0);
    let leaves = |_| {
        asked.set(asked.get() + 1);
        assert!(asked.get() < 100, "it goes on");
        asked.get() == 3
    };
    let (over, began) = (AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        // Each ends a wait for room, as the time for it would.
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) && began.elapsed() < LONG {
                node.interrupt();
                thread::sleep(Duration::from_millis(1));
            }
        });
        while seat.speak_for(1, node, Duration::ZERO, &leaves).is_ok() && began.elapsed() < LONG {}
        over.store(true, Ordering::Release);
    });
    assert!(lock(&seat.running).link.is_none(), "half a message is on it");
}
