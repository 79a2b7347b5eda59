//! Two nodes on static arrays send each other messages and a stream, without std and without a heap.
//!
//! ```text
//! ci/no-std                  # from the repository's root: builds it, runs it, looks at what it is linked with
//! ```
//!
//! `loopback.rs` is a whole backend; it shows how little one needs.
#![no_std]
#![no_main]

mod loopback;

use core::cell::{RefCell, UnsafeCell};
use core::ffi::{c_char, c_int, c_void};
use core::mem::MaybeUninit;

use loopback::{Loopback, Wire};
use pdbp_core::cdu::{CduClass, Route, flag};
use pdbp_core::engine::{Checksum, DeliveryKind, LocalPart, PrivatePipes, StaticStorage, StreamTag};
use pdbp_core::id::{NodeId, PartId, PipeId, Time};
use pdbp_core::policy::Adaptive;
use pdbp_core::tables::{Name, PartKind};
use pdbp_core::umb::{Aligned, StaticMemory, stride};
use pdbp_core::{Config, Delivery, Engine};

const BODY: usize = 1024;
const BLOCKS: usize = 32;
const ROW: usize = 8;
const MESSAGES: u32 = 1000;
const SEGMENTS: u32 = 50;

type Node = Engine<'static, Loopback, StaticMemory, Adaptive>;
type Tables = StaticStorage<2, BLOCKS, { 2 * ROW }, 8, 2, 6, 4>;

#[link(name = "c")]
unsafe extern "C" {
    fn write(file: c_int, bytes: *const c_void, length: usize) -> isize;
    fn abort() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    print(b"no-std-check: panic\n");
    // SAFETY: takes nothing, and does not return.
    unsafe { abort() }
}

/// The pre-compiled `core` names this symbol in its unwind tables. Nothing unwinds here: panics abort.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

fn print(text: &[u8]) {
    // SAFETY: address and length of a slice; 1 is the standard output.
    unsafe { write(1, text.as_ptr().cast(), text.len()) };
}

/// A value in a `static`, to be had once.
struct Place<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: the program has one thread.
unsafe impl<T> Sync for Place<T> {}

impl<T> Place<T> {
    const fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// # Safety
    /// Called once for each place.
    unsafe fn put(&'static self, value: T) -> &'static mut T {
        let place = self.0.get();
        // SAFETY: the caller makes sure that this is the only reference.
        unsafe { &mut *place }.write(value)
    }
}

static MEMORY: [Place<Aligned<{ BLOCKS * stride(BODY) }>>; 2] = [const { Place::new() }; 2];
static TABLES: [Place<Tables>; 2] = [const { Place::new() }; 2];
static WIRE: Place<RefCell<Wire>> = Place::new();

/// Checks what arrives, and keeps it until the engine can take it back.
struct Inbox {
    kept: Option<Delivery>,
    messages: u32,
    segments: u32,
    ended: bool,
}

impl Inbox {
    const fn new() -> Self {
        Self { kept: None, messages: 0, segments: 0, ended: false }
    }

    fn read(&mut self, delivery: &Delivery) {
        for train in delivery.cdus() {
            let Ok(train) = train else { panic!() };
            for message in train.messages() {
                match delivery.kind() {
                    DeliveryKind::Messages { .. } => {
                        assert!(*message == self.messages.to_le_bytes());
                        self.messages += 1;
                    }
                    DeliveryKind::Stream { segment, last, aborted, .. } => {
                        assert!(segment == self.segments && !aborted);
                        assert!(message.len() == 900 && message.iter().all(|b| *b == segment as u8));
                        self.segments += 1;
                        self.ended |= last;
                    }
                    DeliveryKind::Returned { .. } => panic!("no node fails here"),
                }
            }
        }
    }
}

impl PrivatePipes for Inbox {
    fn deliver(&mut self, _: PipeId, delivery: Delivery) -> Result<(), Delivery> {
        if self.kept.is_some() {
            return Err(delivery);
        }
        self.read(&delivery);
        self.kept = Some(delivery);
        Ok(())
    }
}

fn node(index: usize) -> Option<NodeId> {
    NodeId::new(index as u16)
}

fn start(index: usize, wire: &'static RefCell<Wire>) -> Option<Node> {
    // SAFETY: `main` calls this once for each index.
    let memory = unsafe { MEMORY.get(index)?.put(Aligned([0; BLOCKS * stride(BODY)])) };
    // SAFETY: as above.
    let tables = unsafe { TABLES.get(index)?.put(StaticStorage::new()) };
    let config = Config {
        node: node(index)?,
        nodes: 2,
        name: Name::new(if index == 0 { "left" } else { "right" }).ok()?,
        body: BODY,
        row: ROW as u32,
        initial: 2,
        control_blocks: 2,
        local_parts: 2,
        private_pipes: 2,
        stream_pipes: 2,
        flush_after: 1_000,
        interval: 1_000_000,
        checksum: Checksum::On,
        masters: 1,
        lease: 0,
        patience: 1_000_000,
        routing: pdbp_core::Routing::Direct,
        joining: false,
    };
    let transport = Loopback::new(node(index)?, wire);
    Engine::new(config, Adaptive::DEFAULT, transport, StaticMemory::new(memory), tables.storage()).ok()
}

/// Both nodes send everything to each other at once.
fn run() -> Option<()> {
    // SAFETY: the only call for this place.
    let wire = unsafe { WIRE.put(RefCell::new(Wire::new())) };
    let mut nodes = [start(0, wire)?, start(1, wire)?];
    let mut inboxes = [Inbox::new(), Inbox::new()];
    let parts = [PartId::new(node(0)?, 0)?, PartId::new(node(1)?, 0)?];
    let mut sent = [0u32; 2];
    let mut streamed = [0u32; 2];
    let mut streams = [None; 2];
    for (engine, part) in nodes.iter_mut().zip(parts) {
        assert!(engine.register("worker", PartKind::Cpu).ok()? == part);
        engine.bind_pipe(part).ok()?;
    }
    for turn in 0..1_000_000u64 {
        let now = Time(turn * 100);
        for me in 0..2 {
            let (engine, inbox) = (nodes.get_mut(me)?, inboxes.get_mut(me)?);
            engine.poll(now, inbox);
            if let Some(delivery) = inbox.kept.take() {
                engine.release(delivery);
            }
            let (from, to) = (*parts.get(me)?, *parts.get(1 - me)?);
            if engine.local_part(0) != LocalPart::Known || engine.lookup(to.node(), "worker").is_none() {
                continue;
            }
            let sent = sent.get_mut(me)?;
            let route = Route::new(CduClass::ShortMessage, 0, from, to);
            while *sent < MESSAGES && engine.send(now, route, to, &sent.to_le_bytes()).is_ok() {
                *sent += 1;
            }
            let (stream, segment) = (streams.get_mut(me)?, streamed.get_mut(me)?);
            let (group, number) = match *stream {
                Some(open) => open,
                None => *stream.insert(engine.open_stream(from, to.node()).ok()?),
            };
            if *segment < SEGMENTS
                && let Ok(mut block) = engine.open(to.node())
            {
                let last = *segment + 1 == SEGMENTS;
                let flags = if *segment == 0 { flag::FIRST } else { 0 } | if last { flag::LAST } else { 0 };
                block.set_stream(StreamTag { group, number, segment: *segment, dest: to, flags });
                block.push(Route::new(CduClass::Stream, 0, from, to), &[*segment as u8; 900]).ok()?;
                engine.submit(block);
                *segment += 1;
            }
        }
        if inboxes
            .iter()
            .all(|i| i.messages == MESSAGES && i.ended && i.segments == SEGMENTS && i.kept.is_none())
        {
            return Some(());
        }
    }
    None
}

/// Called by the C start-up code.
#[unsafe(no_mangle)]
pub extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    match run() {
        Some(()) => {
            print(b"no-std-check: 2 nodes, 1000 messages and a stream of 50 segments each way, on static memory: ok\n");
            0
        }
        None => {
            print(b"no-std-check: not everything arrived\n");
            1
        }
    }
}
