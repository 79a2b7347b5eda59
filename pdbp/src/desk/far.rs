//! Who a client means by an address: at once where the tables of this cluster say so, and from another cluster when that has answered.
//!
//! A cluster whose line is cut takes long to answer, and one server thread serves all clients: so each question has a thread, and there are
//! as many at a time as there are clients at most. What was found is kept for as long as the part is there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::exchange::{Bell, Order, is_there};
use super::fault::{Code, Fault, Reason};
use crate::error::LookupError;
use crate::http::Ticket;
use crate::node::Node;
use crate::part::Target;

/// Questions under way at most. That of a client that has gone may be.
const QUESTIONS: usize = 64;
/// Addresses that are kept.
const KEPT: usize = 1024;
/// The most characters of an address that a fault repeats.
const REPEATED: usize = 100;

type Answer = (Ticket, Result<Target, LookupError>);

/// Parts of other clusters that clients look for.
pub(super) struct Far {
    known: HashMap<String, Target>,
    /// Those that wait.
    orders: Vec<Order>,
    asked: Sender<Answer>,
    answered: Receiver<Answer>,
    under_way: usize,
}

impl Far {
    pub(super) fn new() -> Self {
        let (asked, answered) = channel();
        Self { known: HashMap::new(), orders: Vec::new(), asked, answered, under_way: 0 }
    }

    /// Whom an order is for, if that is known, with the order.
    ///
    /// # Errors
    /// There is no such part, or too much is asked for.
    pub(super) fn find(
        &mut self,
        node: &Node,
        bell: &Arc<Bell>,
        order: Order,
    ) -> Result<Option<(Order, Target)>, Fault> {
        if !is_far(node, &order.address) {
            let found = node.lookup(&order.address).map_err(|error| unknown(&order.address, &error))?;
            return Ok(Some((order, found)));
        }
        if let Some(known) = self.known.get(&order.address).copied() {
            if is_there(node, known) {
                return Ok(Some((order, known)));
            }
            self.known.remove(&order.address);
        }
        if self.under_way >= QUESTIONS {
            let why = "too many parts of other clusters are looked for; nothing was sent, try again";
            return Err(Fault::receiver(Reason::Busy, why.to_owned()));
        }
        let (asker, address, ticket) = (node.clone(), order.address.clone(), order.ticket);
        let timeout = order.answer.unwrap_or(Duration::MAX).min(node.settings().timeout);
        let (asked, bell) = (self.asked.clone(), Arc::clone(bell));
        let thread = std::thread::Builder::new().name("pdbp-desk-far".to_owned());
        let thread = thread.spawn(move || {
            let found = asker.lookup_within(&address, timeout);
            // Nobody takes it when the server is gone.
            let _ = asked.send((ticket, found));
            bell.ring();
        });
        if let Err(error) = thread {
            let why =
                format!("nothing was sent, since there is no thread left to look for the part: {error}");
            return Err(Fault::receiver(Reason::Busy, why));
        }
        self.under_way += 1;
        self.orders.push(order);
        Ok(None)
    }

    /// Nobody waits for it.
    pub(super) fn abandon(&mut self, ticket: Ticket) {
        self.orders.retain(|order| order.ticket != ticket);
    }

    /// The next order of which it is known now whom it is for.
    pub(super) fn next(&mut self) -> Option<(Order, Result<Target, Fault>)> {
        while let Ok((ticket, found)) = self.answered.try_recv() {
            self.under_way -= 1;
            let Some(at) = self.orders.iter().position(|order| order.ticket == ticket) else { continue };
            let order = self.orders.swap_remove(at);
            if let Ok(target) = &found {
                if self.known.len() >= KEPT {
                    self.known.clear();
                }
                self.known.insert(order.address.clone(), *target);
            }
            let found = found.map_err(|error| unknown(&order.address, &error));
            return Some((order, found));
        }
        None
    }
}

#[cfg(feature = "net")]
fn is_far(node: &Node, address: &str) -> bool {
    crate::grid::Remote::of(node, address).is_some()
}

#[cfg(not(feature = "net"))]
fn is_far(_node: &Node, _address: &str) -> bool {
    false
}

fn unknown(address: &str, error: &LookupError) -> Fault {
    let shown: String = address.chars().take(REPEATED).collect();
    // Which parts there are says `Parts`; there may be a thousand.
    let why = match error {
        LookupError::Ambiguous { .. } => {
            format!("several parts are called \"{shown}\": name the node, as in \"{shown}@node0\"")
        }
        LookupError::NoTrunk { .. } | LookupError::NoAnswer { .. } | LookupError::NoRoom { .. } => {
            return Fault::receiver(Reason::Busy, format!("nothing was sent to \"{shown}\": {error}"));
        }
        LookupError::Interrupted => {
            return Fault::receiver(Reason::Failed, format!("nothing was sent to \"{shown}\": {error}"));
        }
        LookupError::Remote { cluster, .. } => {
            format!("cluster \"{cluster}\" has no part with the address \"{shown}\"")
        }
        _ => format!("no part has the address \"{shown}\"; the operation Parts lists those there are"),
    };
    Fault::new(Code::Sender, Reason::NoSuchPart, why)
}
