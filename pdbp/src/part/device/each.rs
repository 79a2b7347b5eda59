//! Many small messages from device memory.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pdbp_core::OpenBlock;
use pdbp_core::cdu::{CduClass, Full, Packer};
use pdbp_core::id::NodeId;
use pdbp_cuda::Slice;
use pdbp_cuda::device::{Device, DeviceError};
use pdbp_cuda::flow::{
    Arrived, Bundles, Copier, FlowError, Gather, Lent, NotStarted, Outgoing, Pieces, Rows, Step,
};

use super::homes::OpenHome;
use super::{SliceBack, Steps, UNREAD, wait};
use crate::error::SendError;
use crate::part::sending::Patience;
use crate::part::{HoldsPart, Part, Share, Target};

/// Small messages being sent from device memory. Dropping it gives up those that have not left.
///
/// A kernel gathers as many as fit in a block, so that one copy brings them to the host; several blocks are in flight at a time.
/// Only `wait` blocks.
///
/// Each part receives them in the order given, after everything that this part sent it before. Messages that this part sends before
/// they have left may overtake them. A block being filled by the device counts against the row of its node: if a row has no more
/// blocks than the copier keeps in flight, nothing else can be sent to that node until they have left.
pub struct DeviceSendEach<P: HoldsPart + Clone, D: Device> {
    flow: Gather<D, Lent<OpenBlock, OpenHome>>,
    packing: Packing<P>,
}

/// What is left to pack.
struct Packing<P: HoldsPart + Clone> {
    part: P,
    groups: Vec<Group>,
    /// The group whose turn it is.
    turn: usize,
    /// As long as a block.
    scratch: Box<[u8]>,
    /// The content of the blocks in flight.
    layouts: VecDeque<Layout>,
}

/// The messages to the parts of one node.
struct Group {
    node: NodeId,
    runs: Vec<Run>,
    /// The first message not yet in a block.
    next: Mark,
}

/// Messages to one part, of one length and at a constant distance.
#[derive(Clone, Copy)]
struct Run {
    to: Target,
    at: usize,
    apart: usize,
    bytes: u32,
    count: usize,
}

/// A message: the index of its run, and its index within the run.
#[derive(Clone, Copy, Default)]
struct Mark {
    run: usize,
    within: usize,
}

/// The messages of one block.
struct Layout {
    group: usize,
    first: Mark,
    count: usize,
}

impl<S: Share> Part<S> {
    /// Begins to send pieces of a slice of device memory, each as a message, once `after`, the event of the work that writes them,
    /// has completed. They are ordinary messages: a receiver on the host gets them from [`recv`](Self::recv) and
    /// [`recv_batch`](Self::recv_batch), and one with a device from [`recv_each_into_device`](Self::recv_each_into_device).
    ///
    /// Pieces may be empty and may overlap. Each must fit in one block ([`longest`](Self::longest)). Consecutive pieces of one
    /// length cost least when they are a constant distance apart, as the rows of a matrix are, and less still when they are
    /// adjacent.
    ///
    /// ```
    /// use std::{num::NonZeroUsize, rc::Rc, time::Duration};
    /// use pdbp::cuda::device::{Clock, CopyEngine, Simulated};
    /// use pdbp::cuda::{Buffer, flow::Copier};
    /// use pdbp::{Cluster, PartKind};
    ///
    /// # fn device() -> Simulated {
    /// #     let engine = CopyEngine { bytes_per_second: 25_000_000_000, latency: Duration::from_micros(2) };
    /// #     Simulated::new(&Clock::new(), [engine; 2])
    /// # }
    /// let patience = Duration::from_secs(10);
    /// Cluster::local(2)?.run(|node| {
    ///     if node.name() == "node0" {
    ///         // With a device: `pdbp::cuda::device::Cuda::open(0)?`.
    ///         let device = device();
    ///         let copier = Rc::new(Copier::new(&device, NonZeroUsize::new(3).unwrap()));
    ///         let part = node.register("source", PartKind::Gpu).unwrap();
    ///         let to = part.find("sink", patience).unwrap();
    ///         let rows = Buffer::new(&device, 1 << 20).unwrap().into_slice();
    ///         // Each tenth row of 64 bytes.
    ///         let pieces = (0..1000).map(|i| i * 640..i * 640 + 64);
    ///         let mut sending = part.send_device_each(&copier, rows, pieces, None, to).unwrap();
    ///         sending.wait(patience).unwrap();
    ///         assert_eq!(sending.sent(), 1000);
    ///         node.barrier(patience).unwrap();
    ///     } else {
    ///         let part = node.register("sink", PartKind::Cpu).unwrap();
    ///         for _ in 0..1000 {
    ///             assert_eq!(part.recv().unwrap().len(), 64);
    ///         }
    ///         node.barrier(patience).unwrap();
    ///     }
    /// });
    /// # Ok::<(), pdbp::StartError>(())
    /// ```
    ///
    /// # Errors
    /// Returns the slice, with [`DeviceError::OutOfBounds`] if a piece does not lie in the slice, [`SendError::LongerThanBlock`],
    /// or the device's error. Nothing has been sent then.
    pub fn send_device_each<D: Device>(
        &self,
        copier: &Rc<Copier<D>>,
        slice: Slice<D>,
        pieces: impl IntoIterator<Item = Range<usize>>,
        after: Option<&D::Event>,
        to: Target,
    ) -> Result<DeviceSendEach<&Self, D>, SliceBack<D, SendError>> {
        self.send_device_to_each(copier, slice, pieces.into_iter().map(|piece| (piece, to)), after)
    }

    /// As [`send_device_each`](Self::send_device_each), with a destination for each piece. Pieces for parts of the same node share
    /// blocks. The nodes take turns, and a slow one does not hold up the others.
    ///
    /// ```
    /// # use std::{num::NonZeroUsize, rc::Rc, time::Duration};
    /// # use pdbp::cuda::device::{Clock, CopyEngine, Simulated};
    /// # use pdbp::cuda::{Buffer, flow::Copier};
    /// # use pdbp::{Cluster, PartKind};
    /// # let engine = CopyEngine { bytes_per_second: 25_000_000_000, latency: Duration::from_micros(2) };
    /// # let patience = Duration::from_secs(10);
    /// Cluster::local(1)?.run(|node| {
    ///     # let device = Simulated::new(&Clock::new(), [engine; 2]);
    ///     let copier = Rc::new(Copier::new(&device, NonZeroUsize::new(3).unwrap()));
    ///     let [graph, even, odd] = ["graph", "even", "odd"].map(|name| node.register(name, PartKind::Gpu).unwrap());
    ///     let to = [&even, &odd].map(|part| graph.find(part.name(), patience).unwrap());
    ///     let values = Buffer::new(&device, 800).unwrap().into_slice();
    ///     let updates = (0..100).map(|i| (i * 8..i * 8 + 8, to[i % 2]));
    ///     let mut sending = graph.send_device_to_each(&copier, values, updates, None).unwrap();
    ///     sending.wait(patience).unwrap();
    ///     assert_eq!(even.recv_batch(patience).unwrap().message_len(), 8);
    /// });
    /// # Ok::<(), pdbp::StartError>(())
    /// ```
    ///
    /// # Errors
    /// As [`send_device_each`](Self::send_device_each).
    pub fn send_device_to_each<D: Device>(
        &self,
        copier: &Rc<Copier<D>>,
        slice: Slice<D>,
        pieces: impl IntoIterator<Item = (Range<usize>, Target)>,
        after: Option<&D::Event>,
    ) -> Result<DeviceSendEach<&Self, D>, SliceBack<D, SendError>> {
        DeviceSendEach::new(self, copier, slice, pieces, after)
    }
}

impl<P: HoldsPart + Clone, D: Device> DeviceSendEach<P, D> {
    /// As [`Part::send_device_to_each`], for an operation that owns its part, for example an `Rc` of it.
    ///
    /// # Errors
    /// As there.
    pub fn new(
        part: P,
        copier: &Rc<Copier<D>>,
        slice: Slice<D>,
        pieces: impl IntoIterator<Item = (Range<usize>, Target)>,
        after: Option<&D::Event>,
    ) -> Result<Self, SliceBack<D, SendError>> {
        let block_bytes = part.part().shared().settings.block_bytes;
        let packing = match Packing::new(part, pieces, slice.bytes()) {
            Ok(packing) => packing,
            Err(error) => return Err(NotStarted { memory: slice, error }),
        };
        let flow = Gather::new(copier, slice, block_bytes, after);
        let flow = flow.map_err(|e| e.map_err(FlowError::Device))?;
        Ok(Self { flow, packing })
    }

    /// Advances the operation without waiting.
    ///
    /// # Errors
    /// The device or the link has failed ([`SendError`]); what has not left is given up.
    pub fn poll(&mut self) -> Result<Step, FlowError<SendError>> {
        self.flow.poll(&mut self.packing)
    }

    /// Waits until all are sent. `timeout` limits the wait for the link, but not for a kernel or copy that has started, which
    /// itself waits for the program's earlier work.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), and [`SendError::Timeout`], after which it can be resumed.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), FlowError<SendError>> {
        let part = self.packing.part.clone();
        wait(self, part.part(), timeout)
    }

    /// Number of messages sent.
    pub fn sent(&self) -> usize {
        self.flow.sent()
    }

    /// Returns the slice. What has not left is given up.
    pub fn into_slice(self) -> Slice<D> {
        self.flow.into_slice()
    }
}

impl<P: HoldsPart + Clone, D: Device> Steps for DeviceSendEach<P, D> {
    type Error = SendError;

    fn step(&mut self) -> Result<Step, FlowError<SendError>> {
        self.poll()
    }

    fn wait_for_copy(&self) -> Result<bool, DeviceError> {
        self.flow.wait_for_copy()
    }

    fn missing(&self) -> (Vec<NodeId>, &'static str) {
        let left = self.packing.groups.iter().filter(|group| group.next.run < group.runs.len());
        (left.map(|group| group.node).collect(), UNREAD)
    }
}

impl<P: HoldsPart + Clone> Packing<P> {
    fn new(
        holder: P,
        pieces: impl IntoIterator<Item = (Range<usize>, Target)>,
        room: usize,
    ) -> Result<Self, FlowError<SendError>> {
        let part = holder.part();
        let limit = part.longest();
        let nodes = usize::from(part.shared().engine().config().nodes);
        let mut group_of = vec![usize::MAX; nodes];
        let mut groups: Vec<Group> = Vec::new();
        for (piece, to) in pieces {
            let (at, bytes) = (piece.start, piece.len());
            if piece.start > piece.end || piece.end > room {
                return Err(FlowError::Device(DeviceError::OutOfBounds { at, bytes, room }));
            }
            if bytes > limit {
                return Err(FlowError::Link(SendError::LongerThanBlock { bytes, limit }));
            }
            match part.check_target(to) {
                // Whether it may be sent to is asked again for each block.
                Ok(()) | Err(SendError::WouldBlock) => {}
                Err(error) => return Err(FlowError::Link(error)),
            }
            let node = to.node();
            let Some(group) = group_of.get_mut(node.index()) else {
                return Err(FlowError::Link(SendError::NoSuchNode(node)));
            };
            if *group == usize::MAX {
                *group = groups.len();
                groups.push(Group { node, runs: Vec::new(), next: Mark::default() });
            }
            if let Some(group) = groups.get_mut(*group) {
                // A block is shorter than 4 GiB.
                group.add(to, at, bytes as u32);
            }
        }
        let scratch = vec![0; part.shared().settings.block_bytes].into();
        Ok(Self { part: holder, groups, turn: 0, scratch, layouts: VecDeque::new() })
    }
}

impl<P: HoldsPart + Clone> Bundles for Packing<P> {
    type Block = Lent<OpenBlock, OpenHome>;
    type Error = SendError;

    fn poll_bundle(&mut self, pieces: &mut Pieces<'_>) -> Result<Arrived<Self::Block>, SendError> {
        let holder = self.part.clone();
        let (part, groups) = (holder.part(), self.groups.len());
        let mut left = false;
        for at in (0..groups).map(|i| (self.turn + i) % groups) {
            let Some(group) = self.groups.get_mut(at) else { continue };
            let Some(first) = group.runs.get(group.next.run) else { continue };
            left = true;
            match part.check_target(first.to) {
                Ok(()) => {}
                Err(SendError::WouldBlock) => {
                    part.poll();
                    continue;
                }
                Err(error) => return Err(error),
            }
            let mut block = match part.open_block(group.node, Patience::None) {
                Ok((block, _)) => block,
                Err(SendError::WouldBlock) => continue,
                Err(e) => return Err(e),
            };
            if first.bytes as usize <= part.shared().longest_to(group.node) {
                block.limit(part.shared().body(group.node));
            }
            let route = part.route(first.to, CduClass::ShortMessage, 0);
            let (count, next, begin) = lay_out(part, &block, &mut self.scratch, group, pieces);
            debug_assert!(count > 0, "a message of at most `longest` bytes fits an empty block");
            let block = Lent::open(block, OpenHome(Arc::clone(part.shared())), |block| {
                // Bytes left for messages.
                let room = (block.room() & !7).saturating_sub(begin);
                block.reserve(route, room).unwrap_or(&mut [])
            });
            self.layouts.push_back(Layout { group: at, first: group.next, count });
            group.next = next;
            self.turn = at + 1;
            return Ok(Arrived::Block(block));
        }
        Ok(if left { Arrived::Nothing } else { Arrived::End })
    }
}

impl<P: HoldsPart + Clone> Outgoing for Packing<P> {
    /// Writes the headers; the payloads are already in place.
    fn send(&mut self, block: Self::Block) -> Result<(), SendError> {
        let (Some(layout), Some(mut block)) = (self.layouts.pop_front(), block.into_token()) else {
            return Ok(());
        };
        let runs = self.groups.get(layout.group).map_or(&[][..], |group| &group.runs);
        block.rewind(Packer::new());
        let room = block.room();
        let part = self.part.part();
        let reserve = |to, bytes, most| {
            let route = part.route(to, CduClass::ShortMessage, 0);
            let fitting = block.reserve_train(route, bytes, most)?.1;
            Ok((0, fitting))
        };
        let packed = pack(runs, layout.first, layout.count, room, reserve, |rows, _| rows.count);
        debug_assert_eq!(packed.0, layout.count, "it fitted before");
        let mut engine = part.shared().engine();
        engine.submit(block);
        part.poll_with(&mut engine);
        Ok(())
    }
}

impl Group {
    /// Adds a message after the others.
    fn add(&mut self, to: Target, at: usize, bytes: u32) {
        if let Some(run) = self.runs.last_mut()
            && (run.to, run.bytes) == (to, bytes)
        {
            if run.count == 1 && at >= run.at {
                run.apart = at - run.at;
            }
            if at >= run.at && run.apart.checked_mul(run.count) == Some(at - run.at) {
                run.count += 1;
                return;
            }
        }
        self.runs.push(Run { to, at, apart: 0, bytes, count: 1 });
    }
}

impl Run {
    /// `count` of its messages, beginning with `from`.
    fn rows(&self, from: usize, count: usize) -> Rows {
        Rows { at: self.at + from * self.apart, apart: self.apart, bytes: self.bytes as usize, count }
    }
}

/// Lays out as many messages of the group as fit in an empty block, up to the first for another part that nothing may be sent to now
/// or that has gone; returns their number, the next one, and the offset of the first in the block. Headers are written to the scratch buffer, which is hot in the cache; the block stays untouched until the device
/// has written it.
fn lay_out(
    part: &Part<impl Share>,
    block: &OpenBlock,
    scratch: &mut [u8],
    group: &Group,
    pieces: &mut Pieces<'_>,
) -> (usize, Mark, usize) {
    // A packer for this block's route.
    let mut packer = block.mark();
    let (room, mut begin) = (block.room().min(scratch.len()), None);
    let body = scratch.get_mut(..room).unwrap_or(&mut []);
    let first = group.runs.get(group.next.run).map(|run| run.to);
    let reserve = |to, bytes, most| {
        if Some(to) != first && part.check_target(to).is_err() {
            return Err(Full);
        }
        let route = part.route(to, CduClass::ShortMessage, 0);
        let (room, fitting) = packer.reserve_train(body, route, bytes, most)?;
        let length = room.len();
        Ok((packer.written() - length, fitting))
    };
    let place = |rows, at| pieces.push_rows(rows, at - *begin.get_or_insert(at));
    let (count, next) = pack(&group.runs, group.next, usize::MAX, room, reserve, place);
    (count, next, begin.unwrap_or(0))
}

/// Packs as many messages as there is room for, from `first` on, at most `most`; returns their number and the next one. `reserve`
/// makes room for a train and returns its offset and how many of its messages fit; `place` is passed which messages go where, and
/// returns how many of them it takes.
fn pack(
    runs: &[Run],
    first: Mark,
    most: usize,
    room: usize,
    mut reserve: impl FnMut(Target, usize, u32) -> Result<(usize, u32), Full>,
    mut place: impl FnMut(Rows, usize) -> usize,
) -> (usize, Mark) {
    let (mut next, mut packed) = (first, 0);
    while packed < most
        && let Some(run) = runs.get(next.run)
    {
        let (to, bytes) = (run.to, run.bytes as usize);
        let alike = alike(runs, next, (most - packed).min(1 + room / bytes.max(1)));
        let Ok((begin, fitting)) = reserve(to, bytes, alike as u32) else { break };
        let end = packed + fitting as usize;
        let mut at = begin;
        while packed < end
            && let Some(run) = runs.get(next.run)
        {
            let asked = (end - packed).min(run.count - next.within);
            let taken = place(run.rows(next.within, asked), at);
            (packed, at, next.within) = (packed + taken, at + taken * bytes, next.within + taken);
            if next.within == run.count {
                next = Mark { run: next.run + 1, within: 0 };
            }
            if taken < asked {
                return (packed, next);
            }
        }
    }
    (packed, next)
}

/// Number of consecutive messages, at most `most`, that have the target and length of the first.
fn alike(runs: &[Run], first: Mark, most: usize) -> usize {
    let rest = runs.get(first.run..).unwrap_or(&[]);
    let Some(run) = rest.first() else { return 0 };
    let mut alike = run.count - first.within;
    let others = rest.iter().skip(1).take_while(|other| (other.to, other.bytes) == (run.to, run.bytes));
    for other in others {
        if alike >= most {
            break;
        }
        alike += other.count;
    }
    alike.min(most)
}

impl<P: HoldsPart + Clone, D: Device> fmt::Debug for DeviceSendEach<P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceSendEach({} sent)", self.sent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cluster, PartKind};

    #[test]
    fn a_message_of_a_device_to_a_node_that_there_is_not_says_so_and_not_that_it_failed() {
        let cluster = Cluster::local(2).unwrap();
        let part = cluster.node(0).unwrap().register("a", PartKind::Cpu).unwrap();
        for bits in [0x1_0007_0000, 0x7_0000_u64] {
            let nobody = Target::from_bits(bits).unwrap();
            let refused = Packing::new(&part, [(0..1, nobody)], 1).err();
            assert!(
                matches!(&refused, Some(FlowError::Link(SendError::NoSuchNode(node))) if *node == nobody.node()),
                "{refused:?}"
            );
        }
    }
}
