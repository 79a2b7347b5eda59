//! Exchanges between clients and parts.
//!
//! To a part of the cluster, a call is a message from one of the desk's own parts; it replies to the source as usual. Each of the
//! desk's parts carries one call at a time, so its next message from the called part is the reply. Parts may reply more than once,
//! later, to a call that was given up, or to a message that is no call. So the desk's parts have no name, and get another number
//! ([`Part::renew`]) before each call: what comes for the number of an earlier one finds no part. Other clusters would have to agree on
//! each number, so calls of their parts share one: a second reply from there may be taken for the reply to the next call of the same part.
//!
//! A message that comes from a [mailbox](super::mailboxes) is sent by the part of that mailbox.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::bell::Bell;
use super::fault::{Fault, Reason};
use super::mailboxes::{Due, Mailboxes};
use super::registrar::Registrar;
use super::remote::{Remote, is_remote};
use super::run::{self, Awaited, Signs};
use super::stats::Done;
use crate::http::Ticket;
use crate::node::Node;
use crate::part::{Part, Shared, Target};

/// How long a message waits for room before the client learns that the part is busy.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long an idle part of the desk is kept.
const IDLE: Duration = Duration::from_secs(60);
/// Interval between checks whether a called part still exists.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The result of a request.
pub(super) type Outcome = Result<Reply, Fault>;

/// What a client gets.
pub(super) enum Reply {
    /// Its message is on its way.
    Sent,
    /// The reply of the part that it called.
    Called(Vec<u8>),
    /// The address of its mailbox.
    Opened(String),
    /// What has arrived in its mailbox, as elements of the answer.
    Received(String),
    /// Its mailbox is closed.
    Closed,
}

/// A request of a client to a part.
pub(super) struct Order {
    pub(super) ticket: Ticket,
    /// The address as the client wrote it.
    pub(super) address: String,
    pub(super) content: Vec<u8>,
    /// How long to wait for a reply, if the client wants one.
    pub(super) answer: Option<Duration>,
    /// The address of the mailbox that a message comes from.
    pub(super) from: Option<String>,
}

type Run = Pin<Box<dyn Future<Output = (Part<Shared>, Outcome)> + Send>>;

struct Exchange {
    ticket: Ticket,
    to: Target,
    address: String,
    run: Run,
    signs: Arc<Signs>,
    began: Instant,
    /// How long to wait for room, and then for the reply.
    patience: Duration,
    timeout: Duration,
    /// See [`Idle`].
    is_spent: bool,
    /// The address of the mailbox whose part it has.
    from: Option<String>,
}

/// One of the desk's parts, between exchanges.
struct Idle {
    part: Part<Shared>,
    /// When it became idle, if it has been used.
    since: Option<Instant>,
    /// Whether replies to what it has sent may still come, so that it needs another number before it carries a call.
    is_spent: bool,
}

pub(super) struct Exchanges {
    node: Node,
    bell: Arc<Bell>,
    waker: Waker,
    /// Idle parts, the longest idle first.
    idle: VecDeque<Idle>,
    orders: VecDeque<(Order, Target, Instant)>,
    remote: Remote,
    in_progress: Vec<Exchange>,
    mailboxes: Mailboxes,
    registrar: Registrar,
    /// Whether idle parts have carried calls since they got their numbers.
    needs_renewal: bool,
    /// Parts requested and not attached yet.
    attaching: usize,
    last_check: Instant,
}

impl Exchanges {
    pub(super) fn start(node: Node, waker: &Arc<mio::Waker>, done: Arc<Done>) -> std::io::Result<Self> {
        let bell = Arc::new(Bell::new(waker));
        let waker = Waker::from(Arc::clone(&bell));
        let registrar = Registrar::start(node.clone(), &bell)?;
        let mut exchanges = Self {
            mailboxes: Mailboxes::new(node.clone(), waker.clone(), done),
            node,
            waker,
            bell,
            idle: VecDeque::new(),
            orders: VecDeque::new(),
            remote: Remote::new(),
            in_progress: Vec::new(),
            registrar,
            needs_renewal: false,
            attaching: 0,
            last_check: Instant::now(),
        };
        exchanges.attach();
        Ok(exchanges)
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// Starts an exchange once its target is known and one of the desk's parts is free. At most as many exchanges exist as clients
    /// are being served.
    ///
    /// # Errors
    /// The target or the mailbox does not exist, or too many lookups are in progress.
    pub(super) fn find(&mut self, mut order: Order) -> Result<(), Fault> {
        if let Some(from) = &mut order.from {
            *from = self.mailboxes.address(from)?;
        }
        if let Some((order, to)) = self.remote.find(&self.node, &self.bell, order)? {
            self.orders.push_back((order, to, Instant::now()));
        }
        Ok(())
    }

    /// Gives up an exchange whose client has gone. A message that was sent stays sent.
    pub(super) fn abandon(&mut self, ticket: Ticket) {
        self.remote.abandon(ticket);
        self.mailboxes.abandon(ticket);
        self.orders.retain(|(order, ..)| order.ticket != ticket);
        if let Some(i) = self.in_progress.iter().position(|exchange| exchange.ticket == ticket) {
            let exchange = self.in_progress.swap_remove(i);
            self.give_up(exchange);
        }
    }

    /// Advances all exchanges. Returns when it must be called again if nothing arrives before.
    pub(super) fn advance(&mut self, done: &mut Vec<(Ticket, Outcome)>) -> Option<Instant> {
        let now = Instant::now();
        let mut is_due = self.bell.take_ring();
        // When the replies have been written, so that no client waits for it.
        if std::mem::take(&mut self.needs_renewal) {
            let spent = self.idle.iter_mut().filter(|idle| idle.is_spent);
            spent.for_each(|idle| idle.is_spent = !idle.part.renew());
        }
        while let Some(attached) = self.registrar.next_attached() {
            self.attaching -= 1;
            match attached {
                Ok(part) => self.idle.push_back(Idle { part, since: None, is_spent: false }),
                Err(error) => {
                    let waits = |(order, ..): &(Order, Target, Instant)| order.from.is_none();
                    let at = self.orders.iter().position(waits);
                    self.refuse(at, &error.to_string(), done);
                }
            }
        }
        while let Some((order, found)) = self.remote.next() {
            match found {
                Ok(to) => self.orders.push_back((order, to, Instant::now())),
                Err(fault) => done.push((order.ticket, Err(fault))),
            }
        }
        is_due |= self.start_orders(done);
        let lacking = self.orders.iter().filter(|(order, ..)| order.from.is_none()).count();
        while self.attaching < lacking {
            self.attach();
        }
        if is_due {
            self.poll(done);
        }
        self.expire(now, done);
        self.tend_idle(now);
        let due = match is_due {
            _ if self.last_check == now => Due::All,
            true => Due::Awaited,
            false => Due::Nothing,
        };
        let mailboxes = self.mailboxes.advance(&self.registrar, (now, due), done);
        let ends = self.in_progress.iter().map(Exchange::end);
        let orders = self.orders.iter().map(|(.., began)| *began + PATIENCE);
        let waits = !self.in_progress.is_empty() || self.idle.iter().any(|idle| idle.since.is_some());
        let check = (waits || self.mailboxes.are_open()).then(|| self.last_check + CHECK_INTERVAL);
        ends.chain(orders).chain(check).chain(mailboxes).min()
    }

    /// Starts the exchanges for which there is a part. Returns whether any was started.
    fn start_orders(&mut self, done: &mut Vec<(Ticket, Outcome)>) -> bool {
        let (mut i, mut has_started) = (0, false);
        while let Some((order, ..)) = self.orders.get(i) {
            let idle = match &order.from {
                None => self.take_idle(order.answer.is_some()),
                Some(from) => match self.mailboxes.lend(from) {
                    Ok(part) => part.map(|part| Idle { part, since: None, is_spent: false }),
                    Err(fault) => {
                        done.push((order.ticket, Err(fault)));
                        self.orders.remove(i);
                        continue;
                    }
                },
            };
            let Some(idle) = idle else {
                i += 1;
                continue;
            };
            if let Some((order, to, began)) = self.orders.remove(i) {
                self.in_progress.push(self.exchange(idle, order, to, began));
                has_started = true;
            }
        }
        has_started
    }

    /// The mailboxes, and what registers their parts.
    pub(super) fn mailboxes(&mut self) -> (&mut Mailboxes, &Registrar) {
        (&mut self.mailboxes, &self.registrar)
    }

    fn attach(&mut self) {
        self.attaching += 1;
        self.registrar.attach();
    }

    /// Takes an idle part for a call, or for a message that is not a call.
    fn take_idle(&mut self, is_call: bool) -> Option<Idle> {
        loop {
            // Calls first take what needs no other number.
            let fitting = self.idle.iter().position(|idle| idle.is_spent != is_call);
            let mut idle = self.idle.remove(fitting.unwrap_or(0))?;
            if !is_call || !idle.is_spent || idle.part.renew() {
                idle.is_spent = false;
                return Some(idle);
            }
            // All numbers have been used.
            self.registrar.free(idle.part);
        }
    }

    fn exchange(&self, idle: Idle, order: Order, to: Target, began: Instant) -> Exchange {
        let signs = Arc::<Signs>::default();
        let (said, content) = (Arc::clone(&signs), order.content);
        let awaited = match order.answer {
            None => Awaited::Nothing,
            Some(_) if is_remote(&self.node, &order.address) => Awaited::RemoteReply,
            Some(_) => Awaited::Reply,
        };
        let mut part = idle.part;
        if order.from.is_none() {
            discard(&part);
        }
        let run = async move {
            let outcome = run::run(&mut part, to, content, awaited, &said).await;
            (part, outcome)
        };
        let timeout = order.answer.unwrap_or(PATIENCE);
        Exchange {
            ticket: order.ticket,
            to,
            address: order.address,
            run: Box::pin(run),
            signs,
            began,
            patience: timeout.min(PATIENCE),
            timeout,
            is_spent: awaited != Awaited::RemoteReply,
            from: order.from,
        }
    }

    /// Ends an exchange whose reply nobody waits for.
    fn give_up(&mut self, mut exchange: Exchange) {
        exchange.signs.given_up.store(true, Ordering::Relaxed);
        let mut context = Context::from_waker(&self.waker);
        if let Poll::Ready((part, _)) = exchange.run.as_mut().poll(&mut context) {
            match &exchange.from {
                Some(from) => self.mailboxes.give_back(&self.registrar, from, part),
                // Its reply may still come.
                None => self.registrar.free(part),
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<(Ticket, Outcome)>) {
        let mut context = Context::from_waker(&self.waker);
        let mut i = 0;
        while let Some(exchange) = self.in_progress.get_mut(i) {
            match exchange.run.as_mut().poll(&mut context) {
                Poll::Ready((part, outcome)) => {
                    let Exchange { ticket, is_spent, from, .. } = self.in_progress.swap_remove(i);
                    if let Some(from) = from {
                        self.mailboxes.give_back(&self.registrar, &from, part);
                    } else {
                        // A message longer than a block comes back in pieces, some of them later.
                        let is_spent = is_spent || outcome.is_err();
                        self.idle.push_back(Idle { part, since: Some(Instant::now()), is_spent });
                        self.needs_renewal |= is_spent && !matches!(outcome, Ok(Reply::Sent));
                    }
                    done.push((ticket, outcome));
                }
                Poll::Pending => i += 1,
            }
        }
    }

    /// Reads messages that still arrive for idle parts, so that they do not block others on their nodes, and frees parts that have
    /// been idle for long.
    fn tend_idle(&mut self, now: Instant) {
        if self.last_check != now {
            return;
        }
        self.idle.iter().for_each(|idle| discard(&idle.part));
        let is_over = |idle: &Idle| idle.since.is_some_and(|since| now >= since + IDLE);
        while let Some(at) = self.idle.iter().position(is_over)
            && let Some(Idle { part, .. }) = self.idle.remove(at)
        {
            self.registrar.free(part);
        }
    }

    /// Ends exchanges that have timed out, and calls of parts that are gone.
    fn expire(&mut self, now: Instant, done: &mut Vec<(Ticket, Outcome)>) {
        let is_check_due = now >= self.last_check + CHECK_INTERVAL;
        if is_check_due {
            self.last_check = now;
        }
        let mut i = 0;
        while let Some(exchange) = self.in_progress.get(i) {
            let fault = if now >= exchange.end() {
                Some(exchange.timeout_fault())
            } else if is_check_due && !exists(&self.node, exchange.to) {
                let why = format!("{} was freed or its node was lost before it answered", exchange.address);
                Some(Fault::receiver(Reason::PartGone, why))
            } else {
                None
            };
            match fault {
                Some(fault) => {
                    let exchange = self.in_progress.swap_remove(i);
                    done.push((exchange.ticket, Err(fault)));
                    self.give_up(exchange);
                }
                None => i += 1,
            }
        }
        while self.orders.front().is_some_and(|(.., began)| now >= *began + PATIENCE) {
            let why = match self.orders.front() {
                Some((Order { from: Some(_), .. }, ..)) => "its mailbox is sending another message",
                _ => "all parts of the desk are busy",
            };
            self.refuse(Some(0), why, done);
        }
    }

    /// Tells the client whose order is at this place that it will not get a part.
    fn refuse(&mut self, at: Option<usize>, why: &str, done: &mut Vec<(Ticket, Outcome)>) {
        if let Some((order, ..)) = at.and_then(|at| self.orders.remove(at)) {
            let why = format!("nothing was sent to {}: {why}; try again", order.address);
            done.push((order.ticket, Err(Fault::receiver(Reason::Busy, why))));
        }
    }
}

impl Exchange {
    /// When the exchange times out.
    fn end(&self) -> Instant {
        self.began + if self.signs.sent.load(Ordering::Relaxed) { self.timeout } else { self.patience }
    }

    fn timeout_fault(&self) -> Fault {
        let Self { address, patience, timeout, .. } = self;
        if self.signs.sent.load(Ordering::Relaxed) {
            let why = format!("{address} received the message but did not answer within {timeout:?}");
            return Fault::receiver(Reason::Timeout, why);
        }
        let why = format!(
            "{address} had no room for the message for {patience:?}, since it is not reading; try again"
        );
        Fault::receiver(Reason::Busy, why)
    }
}

/// Whether the part is in the tables and its node is reachable.
pub(super) fn exists(node: &Node, part: Target) -> bool {
    let engine = node.shared.engine();
    engine.part(part).is_some_and(|entry| entry.id == part) && !engine.has_failed(part.node())
}

/// Discards messages for an earlier client: second replies, or returned messages.
fn discard(part: &Part<Shared>) {
    while part.try_recv().is_some() {}
    while let Ok(Some(_)) = part.try_returned() {}
}
