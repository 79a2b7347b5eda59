//! The sending side of a link.

use std::io::{Read, Write};

use super::{Link, State};
use crate::connection::frame;
use crate::framing::{Head, Kind};
use crate::ring::Ring;

impl<S: Read + Write> Link<S> {
    /// Writes blocks and acknowledgements.
    pub(super) fn write(&mut self, ring: &mut Ring) {
        self.fill(ring);
        let Some(connection) = &mut self.connection else { return };
        let result = connection.flush(&self.out);
        self.out.sent = self.out.sent.max(connection.written);
        if self.out.row.is_on() {
            self.out.row.written(connection.written, ring);
        }
        if let Err(lost) = result {
            self.on_connection_lost(lost, ring);
        }
    }

    /// Queues records for what there is to send. Each carries an acknowledgement: what was taken and posted.
    fn fill(&mut self, ring: &mut Ring) {
        let (out, incoming) = (&mut self.out, &mut self.incoming);
        let Some(connection) = self.connection.as_mut().filter(|c| c.opened && !c.sent_bye) else { return };
        if self.state != State::Up {
            return;
        }
        let acknowledgement = incoming.acknowledgement();
        let room = usize::try_from(acknowledgement.1 - acknowledgement.0).unwrap_or(0);
        let due = self.leaving.is_some() || incoming.is_due(self.limits.ack_threshold(), ring.patience);
        while connection.has_room() {
            if let Some((number, packing)) = out.ready(ring) {
                let length = u32::try_from(out.bytes_of(Some(number)).len()).unwrap_or(u32::MAX);
                let head = Head { packing, length, ..frame(Kind::Data, number, acknowledgement.0, room) };
                connection.push(head, Some(number));
                out.next += 1;
            } else if connection.is_collecting() {
                connection.seal();
                continue;
            } else if (due && incoming.owes_ack()) || connection.must_request() {
                connection.push(frame(Kind::Ack, 0, acknowledgement.0, room), None);
            } else {
                // Acknowledges nothing.
                return connection.answer_surplus();
            }
            incoming.mark_acknowledged();
        }
    }
}
