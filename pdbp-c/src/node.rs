//! Nodes: names, barriers, progress, and what can be read of them.

use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::task::Poll;
use std::time::Duration;

use pdbp::{Event, Node, NodeId, NodeStats, Progress, RowStats, Target, WaitError, WakeFd};

use crate::call::{MaybeOut, Out, Place, Ret, Text, Wait, exports, named, room};
use crate::freed::unboxed;
use crate::handle::{Free, Handle, Header, In, Look};
use crate::status::{Failure, Status};

/// `pdbp_node`.
#[repr(C)]
pub struct NodeHandle {
    header: Header,
    pub(crate) node: Node,
    /// From the first call that asks for it.
    wakes: OnceLock<WakeFd>,
}

impl NodeHandle {
    pub(crate) fn new(node: Node) -> Self {
        Self { header: Header::new::<Self>(), node, wakes: OnceLock::new() }
    }

    /// The oldest event. If there is none, the descriptor, if somebody has asked for it, becomes readable when there is.
    fn next_event(&self) -> Result<Option<Event>, Failure> {
        let Some(wakes) = self.wakes.get() else { return Ok(self.node.next_event()) };
        wakes.clear();
        match self.node.poll_event(&mut wakes.context()) {
            Poll::Ready(event) => Ok(Some(event?)),
            Poll::Pending => Ok(None),
        }
    }
}

// SAFETY: see the struct.
unsafe impl Handle for NodeHandle {
    const TAG: u32 = 0x4e4f_4445;
    #[cfg(test)]
    const POINTER: &'static str = "pdbp_node *";
    fn header(&self) -> &Header {
        &self.header
    }
    #[cfg(test)]
    fn sample(world: &crate::tests::World) -> *mut Self {
        world.node.get()
    }
}

/// `pdbp_target`: a part, as a plain value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct TargetBits(pub u64);

/// `PDBP_NOBODY`: no part.
pub const NOBODY: TargetBits = TargetBits(u64::MAX);

impl From<Target> for TargetBits {
    #[inline(always)]
    fn from(target: Target) -> Self {
        Self(target.to_bits())
    }
}

impl TargetBits {
    /// The part.
    ///
    /// # Errors
    /// A value that no part has.
    #[inline(always)]
    pub(crate) fn target(self) -> Result<Target, Failure> {
        match Target::from_bits(self.0) {
            Some(target) => Ok(target),
            None => Err(self.nobody()),
        }
    }

    #[cold]
    fn nobody(self) -> Failure {
        Failure::new(
            Status::E_NO_PART,
            format!("{:#x} is not a part; use one that pdbp_find returned", self.0),
        )
    }
}

impl Ret for TargetBits {
    fn failed(_: Status) -> Self {
        NOBODY
    }
    #[cfg(test)]
    fn c_name() -> &'static str {
        "pdbp_target"
    }
}

/// The index of a node; `UINT16_MAX` if there is none.
#[repr(transparent)]
pub struct Index(u16);

impl Ret for Index {
    fn failed(_: Status) -> Self {
        Self(u16::MAX)
    }
    #[cfg(test)]
    fn c_name() -> &'static str {
        "uint16_t"
    }
}

/// `pdbp_node_stats`. Later versions add fields at its end.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "the header says what they are")]
pub struct StatsInfo {
    pub size: u32,
    pub free_blocks: u32,
    pub blocks_sent: u64,
    pub bytes_sent: u64,
    pub messages_sent: u64,
    pub blocks_received: u64,
    pub bytes_received: u64,
    pub messages_received: u64,
    pub stalls: u64,
    pub held_blocks: u64,
    pub unroutable: u64,
    pub undelivered: u64,
    pub malformed: u64,
    pub node: u16,
    pub private_pipes: u16,
    pub stream_pipes: u16,
    pub reserved: u16,
}

impl From<&NodeStats> for StatsInfo {
    fn from(stats: &NodeStats) -> Self {
        let sum = |rows: &[RowStats], of: fn(&RowStats) -> u64| rows.iter().map(of).sum();
        let [private, _, stream] = stats.pipes;
        Self {
            size: size_of::<Self>() as u32,
            free_blocks: stats.free_blocks,
            blocks_sent: sum(&stats.send, |row| row.blocks),
            bytes_sent: sum(&stats.send, |row| row.bytes),
            messages_sent: sum(&stats.send, |row| row.messages),
            blocks_received: sum(&stats.recv, |row| row.blocks),
            bytes_received: sum(&stats.recv, |row| row.bytes),
            messages_received: sum(&stats.recv, |row| row.messages),
            stalls: sum(&stats.send, |row| row.stalls),
            held_blocks: sum(&stats.recv, |row| row.space.used().into()),
            unroutable: stats.counters.unroutable,
            undelivered: stats.counters.undelivered,
            malformed: stats.counters.malformed,
            node: stats.node.raw(),
            private_pipes: private.busy,
            stream_pipes: stream.busy,
            reserved: 0,
        }
    }
}

/// `pdbp_event_info`. Later versions add fields at its end.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "the header says what they are")]
pub struct EventInfo {
    pub size: u32,
    pub kind: u32,
    pub count: u64,
    pub part: u64,
    pub number: u32,
    pub peer: u16,
    pub other: u16,
}

macro_rules! kinds {
    ($($name:ident = $code:literal;)*) => {
        /// The kinds of events in the header.
        #[expect(missing_docs, reason = "the header says what they are")]
        pub mod kind {
            $(pub const $name: u32 = $code;)*
        }
        #[cfg(test)]
        pub(crate) const KINDS: &[(&str, u32)] = &[$((concat!("PDBP_EVENT_", stringify!($name)), $code)),*];
    };
}

kinds! {
    OTHER = 0;
    CHANGED = 1;
    MALFORMED = 2;
    UNROUTABLE = 3;
    PEER_FAILED = 4;
    PEER_RESTORED = 5;
    SETTINGS_DIFFER = 6;
    NEW_MASTER = 7;
    EXPELLED = 8;
    NOT_PASSED_ON = 9;
    STREAM_STOPPED = 10;
    LINK_ENDED = 11;
    STREAM_BROKEN = 12;
    NODE_UP = 13;
    NODE_DOWN = 14;
}

impl From<Event> for EventInfo {
    fn from(event: Event) -> Self {
        let of = |kind| Self {
            size: size_of::<Self>() as u32,
            kind,
            part: NOBODY.0,
            peer: u16::MAX,
            other: u16::MAX,
            ..Self::default()
        };
        let at = |kind, peer: NodeId| Self { peer: peer.raw(), ..of(kind) };
        match event {
            Event::Changed { part, accepted } => {
                Self { part: part.to_bits(), count: accepted.into(), ..at(kind::CHANGED, part.node()) }
            }
            Event::Malformed { peer, .. } => at(kind::MALFORMED, peer),
            Event::Unroutable { peer, part, messages } => {
                Self { number: part.into(), count: messages.into(), ..at(kind::UNROUTABLE, peer) }
            }
            Event::PeerFailed { peer, undelivered } => {
                Self { count: undelivered, ..at(kind::PEER_FAILED, peer) }
            }
            Event::PeerRestored { peer } => at(kind::PEER_RESTORED, peer),
            Event::SettingsDiffer(found) => at(kind::SETTINGS_DIFFER, found.peer),
            Event::NewMaster { node, epoch } => Self { number: epoch.0, ..at(kind::NEW_MASTER, node) },
            Event::Expelled => of(kind::EXPELLED),
            Event::NodeUp { node } => at(kind::NODE_UP, node),
            Event::NodeDown { node } => at(kind::NODE_DOWN, node),
            Event::NotForwarded { source, dest, messages } => {
                Self { other: dest.raw(), count: messages.into(), ..at(kind::NOT_PASSED_ON, source) }
            }
            Event::StreamStopped { part, number, relay, dest } => Self {
                part: part.to_bits(),
                number: number.0,
                other: dest.raw(),
                ..at(kind::STREAM_STOPPED, relay)
            },
            Event::LinkEnded { peer } => at(kind::LINK_ENDED, peer),
            Event::StreamBroken { mapping } => {
                Self { number: mapping.number.0, ..at(kind::STREAM_BROKEN, mapping.source) }
            }
            _ => of(kind::OTHER),
        }
    }
}

/// The size that the caller has set of a struct that begins with it.
///
/// # Errors
/// It is below the least size that the struct has had.
fn size_of_struct<T>(place: &Place<T>, least: usize) -> Result<u32, Failure> {
    // SAFETY: the caller has set the size, which is the first field (the header's promise).
    let room = unsafe { place.pointer().cast::<u32>().read() };
    if (room as usize) < least {
        return Err(Failure::new(
            Status::E_ARGUMENT,
            format!("size is {room}; set it to the size of the struct, at least {least} bytes"),
        ));
    }
    Ok(room)
}

/// Fills as much of a struct that begins with its size as the caller has.
fn put<T: Copy>(place: &Place<T>, mut value: T, least: usize) -> Result<Status, Failure> {
    let room = size_of_struct(place, least)?;
    let bytes = size_of::<T>().min(room as usize);
    let from = (&raw mut value).cast::<MaybeUninit<u8>>();
    // SAFETY: the struct begins with its size.
    unsafe { from.cast::<u32>().write(room) }
    // SAFETY: so many bytes are in both; the one is a variable here, so that they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(from, place.pointer().cast(), bytes) }
    Ok(Status::DONE)
}

/// Bytes of [`StatsInfo`] in version 0.1.
const STATS_LEAST: usize = offset_of!(StatsInfo, reserved) + 2;
/// Bytes of [`EventInfo`] in version 0.1.
const EVENT_LEAST: usize = offset_of!(EventInfo, other) + 2;

/// A descriptor for loops over `poll`.
pub(crate) fn descriptor() -> Result<WakeFd, Failure> {
    WakeFd::new()
        .map_err(|error| Failure::new(Status::E_FULL, format!("cannot create a descriptor: {error}")))
}

exports! {
    /// The part with an address.
    fn pdbp_find(node: In<NodeHandle>, address: Text, wait: Wait, out: Out<TargetBits>) -> Status {
        let node = &node.node;
        let found = if wait.is_none() { node.lookup(address) } else { node.find(address, wait.on(node)) };
        out.put(found?.into());
        Ok(Status::DONE)
    }

    /// The index of a node; `UINT16_MAX` for null.
    fn pdbp_node_index(node: Look<NodeHandle>) -> Index {
        Ok(Index(node.node.id().raw()))
    }

    /// Frees a node; it runs on while there are other handles of it, of its cluster or its parts.
    fn pdbp_node_free(node: Free<NodeHandle>) -> () {
        let Some(node) = node else { return Ok(()) };
        // SAFETY: `pdbp_cluster_node` has made it, and this is its end.
        drop(unsafe { unboxed(node) });
        Ok(())
    }

    /// Waits until every node has called this.
    fn pdbp_barrier(node: In<NodeHandle>, wait: Wait) -> Status {
        node.node.barrier(wait.on(&node.node)).map_err(|e| wait.failure(e))?;
        Ok(Status::DONE)
    }

    /// Waits until everything that was sent has been received.
    fn pdbp_quiesce(node: In<NodeHandle>, wait: Wait) -> Status {
        node.node.quiesce(wait.on(&node.node)).map_err(|e| wait.failure(e))?;
        Ok(Status::DONE)
    }

    /// Makes progress.
    fn pdbp_poll(node: In<NodeHandle>, next: MaybeOut<i64>) -> Status {
        let polled = node.node.poll();
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        next.put(if polled.worked { 0 } else { polled.next.map_or(-1, nanos) });
        Ok(Status::DONE)
    }

    /// Ends calls that wait.
    fn pdbp_interrupt(node: In<NodeHandle>) -> () {
        node.node.interrupt();
        Ok(())
    }

    /// The members of the cluster.
    fn pdbp_members(node: In<NodeHandle>, to: MaybeOut<u16>, rooms: usize, members: Out<usize>) -> Status {
        let found = node.node.members();
        // SAFETY: null, or the header's promise.
        let places = unsafe { room(to.pointer(), if to.pointer().is_null() { 0 } else { rooms }) }?;
        for (place, member) in places.iter_mut().zip(&found) {
            place.write(member.raw());
        }
        members.put(found.len());
        Ok(Status::DONE)
    }

    /// The oldest event that nobody has taken.
    fn pdbp_event(node: In<NodeHandle>, info: Out<EventInfo>) -> Status {
        // With a size that is wrong no event is taken.
        size_of_struct(&info, EVENT_LEAST)?;
        let event = node.next_event()?.ok_or(Failure::END)?;
        put(&info, EventInfo::from(event), EVENT_LEAST)
    }

    /// As `pdbp_event`; waits for one.
    fn pdbp_wait_event(node: In<NodeHandle>, info: Out<EventInfo>, wait: Wait) -> Status {
        size_of_struct(&info, EVENT_LEAST)?;
        let event = node.node.wait_event(wait.on(&node.node)).map_err(|e| wait.failure(e))?;
        put(&info, EventInfo::from(event), EVENT_LEAST)
    }

    /// The descriptor that `pdbp_event` arms.
    fn pdbp_event_fd(node: In<NodeHandle>, fd: Out<c_int>) -> Status {
        if node.node.settings().progress == Progress::Inline {
            return Err(WaitError::NobodyPolls.into());
        }
        let wakes = match node.wakes.get() {
            Some(wakes) => wakes,
            None => {
                // If another thread has been faster, this one's descriptor is dropped.
                let wakes = descriptor()?;
                node.wakes.get_or_init(|| wakes)
            }
        };
        fd.put(wakes.as_fd().as_raw_fd());
        Ok(Status::DONE)
    }

    /// What can be read of a running node.
    fn pdbp_stats(node: In<NodeHandle>, stats: Out<StatsInfo>) -> Status {
        put(&stats, StatsInfo::from(&node.node.stats()), STATS_LEAST)
    }
}

named! {
    NodeHandle, "pdbp_node";
    TargetBits, "pdbp_target";
    StatsInfo, "pdbp_node_stats";
    EventInfo, "pdbp_event_info";
}
