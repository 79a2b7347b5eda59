//! Device messages that MPI carries itself. The devices are simulated: their memory is host memory, which every MPI can access.

use std::io::Read;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pdbp::cuda::device::{Clock, CopyEngine, Cuda, Simulated};
use pdbp::cuda::flow::{Copier, FlowError, Step};
use pdbp::cuda::{Buffer, Slice};
use pdbp::{Builder, Node, Part, PinMemory, RecvError, SendError, Space};

use crate::clusters::{SOON, builder, builder_apart, find, node, part};

/// Messages of this many bytes or more are carried by MPI.
const LEAST: usize = 1000;
const LENGTHS: [usize; 6] = [0, LEAST - 1, LEAST, 5_000_001, 70_000, LEAST];

struct Gpu {
    clock: Clock,
    device: Simulated,
    copier: Rc<Copier<Simulated>>,
}

fn gpu() -> Gpu {
    let engine = CopyEngine { bytes_per_second: 20_000_000_000, latency: Duration::from_micros(2) };
    let clock = Clock::new();
    let device = Simulated::new(&clock, [engine; 2]);
    let copier = Rc::new(Copier::new(&device, NonZeroUsize::new(3).unwrap()));
    Gpu { clock, device, copier }
}

fn pattern(length: usize, of: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251 + of) as u8).collect()
}

impl Gpu {
    fn slice(&self, bytes: &[u8]) -> Slice<Simulated> {
        let buffer = Buffer::new(&self.device, bytes.len() + 9).unwrap();
        self.device.write(buffer.memory(), 5, bytes);
        buffer.into_slice().slice(5..5 + bytes.len()).unwrap()
    }

    fn buffer(&self, bytes: usize) -> Buffer<Simulated> {
        Buffer::new(&self.device, bytes.max(1)).unwrap()
    }
}

fn on(builder: Builder, program: impl Fn(Node, Part, Gpu)) -> Result<(), String> {
    let builder = builder.set("mpi_device_bytes", &LEAST.to_string());
    let cluster = builder.start().map_err(|e| e.to_string())?;
    let node = node(&cluster);
    program(node.clone(), part(&node, "gpu"), gpu());
    node.barrier(SOON).unwrap();
    Ok(())
}

pub(crate) fn one_host() -> Result<(), String> {
    on(builder(), ring)
}

pub(crate) fn apart() -> Result<(), String> {
    on(builder_apart(), ring)
}

/// A message that waits behind others, without credit, leaves once those are read, although nobody but its sender polls the node.
pub(crate) fn behind_others() -> Result<(), String> {
    let builder = builder_apart().set("progress", "inline").set("initial_blocks", "2").set("policy", "fixed");
    on(builder.set("row_blocks", "8"), |node, here, gpu| {
        let me = node.id().index();
        for before in 0..7 {
            if me == 0 {
                let to = find(&here, "gpu", 1);
                for _ in 0..before {
                    here.send(to, b"before").unwrap();
                    here.flush();
                }
                let mut sending =
                    here.send_device(&gpu.copier, gpu.slice(&pattern(LEAST, 0)), None, to).unwrap();
                sending.wait(SOON).unwrap();
            } else {
                std::thread::sleep(Duration::from_millis(50));
                (0..before).for_each(|_| assert_eq!(*here.recv_timeout(SOON).unwrap(), *b"before"));
                let mut receiving = here.recv_into_device(&gpu.copier, gpu.buffer(LEAST), None).ok().unwrap();
                receiving.wait(SOON).unwrap();
            }
            node.barrier(SOON).unwrap();
        }
    })
}

/// From each rank to the next, all at the same time; the long messages are not copied at either end.
fn ring(node: Node, here: Part, gpu: Gpu) {
    let (me, size) = (node.id().index(), node.settings().nodes as usize);
    let to = find(&here, "gpu", (me + 1) % size);
    for length in LENGTHS {
        let before = gpu.device.copies();
        let kernel = gpu.device.work(Duration::from_millis(1));
        let sent = gpu.slice(&pattern(length, me));
        let mut sending = here.send_device(&gpu.copier, sent, Some(&kernel), to).unwrap();
        let mut receiving =
            here.recv_into_device(&gpu.copier, gpu.buffer(length), Some(&kernel)).ok().unwrap();
        let (mut out, mut into) = (Step::Idle, Step::Idle);
        while (out, into) != (Step::Done, Step::Done) {
            (out, into) = (sending.poll().unwrap(), receiving.poll().unwrap());
            gpu.clock.advance_to(gpu.clock.now() + Duration::from_micros(10));
        }
        assert_eq!((sending.sent(), receiving.received()), (length, length));
        assert_eq!(receiving.source().unwrap().node().index(), (me + size - 1) % size);
        if length >= LEAST {
            assert_eq!(gpu.device.copies(), before, "{length} bytes were not staged");
        } else if length > 0 {
            assert_eq!(gpu.device.copies(), before + 2, "{length} bytes were staged");
        }
        let mut bytes = gpu.device.read(receiving.take_buffer().unwrap().memory());
        bytes.truncate(length);
        assert!(bytes == pattern(length, (me + size - 1) % size), "{length} bytes");
        assert!(sending.into_slice().into_buffer().is_ok(), "nothing reads it any more");
    }
    assert_eq!(gpu.device.misuse(), Vec::<String>::new());
}

/// A reader on the host, one that goes away, and one with too little room.
pub(crate) fn refused() -> Result<(), String> {
    on(builder_apart(), |node, here, gpu| {
        let bytes = pattern(300_000, 1);
        if node.id().index() == 0 {
            let to = find(&here, "gpu", 1);
            for _ in 0..3 {
                let mut sending = here.send_device(&gpu.copier, gpu.slice(&bytes), None, to).unwrap();
                sending.wait(SOON).unwrap();
            }
            assert!(gpu.device.copies() > 300, "all went through blocks");
            return;
        }
        let mut read = Vec::new();
        here.accept_stream(SOON).unwrap().read_to_end(&mut read).unwrap();
        assert!(read == bytes);
        drop(here.accept_stream(SOON).unwrap());
        let mut receiving = here.recv_into_device(&gpu.copier, gpu.buffer(299_999), None).ok().unwrap();
        assert_eq!(receiving.wait(SOON), Err(FlowError::TooLong { room: 299_999 }));
        assert!(receiving.take_buffer().is_some());
        // Discarded data still arrives.
        while node.stats().pipes[2].busy > 0 {
            assert!(here.try_recv().is_none());
        }
    })
}

/// On the first CUDA device: by MPI if it supports devices, otherwise through blocks.
pub(crate) fn on_cuda() -> Result<(), String> {
    let device = match Cuda::open(0) {
        Ok(device) => device,
        Err(e) if e.is_absence() && std::env::var_os("PDBP_REQUIRE_GPU").is_none() => {
            println!("skipped: {e}");
            return Ok(());
        }
        Err(e) => return Err(e.to_string()),
    };
    on(builder_apart().pin_memory(PinMemory::Auto), |node, here, _| {
        assert_eq!(node.memory_space(), Space::Pinned);
        println!("MPI knows devices: {}", node.mpi_knows_devices());
        if std::env::var_os("DRIVER_MPI").is_some() {
            assert!(node.mpi_knows_devices(), "the stand-in says so");
        }
        let copier = Rc::new(Copier::new(&device, NonZeroUsize::new(3).unwrap()));
        let to = find(&here, "gpu", 1 - node.id().index());
        for length in LENGTHS.into_iter().filter(|length| *length > 0) {
            let mut buffer = Buffer::new(&device, length).unwrap();
            buffer.write(&device, 0, &pattern(length, node.id().index())).unwrap();
            let mut sending = here.send_device(&copier, buffer.into_slice(), None, to).unwrap();
            let room = Buffer::new(&device, length).unwrap();
            let mut receiving = here.recv_into_device(&copier, room, None).ok().unwrap();
            let began = Instant::now();
            while (sending.poll().unwrap(), receiving.poll().unwrap()) != (Step::Done, Step::Done) {
                assert!(began.elapsed() < SOON, "{length} bytes");
            }
            let mut bytes = vec![0; length];
            receiving.take_buffer().unwrap().read(&device, 0, &mut bytes).unwrap();
            assert!(bytes == pattern(length, 1 - node.id().index()), "{length} bytes");
        }
    })
}

/// Either end gives up, at each stage; afterwards a message is carried as if nothing had happened.
pub(crate) fn failures() -> Result<(), String> {
    on(builder(), |node, here, gpu| {
        const ROUNDS: usize = 40;
        let (bytes, last) = (pattern(100_000, 2), pattern(50_000, 3));
        if node.id().index() == 0 {
            let to = find(&here, "gpu", 1);
            for round in 0..ROUNDS {
                let mut sending = here.send_device(&gpu.copier, gpu.slice(&bytes), None, to).unwrap();
                // Gives up before the announcement, before the answer, after the answer, or while MPI has the bytes.
                for _ in 0..round {
                    let _ = sending.poll().unwrap();
                }
                drop(sending);
            }
            let kernel = gpu.device.work(Duration::from_secs(1));
            let mut late = here.send_device(&gpu.copier, gpu.slice(&bytes), Some(&kernel), to).unwrap();
            assert!(matches!(
                late.wait(Duration::from_millis(50)),
                Err(FlowError::Link(SendError::Timeout(_)))
            ));
            drop(late);
            here.send_device(&gpu.copier, gpu.slice(&last), None, to).unwrap().wait(SOON).unwrap();
            assert_eq!(gpu.device.copies(), 0, "none was staged");
            return;
        }
        let (mut whole, mut given_up) = (0, 0);
        loop {
            let mut receiving =
                here.recv_into_device(&gpu.copier, gpu.buffer(bytes.len()), None).ok().unwrap();
            match receiving.wait(SOON) {
                Ok(()) => {}
                Err(FlowError::Link(RecvError::StreamBroken { .. })) => {
                    given_up += 1;
                    // The receives are cancelled, so the memory is soon free again.
                    while receiving.take_buffer().is_none() {
                        node.poll();
                    }
                    continue;
                }
                Err(e) => panic!("{e}"),
            }
            let mut arrived = gpu.device.read(receiving.take_buffer().unwrap().memory());
            arrived.truncate(receiving.received());
            if arrived == last {
                break;
            }
            assert!(arrived == bytes);
            whole += 1;
        }
        assert!(whole + given_up <= ROUNDS + 1 && given_up > 0, "{whole} and {given_up}");
    })
}
