//! Exchanges between clients and parts.
//!
//! To a part of the cluster, a call is a message from one of the desk's own parts; it replies to the source as usual. Each of the
//! desk's parts carries one call at a time, so its next message from the called part is the reply. Parts may reply more than once,
//! later, to a call that was given up, or to a message that is no call. So the desk's parts have no name, and get another number
//! ([`Part::renew`]) before each call: what comes for the number of an earlier one finds no part. Other clusters would have to agree on
//! each number, so calls of their parts share one: a second reply from there may be taken for the reply to the next call of the same part.
//!
//! Attaching a part can need the cluster's agreement, which takes time, so a separate thread attaches and frees them.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use super::envelope::CONTENT;
use super::fault::{Code, Fault, Reason};
use super::remote::{Remote, is_remote};
use crate::error::{RecvError, SendError};
use crate::http::Ticket;
use crate::node::Node;
use crate::part::{Part, Shared, Target};

/// How long a message waits for room before the client learns that the part is busy.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long an idle part of the desk is kept.
const IDLE: Duration = Duration::from_secs(60);
/// Interval between checks whether a called part still exists.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The result of an exchange: the reply of a called part, or `None` if a message was only sent.
pub(super) type Outcome = Result<Option<Vec<u8>>, Fault>;

/// A request of a client to a part.
pub(super) struct Order {
    pub(super) ticket: Ticket,
    /// The address as the client wrote it.
    pub(super) address: String,
    pub(super) content: Vec<u8>,
    /// How long to wait for a reply, if the client wants one.
    pub(super) answer: Option<Duration>,
}

type Run = Pin<Box<dyn Future<Output = (Part<Shared>, Outcome)> + Send>>;

struct Exchange {
    ticket: Ticket,
    to: Target,
    address: String,
    run: Run,
    /// Whether all of the message has been sent.
    sent: Arc<AtomicBool>,
    began: Instant,
    /// How long to wait for room, and then for the reply.
    patience: Duration,
    timeout: Duration,
    /// See [`Idle`].
    is_spent: bool,
}

/// One of the desk's parts, between exchanges.
struct Idle {
    part: Part<Shared>,
    /// When it became idle, if it has been used.
    since: Option<Instant>,
    /// Whether replies to what it has sent may still come, so that it needs another number before it carries a call.
    is_spent: bool,
}

/// Work for the thread that attaches and frees parts.
enum Task {
    Attach,
    /// Frees the part of an exchange that was given up.
    Free(Run),
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
    tasks: Sender<Task>,
    attached: Receiver<Result<Part<Shared>, String>>,
    /// Whether idle parts have carried calls since they got their numbers.
    needs_renewal: bool,
    /// Parts requested and not attached yet.
    attaching: usize,
    last_check: Instant,
}

/// Wakes the server when something has arrived for an exchange.
pub(super) struct Bell {
    rung: AtomicBool,
    waker: Arc<mio::Waker>,
}

impl Bell {
    /// Rings for an event other than a message.
    pub(super) fn ring(self: &Arc<Self>) {
        self.wake_by_ref();
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Pairs with the server's swap, after which it checks all exchanges.
        if !self.rung.swap(true, Ordering::AcqRel) {
            // Fails once the server is gone.
            let _ = self.waker.wake();
        }
    }
}

impl Exchanges {
    pub(super) fn start(node: Node, waker: &Arc<mio::Waker>) -> std::io::Result<Self> {
        let bell = Arc::new(Bell { rung: AtomicBool::new(false), waker: Arc::clone(waker) });
        let (tasks, todo) = channel::<Task>();
        let (done, attached) = channel();
        let (registrar, wakes) = (node.clone(), Arc::clone(&bell));
        let name = format!("pdbp-desk-{}", node.id());
        thread::Builder::new().name(name).spawn(move || {
            while let Ok(task) = todo.recv() {
                match task {
                    Task::Free(run) => drop(run),
                    Task::Attach => {
                        let part = registrar.attach_shared();
                        // Once the server is gone, the part is not taken, and is freed.
                        let _ = done.send(part.map_err(|error| error.to_string()));
                        wakes.wake_by_ref();
                    }
                }
            }
        })?;
        let mut exchanges = Self {
            node,
            waker: Waker::from(Arc::clone(&bell)),
            bell,
            idle: VecDeque::new(),
            orders: VecDeque::new(),
            remote: Remote::new(),
            in_progress: Vec::new(),
            tasks,
            attached,
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
    /// The target does not exist, or too many lookups are in progress.
    pub(super) fn find(&mut self, order: Order) -> Result<(), Fault> {
        if let Some((order, to)) = self.remote.find(&self.node, &self.bell, order)? {
            self.orders.push_back((order, to, Instant::now()));
        }
        Ok(())
    }

    /// Gives up an exchange whose client has gone. A message that was sent stays sent.
    pub(super) fn abandon(&mut self, ticket: Ticket) {
        self.remote.abandon(ticket);
        self.orders.retain(|(order, ..)| order.ticket != ticket);
        if let Some(i) = self.in_progress.iter().position(|exchange| exchange.ticket == ticket) {
            let _ = self.tasks.send(Task::Free(self.in_progress.swap_remove(i).run));
        }
    }

    /// Advances all exchanges. Returns when it must be called again if nothing arrives before.
    pub(super) fn advance(&mut self, done: &mut Vec<(Ticket, Outcome)>) -> Option<Instant> {
        let now = Instant::now();
        // Pairs with the swap of the bell, and precedes all checks: anything that arrives from now on rings again.
        let mut is_due = self.bell.rung.swap(false, Ordering::AcqRel);
        // When the replies have been written, so that no client waits for it.
        if std::mem::take(&mut self.needs_renewal) {
            let spent = self.idle.iter_mut().filter(|idle| idle.is_spent);
            spent.for_each(|idle| idle.is_spent = !idle.part.renew());
        }
        while let Ok(attached) = self.attached.try_recv() {
            self.attaching -= 1;
            match attached {
                Ok(part) => self.idle.push_back(Idle { part, since: None, is_spent: false }),
                Err(error) => self.refuse(&error, done),
            }
        }
        while let Some((order, found)) = self.remote.next() {
            match found {
                Ok(to) => self.orders.push_back((order, to, Instant::now())),
                Err(fault) => done.push((order.ticket, Err(fault))),
            }
        }
        let mut i = 0;
        while let Some((order, ..)) = self.orders.get(i) {
            let Some(idle) = self.take_idle(order.answer.is_some()) else {
                i += 1;
                continue;
            };
            if let Some((order, to, began)) = self.orders.remove(i) {
                self.in_progress.push(self.exchange(idle, order, to, began));
                is_due = true;
            }
        }
        while self.attaching < self.orders.len() {
            self.attach();
        }
        if is_due {
            self.poll(done);
        }
        self.expire(now, done);
        self.tend_idle(now);
        let ends = self.in_progress.iter().map(Exchange::end);
        let orders = self.orders.iter().map(|(.., began)| *began + PATIENCE);
        let waits = !self.in_progress.is_empty() || self.idle.iter().any(|idle| idle.since.is_some());
        let check = waits.then(|| self.last_check + CHECK_INTERVAL);
        ends.chain(orders).chain(check).min()
    }

    fn attach(&mut self) {
        self.attaching += 1;
        // The thread lives as long as this value.
        let _ = self.tasks.send(Task::Attach);
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
            self.free(idle.part);
        }
    }

    fn free(&self, part: Part<Shared>) {
        let _ = self.tasks.send(Task::Free(Box::pin(async move { (part, Ok(None)) })));
    }

    fn exchange(&self, idle: Idle, order: Order, to: Target, began: Instant) -> Exchange {
        let sent = Arc::new(AtomicBool::new(false));
        let (said, content) = (Arc::clone(&sent), order.content);
        let is_call = order.answer.is_some();
        let mut part = idle.part;
        let is_spent = !is_call || !is_remote(&self.node, &order.address);
        let run = async move {
            let outcome = carry_out(&mut part, to, content, is_call, &said).await;
            (part, outcome)
        };
        let timeout = order.answer.unwrap_or(PATIENCE);
        Exchange {
            ticket: order.ticket,
            to,
            address: order.address,
            run: Box::pin(run),
            sent,
            began,
            patience: timeout.min(PATIENCE),
            timeout,
            is_spent,
        }
    }

    fn poll(&mut self, done: &mut Vec<(Ticket, Outcome)>) {
        let mut context = Context::from_waker(&self.waker);
        let mut i = 0;
        while let Some(exchange) = self.in_progress.get_mut(i) {
            match exchange.run.as_mut().poll(&mut context) {
                Poll::Ready((part, outcome)) => {
                    let Exchange { ticket, is_spent, .. } = self.in_progress.swap_remove(i);
                    self.idle.push_back(Idle { part, since: Some(Instant::now()), is_spent });
                    self.needs_renewal |= is_spent && !matches!(outcome, Ok(None));
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
            self.free(part);
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
                    let _ = self.tasks.send(Task::Free(exchange.run));
                }
                None => i += 1,
            }
        }
        while self.orders.front().is_some_and(|(.., began)| now >= *began + PATIENCE) {
            self.refuse("all parts of the desk are busy", done);
        }
    }

    /// Tells the client that has waited longest for a part of the desk that it will not get one.
    fn refuse(&mut self, why: &str, done: &mut Vec<(Ticket, Outcome)>) {
        if let Some((order, ..)) = self.orders.pop_front() {
            let why = format!("nothing was sent to {}: {why}; try again", order.address);
            done.push((order.ticket, Err(Fault::receiver(Reason::Busy, why))));
        }
    }
}

impl Exchange {
    /// When the exchange times out.
    fn end(&self) -> Instant {
        self.began + if self.sent.load(Ordering::Relaxed) { self.timeout } else { self.patience }
    }

    fn timeout_fault(&self) -> Fault {
        let Self { address, patience, timeout, .. } = self;
        if self.sent.load(Ordering::Relaxed) {
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

async fn carry_out(
    part: &mut Part<Shared>,
    to: Target,
    content: Vec<u8>,
    is_call: bool,
    sent: &AtomicBool,
) -> Outcome {
    discard(part);
    part.send_async(to, &content).await.map_err(|error| not_sent(&error))?;
    drop(content);
    sent.store(true, Ordering::Relaxed);
    if !is_call {
        part.flush();
        return Ok(None);
    }
    loop {
        let message = part.recv_async().await.map_err(|error| no_answer(&error))?;
        if message.source() != to {
            continue;
        }
        if message.len() > CONTENT {
            let why = format!("the answer has {} bytes; the maximum is {CONTENT}", message.len());
            return Err(Fault::receiver(Reason::TooLong, why));
        }
        return Ok(Some(message.to_vec()));
    }
}

fn not_sent(error: &SendError) -> Fault {
    match error {
        SendError::NoSuchPart(_) | SendError::NoSuchNode(_) => {
            Fault::new(Code::Sender, Reason::NoSuchPart, error.to_string())
        }
        SendError::PeerFailed(_) | SendError::RelayFailed { .. } => {
            Fault::receiver(Reason::PartGone, format!("nothing was sent: {error}"))
        }
        SendError::TooLong { .. } => Fault::new(Code::Sender, Reason::TooLong, error.to_string()),
        _ => Fault::receiver(Reason::Failed, format!("nothing was sent: {error}")),
    }
}

fn no_answer(error: &RecvError) -> Fault {
    let reason = if *error == RecvError::NobodyLeft { Reason::PartGone } else { Reason::Failed };
    Fault::receiver(reason, format!("the message was sent, but no answer can arrive: {error}"))
}
