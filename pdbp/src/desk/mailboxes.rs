//! Mailboxes: named parts of the desk, for programs that receive without being asked.
//!
//! Parts find a mailbox by its name and send to it as to any part. Its messages are moved out of the blocks that they arrived in, so that a
//! client that comes late does not hold up others on the node. A full mailbox takes no more; then its senders wait, until a client receives
//! or the mailbox is closed for want of one.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pdbp_core::engine::RegisterError as Refused;

use super::answer;
use super::exchange::{Outcome, Reply};
use super::fault::{Code, Fault, Reason};
use super::mailbox::Letters;
use super::registrar::Registrar;
use super::stats::Done;
use crate::error::RegisterError;
use crate::http::Ticket;
use crate::node::{Node, names};
use crate::part::{Part, Shared, Target};

/// Maximum mailboxes open or being opened.
const MOST: usize = 1024;
/// Bytes of messages from which on none is taken from any mailbox's part.
const HELD: usize = 64 << 20;
/// How long a mailbox is kept that nobody receives from, unless its client asks otherwise.
const IDLE: Duration = Duration::from_secs(60);

/// A mailbox whose part is being registered, and the requests that wait for it.
struct Opening {
    name: String,
    idle: Duration,
    tickets: Vec<Ticket>,
}

/// A closed mailbox whose part is not freed yet, and the requests that wait for it.
struct Closing {
    name: String,
    tickets: Vec<Ticket>,
}

struct Mailbox {
    name: String,
    address: String,
    /// `None` while it sends a message of its client.
    part: Option<Part<Shared>>,
    letters: Letters,
    /// The request that waits for a message, and how long it does.
    waiting: Option<(Ticket, Instant)>,
    /// How long it is kept without such a request, and since when there is none.
    idle: Duration,
    since: Instant,
}

impl Mailbox {
    fn is(&self, named: &str) -> bool {
        self.address == named || self.name == named
    }

    /// When it is closed if nobody asks for a message. Not while it sends one.
    fn end(&self) -> Option<Instant> {
        (self.waiting.is_none() && self.part.is_some()).then(|| self.since + self.idle)
    }
}

/// Which mailboxes to look at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Those for which a request has begun to wait.
    Nothing,
    /// Those for which a request waits: something has arrived.
    Awaited,
    All,
}

pub(super) struct Mailboxes {
    node: Node,
    waker: Waker,
    opening: Vec<Opening>,
    open: Vec<Mailbox>,
    closing: Vec<Closing>,
    /// Whether a request has begun to wait, or its mailbox has got its part back.
    is_asked: bool,
    done: Arc<Done>,
}

impl Mailboxes {
    pub(super) fn new(node: Node, waker: Waker, done: Arc<Done>) -> Self {
        Self {
            node,
            waker,
            opening: Vec::new(),
            open: Vec::new(),
            closing: Vec::new(),
            is_asked: false,
            done,
        }
    }

    /// Opens a mailbox, or returns the address of the one that there is: a client whose answer was lost asks again.
    ///
    /// # Errors
    /// There are too many, or the name is one of the runtime's own.
    pub(super) fn open(
        &mut self,
        registrar: &Registrar,
        ticket: Ticket,
        name: String,
        idle: Option<Duration>,
    ) -> Result<Option<Reply>, Fault> {
        let idle = idle.unwrap_or(IDLE);
        if names::is_own(&name) {
            let why = format!(
                "names that begin with \"pdbp.\" are the runtime's own; choose another than \"{name}\""
            );
            return Err(Fault::malformed(why));
        }
        if let Some(mailbox) = self.open.iter_mut().find(|mailbox| mailbox.name == name) {
            (mailbox.idle, mailbox.since) = (idle, Instant::now());
            return Ok(Some(Reply::Opened(mailbox.address.clone())));
        }
        if let Some(opening) = self.opening.iter_mut().find(|opening| opening.name == name) {
            opening.idle = idle;
            opening.tickets.push(ticket);
            return Ok(None);
        }
        if self.open.len() + self.opening.len() + self.closing.len() >= MOST {
            let why = format!("the desk has {MOST} mailboxes, its maximum; close one, or try again");
            return Err(Fault::receiver(Reason::Busy, why));
        }
        // The name of a mailbox that was closed is free when its part is.
        if !self.closing.iter().any(|closing| closing.name == name) {
            registrar.register(name.clone());
        }
        self.opening.push(Opening { name, idle, tickets: vec![ticket] });
        Ok(None)
    }

    /// Waits for the messages of a mailbox after number `taken`.
    ///
    /// # Errors
    /// There is no such mailbox, or the message has not been delivered.
    pub(super) fn receive(
        &mut self,
        ticket: Ticket,
        named: &str,
        taken: u64,
        timeout: Duration,
        done: &mut Vec<(Ticket, Outcome)>,
    ) -> Result<(), Fault> {
        let now = Instant::now();
        let mailbox = self.find(named)?;
        let confirmed = mailbox.letters.confirm(taken)?;
        // A client asks anew when its connection is lost.
        if let Some((earlier, _)) = mailbox.waiting.replace((ticket, now + timeout)) {
            done.push((earlier, Ok(Reply::Received(String::new()))));
        }
        self.is_asked = true;
        self.done.received.add_all(confirmed);
        Ok(())
    }

    /// Closes a mailbox and discards its messages. The request is answered when the name is free.
    ///
    /// # Errors
    /// There is no such mailbox.
    pub(super) fn close(
        &mut self,
        registrar: &Registrar,
        ticket: Ticket,
        named: &str,
        done: &mut Vec<(Ticket, Outcome)>,
    ) -> Result<(), Fault> {
        let at = self.open.iter().position(|mailbox| mailbox.is(named)).ok_or_else(|| missing(named))?;
        self.end(registrar, at, vec![ticket], done);
        Ok(())
    }

    /// The address of a mailbox.
    ///
    /// # Errors
    /// There is no such mailbox.
    pub(super) fn address(&mut self, named: &str) -> Result<String, Fault> {
        self.find(named).map(|mailbox| mailbox.address.clone())
    }

    fn find(&mut self, named: &str) -> Result<&mut Mailbox, Fault> {
        self.open.iter_mut().find(|mailbox| mailbox.is(named)).ok_or_else(|| missing(named))
    }

    /// Lends the part of a mailbox, to send a message by it. `None` while it is lent.
    ///
    /// # Errors
    /// There is no such mailbox any more.
    pub(super) fn lend(&mut self, address: &str) -> Result<Option<Part<Shared>>, Fault> {
        self.find(address).map(|mailbox| mailbox.part.take())
    }

    /// Takes a part back; frees it if its mailbox was closed meanwhile.
    pub(super) fn give_back(&mut self, registrar: &Registrar, address: &str, part: Part<Shared>) {
        match self.open.iter_mut().find(|mailbox| mailbox.address == address && mailbox.part.is_none()) {
            Some(mailbox) => {
                mailbox.part = Some(part);
                // Its next message is to wake the server again.
                self.is_asked |= mailbox.waiting.is_some();
            }
            None => registrar.free(part),
        }
    }

    /// Gives up a request whose client has gone. The messages stay.
    pub(super) fn abandon(&mut self, ticket: Ticket) {
        let opening = self.opening.iter_mut().map(|opening| &mut opening.tickets);
        let closing = self.closing.iter_mut().map(|closing| &mut closing.tickets);
        opening.chain(closing).for_each(|tickets| tickets.retain(|one| *one != ticket));
        for mailbox in &mut self.open {
            if mailbox.waiting.take_if(|(one, _)| *one == ticket).is_some() {
                mailbox.since = Instant::now();
            }
        }
    }

    /// Takes what has arrived, answers who waits, and closes mailboxes that nobody uses. Returns when to call it again if nothing wakes the
    /// server.
    pub(super) fn advance(
        &mut self,
        registrar: &Registrar,
        (now, due): (Instant, Due),
        done: &mut Vec<(Ticket, Outcome)>,
    ) -> Option<Instant> {
        while let Some(name) = registrar.next_freed() {
            self.freed(registrar, &name, done);
        }
        while let Some((name, part)) = registrar.next_registered() {
            self.opened(name, part, now, done);
        }
        if due != Due::Nothing || std::mem::take(&mut self.is_asked) {
            self.collect(due == Due::All);
        }
        for mailbox in &mut self.open {
            let Some((ticket, until)) = mailbox.waiting else { continue };
            if !mailbox.letters.is_empty() || now >= until {
                (mailbox.waiting, mailbox.since) = (None, now);
                let outcome =
                    mailbox.letters.deliver().map(|letters| Reply::Received(answer::letters(letters)));
                done.push((ticket, outcome));
            }
        }
        while let Some(at) = self.open.iter().position(|mailbox| mailbox.end().is_some_and(|end| now >= end))
        {
            self.end(registrar, at, Vec::new(), done);
        }
        let ends = self.open.iter().filter_map(Mailbox::end);
        ends.chain(self.open.iter().filter_map(|mailbox| Some(mailbox.waiting?.1))).min()
    }

    /// Whether any is open, so that something may arrive.
    pub(super) fn are_open(&self) -> bool {
        !self.open.is_empty()
    }

    fn opened(
        &mut self,
        name: String,
        part: Result<Part<Shared>, RegisterError>,
        now: Instant,
        done: &mut Vec<(Ticket, Outcome)>,
    ) {
        let Some(at) = self.opening.iter().position(|opening| opening.name == name) else { return };
        let Opening { idle, tickets, .. } = self.opening.swap_remove(at);
        let address = format!("{name}@{}", self.node.name());
        let opened = match part {
            Ok(part) => {
                self.done.opened.add();
                let (letters, address) = (Letters::default(), address.clone());
                let part = Some(part);
                self.open.push(Mailbox { name, address, part, letters, waiting: None, idle, since: now });
                Ok(())
            }
            Err(error) => Err(refused(&name, &error)),
        };
        for ticket in tickets {
            done.push((ticket, opened.clone().map(|()| Reply::Opened(address.clone()))));
        }
    }

    /// The part of a closed mailbox has been freed: answers who closed it, and opens it again for those who asked meanwhile.
    fn freed(&mut self, registrar: &Registrar, name: &str, done: &mut Vec<(Ticket, Outcome)>) {
        let Some(at) = self.closing.iter().position(|closing| closing.name == name) else { return };
        let closing = self.closing.swap_remove(at);
        done.extend(closing.tickets.into_iter().map(|ticket| (ticket, Ok(Reply::Closed))));
        if self.opening.iter().any(|opening| opening.name == name) {
            registrar.register(closing.name);
        }
    }

    /// Moves what has arrived into the mailboxes with room: all of them, or those with a request that waits, whose next message wakes the server.
    /// Others wake nobody, since the node would be polled for them all the time.
    fn collect(&mut self, all: bool) {
        let mut context = Context::from_waker(&self.waker);
        let mut held: usize = self.open.iter().map(|mailbox| mailbox.letters.bytes()).sum();
        for mailbox in &mut self.open {
            let is_asked = mailbox.waiting.is_some();
            let Some(part) = mailbox.part.as_ref().filter(|_| all || is_asked) else { continue };
            let mut sender: Option<(Target, Option<String>)> = None;
            while held < HELD && mailbox.letters.has_room() {
                let message = if is_asked && mailbox.letters.is_empty() {
                    match part.poll_recv(&mut context) {
                        Poll::Ready(message) => message.ok(),
                        Poll::Pending => None,
                    }
                } else {
                    part.try_recv()
                };
                let Some(message) = message else { break };
                let source = message.source();
                if sender.as_ref().is_none_or(|(known, _)| *known != source) {
                    sender = Some((source, names::address_of(&self.node.shared.engine(), source)));
                }
                let from = sender.as_ref().and_then(|(_, address)| address.clone());
                let before = mailbox.letters.bytes();
                mailbox.letters.push(from, message.is_command().then(|| message.command()), &message);
                held += mailbox.letters.bytes() - before;
            }
            if !all {
                continue;
            }
            // No client can read a stream, and none can get back what was sent to a part that has gone.
            while let Ok(Some(_)) = part.try_accept_stream() {}
            while let Ok(Some(_)) = part.try_returned() {}
        }
    }

    /// Closes a mailbox for those who have asked for it. A part that sends is freed when it has been given back.
    fn end(
        &mut self,
        registrar: &Registrar,
        at: usize,
        tickets: Vec<Ticket>,
        done: &mut Vec<(Ticket, Outcome)>,
    ) {
        let Mailbox { name, address, part, letters, waiting, .. } = self.open.swap_remove(at);
        self.closing.push(Closing { name, tickets });
        self.done.discarded.add_all(letters.len() as u64);
        if let Some((ticket, _)) = waiting {
            done.push((ticket, Err(missing(&address))));
        }
        if let Some(part) = part {
            registrar.free(part);
        }
    }
}

fn missing(named: &str) -> Fault {
    let shown = names::beginning(named);
    let why = format!(
        "the desk has no mailbox \"{shown}\": it was closed, or nobody received from it for as long as IdleMs says; open it with OpenMailbox"
    );
    Fault::new(Code::Sender, Reason::NoSuchMailbox, why)
}

fn refused(name: &str, error: &RegisterError) -> Fault {
    let (shown, why) = (names::beginning(name), error.to_string());
    match error {
        RegisterError::Refused(Refused::Taken(_)) => Fault::new(Code::Sender, Reason::NameTaken, why),
        RegisterError::Refused(Refused::Name(_)) => {
            Fault::malformed(format!("a mailbox cannot be named \"{shown}\": {why}"))
        }
        _ => Fault::receiver(Reason::Busy, format!("the mailbox \"{shown}\" was not opened: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::bell::Bell;
    use super::*;
    use crate::Cluster;

    /// Who opens a mailbox that is open, or about to be, says anew how long it is kept.
    #[test]
    fn a_mailbox_is_kept_as_long_as_the_last_that_opened_it_has_said() {
        let cluster = Cluster::local(1).unwrap();
        let node = cluster.node(0).unwrap();
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap());
        let bell = Arc::new(Bell::new(&waker));
        let registrar = Registrar::start(node.clone(), &bell).unwrap();
        let mut mailboxes = Mailboxes::new(node, Waker::from(bell), Arc::default());
        let open = |mailboxes: &mut Mailboxes, seconds| {
            let idle = Some(Duration::from_secs(seconds));
            mailboxes.open(&registrar, Ticket(seconds), "box".to_owned(), idle).map(|reply| reply.is_some())
        };
        // Nothing is opened before `advance`.
        assert_eq!([60, 3600].map(|seconds| open(&mut mailboxes, seconds)), [Ok(false), Ok(false)]);
        let (mut done, began) = (Vec::new(), Instant::now());
        while done.len() < 2 {
            assert!(began.elapsed() < Duration::from_secs(60), "it is not opened");
            mailboxes.advance(&registrar, (Instant::now(), Due::Nothing), &mut done);
            std::thread::yield_now();
        }
        assert_eq!(mailboxes.open[0].idle, Duration::from_secs(3600));
        assert_eq!(open(&mut mailboxes, 120), Ok(true));
        assert_eq!(mailboxes.open[0].idle, Duration::from_secs(120));
    }
}
