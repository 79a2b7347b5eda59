//! A link: a row of each matrix, and the state of the connection to the node at the other end.

mod numbers;
mod state;
mod table;
mod work;

use zerocopy::FromBytes;

use super::config::Checksum;
use super::control_queue::ControlQueue;
use super::posting::SPARE_POSTS;
use super::round::Round;
use super::termination::Tally;
use crate::cdu::{self, BlockClass, BlockHeader, MAGIC, VERSION, flag};
use crate::id::NodeId;
use crate::matrix::{Queue, RecvRow, SendRow, kept};
use crate::mesp::Control;
use crate::routing::LinkId;
use crate::transport::{Op, Refused, Transport};
use crate::umb::{BlockMemory, BlockState, DeliveryKind, SealedBlock, Umb};
pub(super) use numbers::{MAX_MISSING, Missing, Numbers};
pub(super) use state::LinkState;
pub(super) use table::Links;
pub(super) use work::Work;

/// A link of this node: SCBP_i and RCBP_i, the state of the link, and the messages that the two nodes have for each other. A node
/// also has a link to itself, through which its own parts reach each other.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) id: LinkId,
    pub(super) peer: NodeId,
    pub(super) state: LinkState,
    /// The session. Blocks from earlier sessions are ignored.
    pub(super) session: u32,
    /// How often data has stopped: because the link failed, or because one of the two nodes was no longer a member.
    pub(super) closings: u32,
    /// Whether blocks arrive in blocks posted by the receiver; otherwise they are read in place.
    pub(super) posted: bool,
    /// Maximum number of data blocks with the transport.
    pub(super) places: u32,
    /// SCBP_i.
    pub(super) send: SendRow,
    /// RCBP_i.
    pub(super) recv: RecvRow,
    pub(super) numbers: Numbers,
    pub(super) control: ControlQueue,
    pub(super) round: Round,
    /// Work left for a later poll, and the next link with work.
    work: Work,
    next: LinkId,
    /// Whether the peer was declared down and not all members know yet.
    pub(super) leaves_place: bool,
    /// Whether space is kept for the link while it is not up.
    pub(super) reserved: bool,
    /// Messages that the peer did not receive, or may not have, and that no [`PeerFailed`](super::Event::PeerFailed) has counted.
    pub(super) undelivered: u64,
    /// At the primary: the low half of the number of the block expected next, when it last looked whether the peer lives.
    pub(super) heard: u32,
    /// At the primary: barriers that the peer has arrived at.
    pub(super) arrived: u32,
    /// At a primary that does not know which barrier is next: whether the peer does not know either.
    pub(super) asks_barrier: bool,
    pub(super) tally: Tally,
}

impl Default for Link {
    fn default() -> Self {
        Self::new(LinkId::from_index(0), NodeId::from_index(0))
    }
}

/// A block that the transport refused, and its answer.
type Refusal<E> = (u32, Refused<E>);

/// What a block carries, as it matters to queues and credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payload {
    /// Messages between engines: need no credit, and use places that data leaves free.
    Control,
    /// Commands, which overtake other data.
    Urgent,
    Data,
}

/// What a block's header tells about its messages. For an arrived block, this is a copy of the checked header, since a peer that
/// shares the memory could change the original.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    pub(super) class: BlockClass,
    pub(super) flags: u16,
    /// Bytes of the body.
    pub(super) length: u32,
    pub(super) messages: u32,
    pub(super) part: u16,
    /// For a control block: its round.
    pub(super) stream: u32,
    pub(super) segment: u32,
    pub(super) group: u16,
}

impl Label {
    /// The label of messages, or of control messages, in a body of `length` bytes, outside streams and for several parts.
    #[inline]
    pub(super) fn new(class: BlockClass, length: u32, messages: u32) -> Self {
        Self { class, flags: 0, length, messages, part: 0, stream: 0, segment: 0, group: 0 }
    }

    /// The label of a block with this header.
    #[inline]
    pub(super) fn of(header: &BlockHeader) -> Self {
        Self {
            class: header.class(),
            flags: header.flags.get(),
            length: header.length.get(),
            messages: header.messages(),
            part: header.part.get(),
            stream: header.stream.get(),
            segment: header.segment.get(),
            group: header.group.get(),
        }
    }

    /// Whether all its messages are for one part.
    #[inline]
    pub(super) fn is_for_one_part(&self) -> bool {
        self.class == BlockClass::Message && self.has(flag::UNIFORM)
    }

    /// For a block of messages: the kind of the deliveries made from it.
    #[inline]
    pub(super) fn kind(&self) -> DeliveryKind {
        DeliveryKind::Messages { urgent: self.has(flag::URGENT) }
    }

    /// Whether every bit of `flags` is set.
    #[inline]
    pub(super) fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}

impl Payload {
    /// Whether it needs credit.
    #[inline]
    pub(super) fn is_data(self) -> bool {
        self != Self::Control
    }
}

impl Link {
    pub(super) fn new(id: LinkId, peer: NodeId) -> Self {
        Self {
            id,
            peer,
            state: LinkState::default(),
            session: 0,
            closings: 0,
            posted: false,
            places: 0,
            send: SendRow::default(),
            recv: RecvRow::default(),
            numbers: Numbers::default(),
            control: ControlQueue::default(),
            round: Round::default(),
            work: Work::default(),
            next: LinkId::NONE,
            leaves_place: false,
            reserved: false,
            undelivered: 0,
            heard: 0,
            arrived: 0,
            asks_barrier: false,
            tally: Tally::default(),
        }
    }

    /// Whether data is exchanged.
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.state.is_up()
    }

    /// Notes that the link has failed: nothing more is sent to the peer or asked of it.
    pub(super) fn fail(&mut self) {
        self.state.fail();
        self.forget_messages();
    }

    /// Notes that the settings differ: in this session, nothing more is sent to the peer or asked of it.
    pub(super) fn differ(&mut self) {
        self.state.differ();
        self.forget_messages();
    }

    fn forget_messages(&mut self) {
        self.control.clear();
        self.tally = Tally::default();
    }

    /// Starts everything over when the link is up again. The peer's credit here is announced anew, and this node has none until
    /// the peer announces some.
    pub(super) fn restore(&mut self, session: u32) {
        self.session = session;
        self.state.restore();
        self.numbers = Numbers::default();
        self.control.restart();
        self.round = Round::default();
        self.tally = Tally::default();
        self.recv.old = self.recv.space.used();
    }

    /// Whether its rows have enough space to carry anything at all.
    pub(super) fn has_space(&self) -> bool {
        let receives = self.recv.window() > 0 && (!self.posted || self.recv.posted > SPARE_POSTS);
        self.send.space.real() > 0 && receives
    }

    /// The peer's credit: none until its settings are known.
    #[inline]
    pub(super) fn credit(&self) -> u32 {
        if self.state.has_agreed() { self.recv.window() } else { 0 }
    }

    /// The queue of blocks waiting to leave as `payload`.
    #[inline]
    fn queue_mut(&mut self, payload: Payload) -> &mut Queue {
        match payload {
            Payload::Control => &mut self.send.control,
            Payload::Urgent => &mut self.send.urgent,
            Payload::Data => &mut self.send.queue,
        }
    }

    /// Queues a sealed block.
    #[inline]
    pub(super) fn enqueue<M: BlockMemory>(&mut self, umb: &mut Umb<'_, M>, index: u32, payload: Payload) {
        self.queue_mut(payload).push_back(umb, index);
    }

    /// The kind of waiting data that the link's credit and places allow to leave now.
    #[inline]
    pub(super) fn next_data(&self) -> Option<Payload> {
        let outstanding = self.numbers.outstanding();
        let window = u64::from(self.numbers.window);
        let kept = u64::from(kept(self.numbers.window));
        if !self.is_up() || self.numbers.data_in_flight >= self.places {
            return None;
        }
        if !self.send.urgent.is_empty() && outstanding < window {
            return Some(Payload::Urgent);
        }
        (!self.send.queue.is_empty() && outstanding + kept < window).then_some(Payload::Data)
    }

    /// Whether a data block about to be queued may leave at once: nothing is waiting ahead of it, and credit and places allow it.
    #[inline]
    pub(super) fn may_leave(&self, payload: Payload) -> bool {
        let kept = if payload == Payload::Urgent { 0 } else { kept(self.numbers.window) };
        self.send.waiting() == 0
            && self.is_up()
            && self.numbers.data_in_flight < self.places
            && self.numbers.outstanding() + u64::from(kept) < u64::from(self.numbers.window)
    }

    /// Waiting control blocks, which need no credit.
    #[inline]
    pub(super) fn next_control(&self) -> Option<Payload> {
        (!self.send.control.is_empty()).then_some(Payload::Control)
    }

    /// The credit that this node could use: for blocks in flight and for waiting blocks.
    #[inline]
    pub(super) fn wanted(&self) -> u64 {
        self.numbers.outstanding() + u64::from(self.send.waiting())
    }

    /// Queues a control message for the peer, if it can get any. Returns `false` if there is no room, because the peer asked for
    /// more than it should.
    pub(super) fn queue_control(&mut self, message: Control) -> bool {
        self.state.is_down() || self.state.is_incompatible() || self.control.push(message)
    }

    /// Submits the first block of a queue to the transport. `None` if the queue is empty.
    ///
    /// # Errors
    /// The block that did not leave, and the transport's refusal.
    #[inline]
    pub(super) fn send_first<T: Transport, M: BlockMemory>(
        &mut self,
        payload: Payload,
        umb: &mut Umb<'_, M>,
        transport: &mut T,
        checksum: Checksum,
    ) -> Option<Result<(), Refusal<T::Error>>> {
        let index = self.queue_mut(payload).pop_front(umb)?;
        let Some(block) = umb.lend_sealed(index) else {
            debug_assert!(false, "block {index} was queued while somebody had it");
            return None;
        };
        let sent = self.submit((index, block), payload, umb, transport, checksum);
        Some(sent.map_err(|refused| (index, refused)))
    }

    /// Submits a block, whose token nobody else holds, to the transport.
    ///
    /// # Errors
    /// The transport's refusal.
    #[inline(always)]
    pub(super) fn submit<T: Transport, M: BlockMemory>(
        &mut self,
        (index, mut block): (u32, SealedBlock),
        payload: Payload,
        umb: &mut Umb<'_, M>,
        transport: &mut T,
        checksum: Checksum,
    ) -> Result<(), Refused<T::Error>> {
        let credit = self.credit();
        self.stamp(&mut block, payload, (credit, checksum));
        transport.submit(Op::Send { peer: self.peer, block })?;
        self.on_sent(umb, index, (payload, credit));
        Ok(())
    }

    /// Requeues a block that the transport has refused, at the front.
    pub(super) fn requeue<M: BlockMemory>(&mut self, umb: &mut Umb<'_, M>, index: u32, payload: Payload) {
        self.queue_mut(payload).push_front(umb, index);
    }

    /// Notes that the transport has taken a block with the next numbers, which carries the peer's credit.
    #[inline]
    pub(super) fn on_sent<M: BlockMemory>(
        &mut self,
        umb: &mut Umb<'_, M>,
        index: u32,
        (payload, credit): (Payload, u32),
    ) {
        if let Some(entry) = umb.entry(index) {
            entry.state = BlockState::InFlight;
        }
        self.numbers.on_sent(payload, credit);
    }

    /// Writes the header fields that do not depend on when the block leaves.
    #[inline]
    pub(super) fn write_header(&self, block: &mut SealedBlock, source: NodeId, label: &Label) {
        if let Ok((header, _)) = BlockHeader::mut_from_prefix(block.header_mut()) {
            *header = BlockHeader {
                magic: MAGIC,
                version: VERSION,
                class: label.class as u8,
                source: source.raw().into(),
                dest: self.peer.raw().into(),
                session: 0.into(),
                length: label.length.into(),
                sequence: 0.into(),
                released: 0.into(),
                window: 0.into(),
                flags: label.flags.into(),
                part: label.part.into(),
                stream: label.stream.into(),
                segment: label.segment.into(),
                checksum: 0.into(),
                messages: label.messages.into(),
                group: label.group.into(),
                data: 0.into(),
                wanted: 0.into(),
            };
        }
    }

    /// Writes session, sequence, credit and checksum.
    #[inline(always)]
    pub(super) fn stamp(
        &self,
        block: &mut SealedBlock,
        payload: Payload,
        (credit, checksum): (u32, Checksum),
    ) {
        let wanted = self.wanted() + u64::from(payload.is_data());
        if let Ok((header, _)) = BlockHeader::mut_from_prefix(block.header_mut()) {
            header.wanted.set(wanted.min(u64::from(u16::MAX)) as u16);
            header.session.set(self.session);
            header.sequence.set(self.numbers.sent);
            header.data.set(self.numbers.data_sent as u32);
            header.released.set(self.numbers.released);
            header.window.set(credit);
        }
        if checksum != Checksum::Off {
            write_checksum(block);
        }
    }
}

#[inline(never)]
fn write_checksum(block: &mut SealedBlock) {
    if let Ok((header, _)) = BlockHeader::mut_from_prefix(block.header_mut()) {
        header.flags.set(header.flags.get() | flag::CHECKSUM);
    }
    let Ok((header, body)) = BlockHeader::ref_from_prefix(block.bytes()) else { return };
    let sum = cdu::checksum(header, body);
    if let Ok((header, _)) = BlockHeader::mut_from_prefix(block.header_mut()) {
        header.checksum.set(sum);
    }
}
