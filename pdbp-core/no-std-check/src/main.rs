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
use pdbp_core::cdu::{CduClass, Packer, Route};
use pdbp_core::engine::{Checksum, DeliveryKind, LocalPart, PrivatePipes, StaticStorage};
use pdbp_core::id::{NodeId, PartId, PipeId, Time};
use pdbp_core::outbox::{Due, Ending, Lane, LongMessage, Outbox, Outgoing, Rule, StreamOut};
use pdbp_core::policy::Adaptive;
use pdbp_core::tables::{Name, PartKind};
use pdbp_core::umb::{Aligned, StaticMemory, stride};
use pdbp_core::{Config, Delivery, Engine};

const BODY: usize = 1024;
const BLOCKS: usize = 32;
const ROW: usize = 8;
const MESSAGES: u32 = 1000;
const SEGMENTS: u32 = 50;
/// Messages longer than a block, among the others.
const LONGS: u32 = 10;
const LONG: [u8; 5000] = [7; 5000];

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
static LANES: [Place<[Lane; 2]>; 2] = [const { Place::new() }; 2];
static WIRE: Place<RefCell<Wire>> = Place::new();

/// Checks what arrives, and keeps it until the engine can take it back.
struct Inbox {
    kept: Option<Delivery>,
    messages: u32,
    /// Bytes of the segments of long messages.
    long_bytes: usize,
    segments: u32,
    ended: bool,
}

impl Inbox {
    const fn new() -> Self {
        Self { kept: None, messages: 0, long_bytes: 0, segments: 0, ended: false }
    }

    fn read(&mut self, delivery: &Delivery) {
        for train in delivery.cdus() {
            let Ok(train) = train else { panic!() };
            for message in train.messages() {
                match delivery.kind() {
                    DeliveryKind::Messages { .. } if train.segment().is_some() => {
                        assert!(message.iter().all(|b| *b == 7));
                        self.long_bytes += message.len();
                    }
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

/// What a node sends: short messages, long ones between them, and a stream.
struct Sender {
    from: PartId,
    to: PartId,
    outbox: Outbox<'static>,
    sent: u32,
    /// The long message that is on its way, and how many were.
    long: Option<LongMessage>,
    longs: u32,
    stream: Option<StreamOut>,
}

impl Sender {
    fn new(me: usize, parts: [PartId; 2]) -> Option<Self> {
        // SAFETY: called once for each node.
        let lanes = unsafe { LANES.get(me)?.put([Lane::default(), Lane::default()]) };
        let rule = Rule { flush_after: 1_000, pack: BODY };
        Some(Self {
            from: *parts.get(me)?,
            to: *parts.get(1 - me)?,
            outbox: Outbox::new(lanes.as_mut_slice().into(), rule),
            sent: 0,
            long: None,
            longs: 0,
            stream: None,
        })
    }

    /// Sends what there is room for; `None` when something cannot be.
    fn send(&mut self, engine: &mut Node, now: Time) -> Option<()> {
        let route = Route::new(CduClass::ShortMessage, 0, self.from, self.to);
        let hop = engine.hop(self.to.node()).ok()?;
        loop {
            if let Some(long) = &mut self.long {
                let Some(piece) = long.piece() else {
                    self.long = None;
                    continue;
                };
                let bytes = LONG.get(piece.range.clone())?;
                let outgoing = Outgoing::message(route, bytes).segment(piece.header);
                if self.outbox.send(engine, now, hop, &outgoing).is_err() {
                    break;
                }
                long.advance();
            } else if self.sent < MESSAGES {
                let bytes = self.sent.to_le_bytes();
                if self.outbox.send(engine, now, hop, &Outgoing::message(route, &bytes)).is_err() {
                    break;
                }
                self.sent += 1;
                if self.sent.is_multiple_of(MESSAGES / LONGS) {
                    self.long = Some(LongMessage::new(self.longs, LONG.len(), Packer::longest(BODY) - 16));
                    self.longs += 1;
                }
            } else {
                break;
            }
        }
        self.write(engine)
    }

    /// Writes the next segment of the stream, if there is a block for it.
    fn write(&mut self, engine: &mut Node) -> Option<()> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(StreamOut::open(engine, self.from, self.to).ok()?),
        };
        if stream.is_over() {
            return Some(());
        }
        let Ok(block) = engine.open(self.to.node()) else { return Some(()) };
        assert!(stream.give_block(block).is_none());
        let segment = stream.segments();
        assert!(stream.write(900, &[segment as u8; 900]) == Ok(900));
        let ending = if segment + 1 == SEGMENTS { Ending::Last } else { Ending::Open };
        engine.submit(stream.seal(0, ending)?);
        Some(())
    }
}

/// Both nodes send everything to each other at once.
fn run() -> Option<()> {
    // SAFETY: the only call for this place.
    let wire = unsafe { WIRE.put(RefCell::new(Wire::new())) };
    let mut nodes = [start(0, wire)?, start(1, wire)?];
    let mut inboxes = [Inbox::new(), Inbox::new()];
    let parts = [PartId::new(node(0)?, 0)?, PartId::new(node(1)?, 0)?];
    let mut senders = [Sender::new(0, parts)?, Sender::new(1, parts)?];
    for (engine, part) in nodes.iter_mut().zip(parts) {
        assert!(engine.register("worker", PartKind::Cpu).ok()? == part);
        engine.bind_pipe(part).ok()?;
    }
    for turn in 0..1_000_000u64 {
        let now = Time(turn * 100);
        for me in 0..2 {
            let (engine, inbox) = (nodes.get_mut(me)?, inboxes.get_mut(me)?);
            let worked = engine.poll(now, inbox).worked;
            if let Some(delivery) = inbox.kept.take() {
                engine.release(delivery);
            }
            let sender = senders.get_mut(me)?;
            if engine.local_part(0) == LocalPart::Known && engine.lookup(sender.to.node(), "worker").is_some() {
                sender.send(engine, now)?;
            }
            sender.outbox.flush(engine, if worked == 0 { Due::Idle(now) } else { Due::Past(now) });
        }
        if inboxes
            .iter()
            .all(|i| i.messages == MESSAGES && i.long_bytes == LONGS as usize * LONG.len() && i.ended && i.segments == SEGMENTS && i.kept.is_none())
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
            print(b"no-std-check: 2 nodes, 1000 messages, 10 long ones and a stream of 50 segments each way, on static memory: ok\n");
            0
        }
        None => {
            print(b"no-std-check: not everything arrived\n");
            1
        }
    }
}
