//! Many strangers, from many addresses of this host.
#![cfg(target_os = "linux")]

use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockPool, HeapMemory, stride};
use pdbp_core::{Op, Refused};

use super::super::STRANGERS;
use super::*;

/// A connection from an address of this host.
fn dial_from(last: u8, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, last], 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// Strangers that were crowded out, or that were too slow, as may happen on a busy machine.
fn gone(net: &Net) -> u64 {
    let door = net.stats().door;
    door.crowded_out + door.too_slow
}

#[test]
fn sixty_four_strangers_are_borne_in_all() {
    let (net, _other) = pair();
    // The maximum from each of five addresses.
    let count = 5 * PER_ADDRESS;
    let mut silent: Vec<_> =
        (0..count).map(|i| dial_from(2 + (i / PER_ADDRESS) as u8, net.address())).collect();
    until("the others have given way", || gone(&net) >= (count - STRANGERS) as u64);
    assert!(silent.iter_mut().take(count - STRANGERS).all(is_closed), "those that came first");
}

/// Carries blocks from the first node to the second.
struct Line {
    // Before the pools.
    ends: [Net; 2],
    pools: [BlockPool<HeapMemory>; 2],
    came: u64,
}

const BODY: usize = 900;

impl Line {
    fn new((first, second): (Net, Net)) -> Self {
        let pool = |index| {
            BlockPool::new(HeapMemory::new(stride(BODY) * 8).unwrap(), NodeId::new(index).unwrap(), BODY)
        };
        Self { ends: [first, second], pools: [pool(0), pool(1)], came: 0 }
    }

    /// Sends and receives as much as possible now.
    fn turn(&mut self) {
        let [first, second] = &mut self.ends;
        let [sending, receiving] = &mut self.pools;
        let peers = [1, 0].map(|index| NodeId::new(index).unwrap());
        while let Some(block) = sending.take() {
            let block = sending.seal(block, 800);
            if let Err(Refused { op: Op::Send { block, .. }, .. }) =
                first.submit(Op::Send { peer: peers[0], block })
            {
                assert!(sending.give_sealed(block).is_ok());
                break;
            }
        }
        while let Some(block) = receiving.take() {
            assert!(second.submit(Op::Recv { peer: peers[1], block }).is_ok());
        }
        while let Some(completion) = first.poll_completion() {
            let Completion::Sent { block, .. } = completion else { panic!("{completion:?}") };
            assert!(sending.give_sealed(block).is_ok());
        }
        while let Some(completion) = second.poll_completion() {
            let Completion::Received { block, .. } = completion else { panic!("{completion:?}") };
            assert!(receiving.give_arrived(block).is_ok());
            self.came += 1;
        }
    }
}

/// Only the door's thread deals with them, and each costs only a socket.
#[test]
fn five_hundred_slow_strangers_are_in_no_link_s_way() {
    let mut line = Line::new(pair());
    let (to, count) = (line.ends[0].address(), 500);
    let strangers = std::thread::spawn(move || {
        let mut all = Vec::new();
        for i in 0..count {
            let mut stranger = dial_from(2 + (i % 100) as u8, to);
            // It may have been crowded out.
            let _ = stranger.write_all(b"P");
            all.push(stranger);
        }
        all
    });
    let began = Instant::now();
    while !strangers.is_finished() || gone(&line.ends[0]) < (count - STRANGERS) as u64 || line.came < 1000 {
        assert!(began.elapsed() < SOON, "{} blocks, {:?}", line.came, line.ends[0].stats().door);
        line.turn();
    }
    let [one, other] = line.ends.each_ref().map(Net::stats);
    assert_eq!((one.links[1].connections, other.links[0].connections), (1, 1), "no connection was lost");
    assert_eq!((one.links[1].sent_again, one.door.foreign), (0, 0));
    drop(strangers.join().unwrap());
}
