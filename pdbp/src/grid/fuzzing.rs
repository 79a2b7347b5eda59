//! A gateway that sends anything, and how this end handles it.

use std::time::{Duration, Instant};

use pdbp_core::tables::PartKind;

use super::session::Session;
#[cfg(test)]
use super::wire::command::LIST;
use super::wire::{COMMAND, FIRST, HEAD, Head, Kind, LAST, MORE};
use crate::cluster::Cluster;
use crate::error::SendError;
use crate::node::Node;
use crate::part::{Message, Part, Shared};

/// Bytes that this end may hold, and the longest message.
const ROOM: u64 = 64 << 10;
const LONGEST: u64 = 8 << 10;
const SOON: Duration = Duration::from_secs(60);
/// Frames of a script.
const FRAMES: usize = 400;

/// A cluster, with the parts of a gateway. Two of its parts can be found: `here`, which reads, and `full`, which does not. `full`,
/// and the part that frames go to, are on nodes of their own, since a part that does not read holds up others on its node.
pub(super) struct Stage {
    // Before the cluster.
    pub(super) out: Part<Shared>,
    /// Where this end's frames go, and the part that takes them.
    pub(super) there: Part<Shared>,
    /// Where the other gateway's frames arrive.
    inbox: Part<Shared>,
    pub(super) here: Part<Shared>,
    pub(super) full: Part<Shared>,
    pub(super) node: Node,
    _cluster: Cluster,
}

impl Stage {
    /// # Errors
    /// Fails if there is no memory for the cluster.
    pub(super) fn new() -> Result<Self, Box<dyn std::error::Error>> {
        // Unread messages stay in the blocks that they arrived in: here those of the row that the next frame needs, so there must
        // be room for all.
        let cluster = Cluster::builder().nodes(3).block_bytes(4096).row_blocks(256);
        let cluster = cluster.set("assembly_bytes", "65536").set("local_parts", "64").start()?;
        let nodes = cluster.nodes();
        let node = nodes.first().cloned().ok_or("a cluster has nodes")?;
        let part = |at: usize, name| nodes.get(at).unwrap_or(&node).register_shared(name, PartKind::Cpu);
        let [out, inbox, here] = [part(0, "out")?, part(0, "inbox")?, part(0, "here")?];
        let (there, full) = (part(1, "there")?, part(2, "full")?);
        Ok(Self { out, there, inbox, here, full, node, _cluster: cluster })
    }

    pub(super) fn session(&self) -> Session {
        Session::new("south", self.there.id(), ROOM, LONGEST)
    }

    /// Delivers a frame. Returns whether the other gateway is not being ignored.
    ///
    /// # Panics
    /// Panics if the frame does not arrive.
    pub(super) fn say(&self, session: &mut Session, frame: &[u8]) -> bool {
        let began = Instant::now();
        while self.out.try_send(self.inbox.id(), frame) == Err(SendError::WouldBlock) {
            self.hear(began);
        }
        let frame = loop {
            if let Some(frame) = self.hear(began) {
                break frame;
            }
        };
        session.receive(&self.node, &self.out, frame).is_ok() && session.is_silent().is_none()
    }

    /// Takes the next frame, if it has arrived. Parts on the same node read what earlier frames brought them, which would hold up
    /// this frame.
    fn hear(&self, began: Instant) -> Option<Message<Shared>> {
        self.out.flush();
        while self.here.try_recv().is_some() {}
        let mut come = std::iter::from_fn(|| self.inbox.try_recv());
        let frame = come.find(|message| message.source() == self.out.id());
        if frame.is_none() {
            assert!(began.elapsed() < SOON, "a frame has not come");
            std::thread::yield_now();
        }
        frame
    }

    /// One turn of the session.
    pub(super) fn turn(&self, session: &mut Session) {
        session.turn(&self.node, &self.out);
        self.out.flush();
        while self.here.try_recv().is_some() {}
        // Unread streams would keep their blocks.
        for part in [&self.here, &self.inbox, &self.full] {
            while let Ok(Some(stream)) = part.try_accept_stream() {
                drop(stream);
            }
        }
    }

    /// Lets a part here ask for all parts there.
    ///
    /// # Panics
    /// Panics if the question does not arrive at the gateway.
    #[cfg(test)]
    pub(super) fn ask_for_all(&self, session: &mut Session) {
        session.update(&self.node);
        let gate = session.gate.as_ref().map(Part::id);
        assert!(gate.is_some_and(|gate| self.here.sender(gate).command(LIST).send(&[]).is_ok()));
        self.here.flush();
        let began = Instant::now();
        while session.questions.is_empty() {
            assert!(began.elapsed() < SOON, "nobody asks");
            self.turn(session);
        }
    }

    /// Takes what was sent to the other gateway.
    pub(super) fn frames(&self) -> impl Iterator<Item = Message<Shared>> {
        std::iter::from_fn(|| self.there.try_recv())
    }

    /// Takes what was sent to the other gateway. Returns the number of frames.
    pub(super) fn listen(&self) -> usize {
        self.frames().count()
    }

    /// The parts that the other gateway may be told of.
    pub(super) fn known(&self) -> [u64; 3] {
        [&self.here, &self.full, &self.inbox].map(|part| part.id().to_bits())
    }

    /// Runs the script in `bytes`, as much as a gateway can do, and ends.
    ///
    /// # Panics
    /// Panics if this end holds more than it may.
    fn play(&self, mut bytes: &[u8]) {
        let mut session = self.session();
        let mut listens = true;
        for _ in 0..FRAMES {
            let [what, one, two, rest @ ..] = bytes else { break };
            bytes = rest;
            match what % 16 {
                0 => session.update(&self.node),
                1 => _ = self.listen(),
                2 => self.turn(&mut session),
                3 => {
                    let (frame, rest) = bytes.split_at(bytes.len().min(usize::from(*one)));
                    bytes = rest;
                    listens &= self.say(&mut session, frame);
                }
                4 => {
                    // A part here looks for a part there.
                    let gate = session.gate.as_ref().map(Part::id);
                    if let Some(gate) = gate {
                        let number = if two % 2 == 0 { 1 } else { 7 };
                        let _ = self.here.sender(gate).no_wait().command(number).send(&[b'a'; 3]);
                        self.here.flush();
                    }
                }
                _ => {
                    let (head, body) = self.frame(*what, *one, *two);
                    let frame = [&head.to_bytes()[..], &vec![*two; body]].concat();
                    listens &= self.say(&mut session, &frame);
                }
            }
            let (holds, most) = (session.holds(), session.bounds.most_held());
            assert!(!listens || holds <= most, "{holds} bytes, and {most} are the most");
        }
        session.end();
        session.finish(&self.node, || true);
        self.listen();
        while self.full.try_recv().is_some() {}
    }

    /// A frame that is valid by itself.
    fn frame(&self, what: u8, one: u8, two: u8) -> (Head, usize) {
        const KINDS: [Kind; 11] = [
            Kind::Data,
            Kind::Data,
            Kind::Return,
            Kind::Stream,
            Kind::Find,
            Kind::Listed,
            Kind::Found,
            Kind::Taken,
            Kind::Gone,
            Kind::Bye,
            Kind::List,
        ];
        const FLAGS: [u8; 6] = [0, 0, MORE, COMMAND, FIRST, LAST];
        let kind = KINDS.get(usize::from(what) / 16 % KINDS.len()).copied().unwrap_or(Kind::Data);
        let flags = FLAGS.get(usize::from(one) % FLAGS.len()).copied().unwrap_or(0);
        let known = self.known();
        let part = |at: u8| known.get(usize::from(at) % 4).copied().unwrap_or_else(|| u64::from(at));
        let body = usize::from(two) * 12;
        let claimed = if flags == MORE { 8 * body } else { body };
        let length = match kind {
            Kind::Data | Kind::Return | Kind::Stream => u32::try_from(claimed).unwrap_or(0),
            _ => u32::from(one) % 8,
        };
        let head = Head { flags, length, count: 1, origin: part(two), dest: part(one), ..Head::new(kind) };
        (head, body.min(usize::from(u16::MAX) - HEAD))
    }
}

/// Lets a gateway send anything.
///
/// # Panics
/// Panics if this end holds more than it may.
pub(crate) fn gateway(bytes: &[u8]) {
    thread_local! {
        static STAGE: Option<Stage> = Stage::new().ok();
    }
    STAGE.with(|stage| {
        if let Some(stage) = stage {
            stage.play(bytes);
        }
    });
}
