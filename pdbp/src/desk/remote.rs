//! Resolves addresses for clients: at once from the tables of this cluster, or by asking another cluster.
//!
//! A cluster whose line is cut takes long to answer, and one server thread serves all clients. So each lookup in another cluster
//! has its own thread, at most as many at a time as there are clients. Results are kept as long as the part exists.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::bell::Bell;
use super::exchange::{Order, exists};
use super::fault::{Code, Fault, Reason};
use super::threads::Threads;
use crate::error::LookupError;
use crate::http::Ticket;
use crate::node::{Node, names};
use crate::part::{Message, Shared, Target};

/// Maximum lookups in progress, including those of clients that have gone.
const QUESTIONS: usize = 64;
/// Maximum addresses kept.
const KEPT: usize = 1024;

type Answer = (Ticket, Result<Target, LookupError>);

/// Parts of other clusters that clients look up.
pub(super) struct Remote {
    known: HashMap<String, Target>,
    /// The requests that wait.
    orders: Vec<Order>,
    asked: Sender<Answer>,
    answered: Receiver<Answer>,
    in_progress: usize,
    threads: Threads,
}

impl Remote {
    pub(super) fn new() -> Self {
        let (asked, answered) = channel();
        let (known, orders, threads) = Default::default();
        Self { known, orders, asked, answered, in_progress: 0, threads }
    }

    /// Returns the target of a request, with the request, if the target is known.
    ///
    /// # Errors
    /// The part does not exist, or too many lookups are in progress.
    pub(super) fn find(
        &mut self,
        node: &Node,
        bell: &Arc<Bell>,
        order: Order,
    ) -> Result<Option<(Order, Target)>, Fault> {
        if !is_remote(node, &order.address) {
            let found = node.lookup(&order.address).map_err(|error| unknown(&order.address, &error))?;
            return Ok(Some((order, found)));
        }
        if let Some(known) = self.known.get(&order.address).copied() {
            if exists(node, known) {
                return Ok(Some((order, known)));
            }
            self.known.remove(&order.address);
        }
        if self.in_progress >= QUESTIONS {
            let why = "too many lookups in other clusters are in progress; nothing was sent, try again";
            return Err(Fault::receiver(Reason::Busy, why.to_owned()));
        }
        let (asker, address, ticket) = (node.clone(), order.address.clone(), order.ticket);
        let timeout = order.answer.unwrap_or(Duration::MAX).min(node.settings().timeout);
        let (asked, bell) = (self.asked.clone(), Arc::clone(bell));
        let thread = self.threads.start("pdbp-desk-remote".to_owned(), move || {
            let found = asker.lookup_within(&address, timeout);
            // The result is discarded once the server is gone.
            let _ = asked.send((ticket, found));
            bell.ring();
        });
        if let Err(error) = thread {
            let why = format!(
                "nothing was sent, since the thread to look up the part could not be started: {error}"
            );
            return Err(Fault::receiver(Reason::Busy, why));
        }
        self.in_progress += 1;
        self.orders.push(order);
        Ok(None)
    }

    /// Gives up a lookup whose client has gone.
    pub(super) fn abandon(&mut self, ticket: Ticket) {
        self.orders.retain(|order| order.ticket != ticket);
    }

    /// The next request whose lookup has completed.
    pub(super) fn next(&mut self) -> Option<(Order, Result<Target, Fault>)> {
        while let Ok((ticket, found)) = self.answered.try_recv() {
            self.in_progress -= 1;
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
pub(super) fn is_remote(node: &Node, address: &str) -> bool {
    crate::grid::Remote::of(node, address).is_some()
}

#[cfg(not(feature = "net"))]
pub(super) fn is_remote(_node: &Node, _address: &str) -> bool {
    false
}

/// Whether a message from a part of another cluster is what that part was sent, which its cluster has given back.
#[cfg(feature = "net")]
pub(super) fn is_returned(message: &Message<Shared>) -> bool {
    message.is_command() && message.command() == crate::grid::RETURNED
}

#[cfg(not(feature = "net"))]
pub(super) fn is_returned(_message: &Message<Shared>) -> bool {
    false
}

fn unknown(address: &str, error: &LookupError) -> Fault {
    let shown = names::beginning(address);
    // `Parts` lists the parts; there may be a thousand.
    let why = match error {
        LookupError::Ambiguous { .. } => {
            format!("several parts are named \"{shown}\": append the node, as in \"{shown}@node0\"")
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
        LookupError::BadAddress { .. } => error.to_string(),
        _ => format!("no part has the address \"{shown}\"; the operation Parts lists all addresses"),
    };
    Fault::new(Code::Sender, Reason::NoSuchPart, why)
}
