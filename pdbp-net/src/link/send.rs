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
            self.lose(lost, ring);
        }
    }

    /// Queues records for what there is to send. Each carries an acknowledgement: what was taken and posted.
    fn fill(&mut self, ring: &mut Ring) {
        let (out, incoming) = (&mut self.out, &mut self.incoming);
        let Some(connection) = self.connection.as_mut().filter(|c| c.opened && !c.said_bye) else { return };
        if self.state != State::Up {
            return;
        }
        let news = incoming.news();
        let room = usize::try_from(news.1 - news.0).unwrap_or(0);
        let due = self.leaving.is_some() || incoming.is_due(self.limits.untold(), ring.patience);
        while connection.takes_record() {
            if let Some((number, packing)) = out.ready(ring) {
                let length = u32::try_from(out.bytes_of(Some(number)).len()).unwrap_or(u32::MAX);
                let head = Head { packing, length, ..frame(Kind::Data, number, news.0, room) };
                connection.push(head, Some(number));
                out.next += 1;
            } else if connection.is_collecting() {
                connection.seal();
                continue;
            } else if due && incoming.owes() {
                connection.push(frame(Kind::Ack, 0, news.0, room), None);
            } else if connection.must_speak() {
                connection.speak(frame(Kind::Ack, 0, news.0, room));
            } else {
                return;
            }
            incoming.tell();
        }
    }
}
