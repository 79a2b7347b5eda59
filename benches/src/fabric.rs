//! What a peer must implement to be measured.

use crate::scenario::Scenario;

/// A means of communication between the nodes of a [`Scenario`].
pub trait Fabric {
    /// One node's end, in the thread that uses it.
    type Endpoint: Endpoint;
    /// What is carried to the node's thread and becomes its end there: the end itself, unless it cannot change threads.
    type Seat: Into<Self::Endpoint> + Send;

    /// Connects the nodes and returns their seats in the order of their numbers.
    fn connect(scenario: &Scenario) -> Vec<Self::Seat>;
}

/// One node's end of a [`Fabric`]. It is dropped on the node's thread, only after all nodes have finished.
///
/// No method blocks. The loop that calls them ([`crate::exchange`]) is the same for all peers.
pub trait Endpoint {
    /// Takes a packet for node `to`, copying its bytes, or returns `false` when there is no room at the moment.
    ///
    /// After a refusal the caller offers the same packet to the same node again before any other packet to that node, so an implementation may keep
    /// its preparation. All packets have the scenario's size. Packets from one node to another arrive in order.
    fn try_send(&mut self, to: usize, packet: &[u8]) -> bool;

    /// Passes some of the arrived packets to `f`, in place where the peer can, and returns their number. The amount of work is bounded by what the
    /// peer can hold.
    fn receive(&mut self, f: impl FnMut(&[u8])) -> usize;

    /// Makes visible to the receivers all that was accepted. Called when no more packets can be sent for the moment
    /// and when all are sent; a peer that gathers packets may rely on it.
    fn flush(&mut self) {}

    /// Whether this node has finished its work for others: packets sent have left, and what it holds of others has been returned. Called repeatedly
    /// after the last packet was sent and the last received, until it returns true.
    fn finished(&mut self) -> bool {
        true
    }
}

/// An end that is borrowed for one run.
impl<E: Endpoint> Endpoint for &mut E {
    #[inline(always)]
    fn try_send(&mut self, to: usize, packet: &[u8]) -> bool {
        (**self).try_send(to, packet)
    }

    #[inline(always)]
    fn receive(&mut self, f: impl FnMut(&[u8])) -> usize {
        (**self).receive(f)
    }

    fn flush(&mut self) {
        (**self).flush();
    }

    fn finished(&mut self) -> bool {
        (**self).finished()
    }
}
