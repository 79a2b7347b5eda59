//! The goodbye of a node that ends.

use std::io::{Read, Write};

use super::{Link, State};
use crate::ring::Ring;

/// How much an ending node still does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    Low,
    High,
}

impl<S: Read + Write> Link<S> {
    /// Prepares for the end of this node. Blocks that arrive from now on are not taken, so their sender gets them back.
    pub(crate) fn begin_farewell(&mut self, ring: &mut Ring) {
        self.incoming.row.forget(ring);
        self.leaving = Some(vec![0; self.limits.longest].into());
    }

    /// Sends what was submitted, or with `Urgency::High` only what is already on its way, then says goodbye, on the next connection if
    /// this one ends meanwhile. Returns whether the peer has answered the goodbye, or needs none.
    pub(crate) fn poll_farewell(&mut self, urgency: Urgency, ring: &mut Ring) -> bool {
        while self.out.pop_taken(ring.now).is_some() {}
        if self.ended || self.state != State::Up {
            return true;
        }
        self.write(ring);
        let _ = self.read(ring);
        let done = self.out.queue.is_empty() || urgency == Urgency::High;
        if let Some(connection) = self.connection.as_mut().filter(|c| done && c.opened && !c.sent_bye) {
            connection.send_bye(self.incoming.taken);
            self.write(ring);
        }
        self.ended
    }
}
