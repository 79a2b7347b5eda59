//! The goodbye of a node that ends.

use std::io::{Read, Write};

use super::{Link, State};
use crate::ring::Ring;

/// How much is left to do for a node that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    Little,
    Much,
}

impl<S: Read + Write> Link<S> {
    /// This node is about to end. Blocks that come from now on are not taken, so that their sender gets them back.
    pub(crate) fn begin_farewell(&mut self, ring: &mut Ring) {
        self.incoming.row.forget(ring);
        self.leaving = Some(vec![0; self.limits.longest].into());
    }

    /// Hands over what was submitted, or no more than is on its way with `Haste::Much`, then says goodbye, on the next connection if
    /// this one ends meanwhile. Whether the peer knows, or there is nothing to be known.
    pub(crate) fn poll_farewell(&mut self, haste: Haste, ring: &mut Ring) -> bool {
        while self.out.pop_taken(ring.now).is_some() {}
        if self.ended || self.state != State::Up {
            return true;
        }
        self.write(ring);
        let _ = self.read(ring);
        let done = self.out.queue.is_empty() || haste == Haste::Much;
        if let Some(connection) = self.connection.as_mut().filter(|c| done && c.opened && !c.said_bye) {
            connection.say_bye(self.incoming.taken);
            self.write(ring);
        }
        self.ended
    }
}
