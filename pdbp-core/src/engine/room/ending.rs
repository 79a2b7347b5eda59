//! The end of a message in segments at its sender: sent or given up.

use zerocopy::IntoBytes;

use super::super::parts::Local;
use super::super::{Engine, OpenError};
use super::table::State;
use super::{ABORTED, Announcement, Answer, RoomEntry, RoomRequest};
use crate::cdu::{CduClass, Route, SegmentHeader};
use crate::id::PartId;
use crate::policy::SpacePolicy;
use crate::transport::Transport;
use crate::umb::BlockMemory;

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Ends the message for which a part has asked for space. `sent` means that its last segment was submitted. Otherwise the
    /// message is given up, and the receiver is notified as soon as there is room for that.
    pub fn end_room(&mut self, from: PartId, sent: bool) {
        let Some(local) = self.parts.active_mut(from) else { return };
        let RoomRequest::Open { to, number, state } = local.room_request else { return };
        local.room_request = RoomRequest::Idle;
        if let Answer::TooLong { .. } = state {
            return;
        }
        if sent {
            local.sent.record(number);
        } else {
            self.end_message(from, to, number);
            return;
        }
        if self.is_relayed(to.node()) {
            let is_earlier = |e: &RoomEntry| e.state == State::Sent && (e.source, e.dest) == (from, to);
            self.rooms.drop_if(is_earlier);
            if self.rooms.is_half_free() {
                self.rooms.add(RoomEntry::of_sender(from, to, number, State::Sent));
            }
        }
    }

    /// Records that the receiver of a message is to be notified that nothing more of it will arrive.
    pub(super) fn end_message(&mut self, source: PartId, dest: PartId, number: u32) {
        self.rooms.ending = true;
        let entry = RoomEntry::of_sender(source, dest, number, State::Ending);
        if self.rooms.add(entry).is_none()
            && let Some(Local { room_request: request @ RoomRequest::Idle, .. }) =
                self.parts.get_mut(source.local())
        {
            *request = RoomRequest::Ending { from: source, to: dest, number };
        }
    }

    /// Notifies receivers of messages that were given up, as far as there is room for that. Returns how many it has notified.
    pub(super) fn end_messages(&mut self) -> u32 {
        let mut worked = 0;
        for i in 0..self.rooms.table.len() {
            if let Some(Some(RoomEntry { source, dest, number, state: State::Ending, .. })) =
                self.rooms.table.get(i).copied()
                && self.tell_given_up(source, dest, number)
            {
                self.rooms.table.get_mut(i).into_iter().for_each(|slot| *slot = None);
                worked += 1;
            }
        }
        for place in 0..self.config.local_parts {
            if let Some(&Local { room_request: RoomRequest::Ending { from, to, number }, .. }) =
                self.parts.get(place)
                && self.tell_given_up(from, to, number)
            {
                self.set_room_request(place, RoomRequest::Idle);
                worked += 1;
            }
        }
        worked
    }

    /// Notifies the receiver of a message that was given up, behind its segments. Returns `false` if there is no room for that now.
    fn tell_given_up(&mut self, source: PartId, to: PartId, number: u32) -> bool {
        match self.open(to.node()) {
            Ok(mut block) => {
                let dest = u32::from(to.local()) | ABORTED;
                let announcement = Announcement { number: number.into(), dest: dest.into(), bytes: 0.into() };
                let route = |dest| Route::raw(CduClass::ShortMessage as u8, 0, source.local(), dest);
                let end = SegmentHeader::new(number, SegmentHeader::ABORTED, 0);
                let ended = block.reserve_segment(route(to.local()), end, 0).is_ok();
                let told = block.push(route(PartId::NODE), announcement.as_bytes()).is_ok();
                debug_assert!(ended && told, "an empty block has room for both");
                self.submit(block);
            }
            // The receiver lost the message along with its link to this node, but it knows nothing of a link to a relay.
            Err(error) => {
                let waits = matches!(error, OpenError::WouldBlock)
                    || (self.is_relayed(to.node()) && self.agreement.is_member(to.node()));
                self.rooms.ending |= waits;
                return !waits;
            }
        }
        true
    }
}
