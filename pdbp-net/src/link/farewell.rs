//! The goodbye of a node that ends.

use std::io::{Read, Write};

use super::{Link, State};
use crate::connection::Connection;
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
        if self.has_parted() {
            return true;
        }
        self.write(ring);
        let _ = self.read(ring);
        let done = self.out.queue.is_empty() || urgency == Urgency::High;
        if let Some(connection) = self.connection.as_mut().filter(|c| done && c.opened && !c.sent_bye) {
            connection.send_bye(self.incoming.taken);
            self.write(ring);
        }
        self.has_parted()
    }

    /// Whether both ends have said goodbye, or there is nobody to say it to.
    fn has_parted(&self) -> bool {
        let has_unwritten = || self.connection.as_ref().is_some_and(Connection::has_unwritten);
        self.state != State::Up || self.ended && !has_unwritten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::world::{Operation, Setting, World};
    use super::*;
    use crate::ring::codec::Codec;

    /// The goodbye of the first and the acknowledgement of the last block can arrive together. The other one then ended without an answer, and the first
    /// waited for it for the whole linger time.
    #[test]
    fn two_that_leave_at_the_same_time_answer_each_other() {
        let plain = Setting { codec: Codec::None, workers: false };
        for (caller, is_taken) in [None, Some(0), Some(1)].into_iter().flat_map(|c| [(c, true), (c, false)]) {
            let mut world = World::new([plain, plain]);
            world.run(&Operation::Connect { holds: 100_000, grain: 100_000, caller });
            world.ends[1].post();
            let turn = |world: &mut World| world.ends.iter_mut().for_each(|end| while end.poll() {});
            (0..9).for_each(|_| turn(&mut world));
            world.ends[0].submit(0);
            if is_taken {
                while world.ends[1].received.is_empty() {
                    world.ends[1].poll();
                }
            }
            world.ends.iter_mut().for_each(|end| end.link.begin_farewell(&mut end.ring));
            let mut is_over = [false; 2];
            for place in [1, 0].into_iter().cycle().take(20) {
                let end = &mut world.ends[place];
                end.link.wake(true, true);
                if end.link.poll_farewell(Urgency::Low, &mut end.ring) {
                    is_over[place] = true;
                    end.link.cut(&mut end.ring);
                }
            }
            assert_eq!(is_over, [true; 2], "caller: {caller:?}, taken: {is_taken}");
        }
    }
}
