//! One client.

use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use super::body::Body;
use super::request::{Hosts, Refused};
use super::stream::Stream;
use super::{Answer, Counts, Limits, Request, Site, Ticket};

/// Bytes that a connection may read or write per turn.
const TURN: usize = 256 << 10;
/// Bytes read at a time.
const PIECE: usize = 16 << 10;
/// Tells a client that waits to send the body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// State shared by all connections.
pub(super) struct Context<S> {
    pub(super) limits: Limits,
    pub(super) hosts: Hosts,
    pub(super) site: S,
    pub(super) counts: Arc<Counts>,
    /// Bytes of bodies and replies held for all connections.
    pub(super) held: usize,
}

/// A client.
pub(super) struct Connection {
    stream: Stream,
    pub(super) id: Ticket,
    /// Whether the socket may have something to read, or room to write.
    is_ready: bool,
    /// Whether the client has closed its sending side.
    is_ending: bool,
    /// The address that its place is counted under.
    pub(super) address: IpAddr,
    /// Whether it occupies a place.
    pub(super) is_served: bool,
    /// Whether the last read took everything available, so that another would find nothing.
    is_drained: bool,
    /// Whether it ended while the site had its request.
    is_abandoned: bool,
    stage: Stage,
    /// Whether the request is a HEAD, whose answer has no body (RFC 9110 section 9.3.2).
    is_head: bool,
    /// Bytes received and not used yet.
    input: Vec<u8>,
    /// When the stage must have ended or progressed; `None` while the site has the request.
    deadline: Option<Instant>,
    /// The progress when the deadline was set.
    before: usize,
    /// Bytes of the body of the request being answered.
    weight: usize,
}

enum Stage {
    /// Waiting for the head. `fresh`: the input received has not been parsed yet.
    Asking {
        fresh: bool,
    },
    /// Waiting for the body.
    Sending {
        /// The rest of a line that tells the client to send it.
        interim: &'static [u8],
        request: Box<Request>,
        body: Vec<u8>,
        most: usize,
    },
    /// The site has the request.
    Waiting {
        is_kept: bool,
    },
    /// Holds the reply back until the deadline.
    Delaying(Box<Answer>),
    /// Sending the reply; `written` bytes have been sent.
    Answering {
        head: String,
        body: Arc<str>,
        written: usize,
        is_kept: bool,
    },
    /// Discarding input: if the connection were closed with bytes unread, the client would lose the reply.
    Closing,
    Over,
}

/// Whether a place is free for another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Free,
    /// All places are taken.
    None,
    /// All places for clients of one address are taken.
    OfAddress,
}

/// What counts as one address: for IPv6 a whole network, since it has any number of them.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
        address => address,
    }
}

impl Connection {
    /// `address` is the address to count the place under, and `place` whether it has one.
    pub(super) fn new<S>(
        stream: Stream,
        id: Ticket,
        (address, place): (IpAddr, Place),
        context: &mut Context<S>,
    ) -> Self {
        let (limits, is_served) = (&context.limits, place == Place::Free);
        let mut connection = Self {
            stream,
            id,
            address,
            is_ready: true,
            is_ending: false,
            is_served,
            is_drained: false,
            is_abandoned: false,
            stage: Stage::Asking { fresh: false },
            is_head: false,
            input: Vec::new(),
            deadline: Some(Instant::now() + limits.request),
            before: 0,
            weight: 0,
        };
        if !is_served {
            let (most, of) = match place {
                Place::OfAddress => (limits.per_address, " of this address"),
                _ => (limits.clients, ""),
            };
            let why = format!("already serving {most} clients{of}, the limit; try again\n");
            connection.refuse("503 Service Unavailable", &why, context);
            if connection.stream.is_handshaking() {
                // The refusal is sent when the handshake is over.
                connection.deadline = Some(Instant::now() + context.limits.request);
            }
        }
        connection
    }

    /// Handles an event of the socket: whether the client has closed its sending side, and whether it is gone.
    pub(super) fn has_event(&mut self, is_ending: bool, is_gone: bool) {
        self.is_ready = true;
        self.is_drained = false;
        self.is_ending |= is_ending;
        if is_gone && self.is_waiting() {
            self.stage = Stage::Over;
            self.is_abandoned = true;
        }
    }

    /// Whether the site has the request.
    fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting { .. })
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Whether another client may take its place: nothing of its next request has arrived, or it ended while the site had
    /// one.
    pub(super) fn can_be_displaced(&self) -> bool {
        let is_idle = matches!(self.stage, Stage::Asking { .. }) && self.input.is_empty();
        self.is_served && (is_idle || self.is_waiting() && self.is_ending)
    }

    /// Whether it is over while the site still has its request. True only once.
    pub(super) fn take_abandoned(&mut self) -> bool {
        std::mem::take(&mut self.is_abandoned)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(super) fn close(&mut self) {
        self.is_abandoned = self.is_waiting();
        self.stage = Stage::Over;
    }

    /// Bytes of bodies and replies that it holds.
    pub(super) fn held(&self) -> usize {
        self.weight
            + match &self.stage {
                Stage::Sending { body, .. } => body.len(),
                Stage::Answering { body, .. } => body.len(),
                _ => 0,
            }
    }

    /// Does all pending work. Returns whether there may be more.
    pub(super) fn advance<S: Site>(&mut self, context: &mut Context<S>) -> bool {
        let is_late = |deadline: Option<Instant>| deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if !self.is_ready && !is_late(self.deadline) {
            return false;
        }
        let mut budget = TURN;
        let outcome = loop {
            let outcome = match &mut self.stage {
                Stage::Asking { .. } => self.ask(context),
                Stage::Sending { .. } => self.take_body(context),
                Stage::Waiting { .. } | Stage::Delaying(_) => Err(io::ErrorKind::WouldBlock.into()),
                Stage::Answering { .. } => self.write(&context.limits),
                Stage::Closing => read(&mut self.stream, &mut [0; PIECE]),
                Stage::Over => return false,
            };
            match outcome {
                Ok(bytes) if bytes < budget => budget -= bytes,
                other => break other,
            }
        };
        self.is_ready = outcome.is_ok();
        match outcome {
            Err(error) if self.stream.gives_up_tls(&error) => {
                self.refuse("400 Bad Request", "this address requires TLS: use https\n", context);
                true
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                // A client that leaves before its reply is no concern of the cluster.
                self.stage = Stage::Over;
                false
            }
            // Checked last: this thread may be late rather than the client.
            _ if is_late(self.deadline) => self.expire(context),
            outcome => outcome.is_ok(),
        }
    }

    /// Handles a deadline that has passed. Returns whether there is more to do.
    fn expire<S>(&mut self, context: &Context<S>) -> bool {
        let limits = &context.limits;
        let done = match &mut self.stage {
            Stage::Sending { body, .. } => body.len(),
            Stage::Answering { written, .. } => *written,
            // A client that has not finished the handshake cannot be told anything.
            Stage::Asking { .. }
                if self.input.is_empty() && (limits.idle.is_some() || self.stream.is_handshaking()) =>
            {
                context.counts.expired.add();
                self.stage = Stage::Over;
                return false;
            }
            Stage::Asking { .. } => {
                context.counts.expired.add();
                let why = format!("the request was not complete after {:?}\n", limits.request);
                self.refuse("408 Request Timeout", &why, context);
                return true;
            }
            Stage::Delaying(answer) => {
                let answer = Answer { delay: std::time::Duration::ZERO, ..(**answer).clone() };
                self.answer(answer, limits, false);
                return true;
            }
            _ => {
                self.stage = Stage::Over;
                return false;
            }
        };
        if done - self.before >= limits.least {
            (self.before, self.deadline) = (done, Some(Instant::now() + limits.pace));
            return self.is_ready;
        }
        context.counts.expired.add();
        if let Stage::Sending { .. } = self.stage {
            let why = format!("less than {} bytes of the body arrived in {:?}\n", limits.least, limits.pace);
            self.refuse("408 Request Timeout", &why, context);
            return true;
        }
        self.stage = Stage::Over;
        false
    }

    /// Takes the input that has arrived of the head, and continues when the head is complete.
    fn ask<S: Site>(&mut self, context: &mut Context<S>) -> io::Result<usize> {
        let Stage::Asking { fresh } = &mut self.stage else { return Ok(0) };
        let read = if std::mem::take(fresh) { 0 } else { self.read()? };
        let was_idle = context.limits.idle.is_some() && read > 0 && read == self.input.len();
        if was_idle && self.before > 0 {
            self.deadline = Some(Instant::now() + context.limits.request);
        }
        self.is_head = self.input.trim_ascii_start().starts_with(b"HEAD ");
        let asked = Request::read(&self.input, context.limits.head);
        let asked = asked.and_then(|asked| match asked {
            Some((request, length)) => context.hosts.check(&request).map(|()| Some((request, length))),
            None => Ok(None),
        });
        match asked {
            Ok(None) => {}
            Ok(Some((request, length))) => {
                self.input.drain(..length.min(self.input.len()));
                self.admit(request, context)?;
            }
            Err(Refused { status, why }) => self.refuse(status, &why, context),
        }
        Ok(read)
    }

    /// Handles a complete head: the client may now send a body, if it is admitted.
    fn admit<S: Site>(&mut self, mut request: Request, context: &mut Context<S>) -> io::Result<()> {
        let most = match context.site.admit(&request) {
            Ok(most) => most,
            Err(refusal) => {
                context.counts.refused.add();
                self.answer(Answer { closes: true, ..refusal }, &context.limits, false);
                return Ok(());
            }
        };
        if matches!(request.body, Body::Bytes(length) if length > most as u64) {
            let Refused { status, why } = Refused::too_large(most);
            self.refuse(status, &why, context);
            return Ok(());
        }
        // A client that did not wait gets no 100 Continue.
        let waits = std::mem::take(&mut request.waits) && !request.body.is_whole() && self.input.is_empty();
        let interim: &[u8] = if waits { CONTINUE } else { b"" };
        (self.before, self.deadline) = (0, Some(Instant::now() + context.limits.pace));
        self.stage = Stage::Sending { interim, request: Box::new(request), body: Vec::new(), most };
        self.use_body(context);
        Ok(())
    }

    /// Takes the input that has arrived of the body, and passes the request on when the body is complete.
    fn take_body<S: Site>(&mut self, context: &mut Context<S>) -> io::Result<usize> {
        if let Stage::Sending { interim, .. } = &mut self.stage
            && !interim.is_empty()
        {
            // A client that has not read earlier replies may have left no room.
            let sent = write(&mut self.stream, interim)?;
            *interim = interim.get(sent..).unwrap_or(&[]);
            return Ok(sent);
        }
        let read = self.read()?;
        self.use_body(context);
        Ok(read)
    }

    fn use_body<S: Site>(&mut self, context: &mut Context<S>) {
        let Stage::Sending { request, body, most, .. } = &mut self.stage else { return };
        let before = body.len();
        let used = request.body.take(&self.input, body, *most);
        context.held += body.len() - before;
        match used {
            Ok(used) => self.input.drain(..used.min(self.input.len())),
            Err(Refused { status, why }) => return self.refuse(status, &why, context),
        };
        if context.held > context.limits.held {
            let why = "other clients are sending too much; try again\n";
            return self.refuse("503 Service Unavailable", why, context);
        }
        if !request.body.is_whole() {
            return;
        }
        let Stage::Sending { request, body, .. } = std::mem::replace(&mut self.stage, Stage::Closing) else {
            return;
        };
        let is_kept = request.is_kept && context.limits.idle.is_some();
        let weight = body.len();
        match context.site.ask(self.id, &request, body) {
            Some(answer) => {
                context.held -= weight;
                self.answer_within(answer, is_kept, context);
            }
            None => {
                (self.stage, self.deadline, self.weight) = (Stage::Waiting { is_kept }, None, weight);
            }
        }
    }

    /// Takes the site's reply to a request.
    pub(super) fn reply<S>(&mut self, answer: Answer, context: &mut Context<S>) {
        let Stage::Waiting { is_kept } = self.stage else { return };
        self.answer_within(answer, is_kept, context);
    }

    /// Sends a reply, if there is memory for it.
    fn answer_within<S>(&mut self, answer: Answer, is_kept: bool, context: &mut Context<S>) {
        context.held += answer.body.len();
        if context.held > context.limits.held {
            let why = "the request was carried out, but there is no memory for the answer, since other clients are not reading theirs\n";
            return self.refuse("503 Service Unavailable", why, context);
        }
        self.answer(answer, &context.limits, is_kept);
    }

    fn refuse<S>(&mut self, status: &'static str, why: &str, context: &Context<S>) {
        context.counts.refused.add();
        self.answer(Answer::refusal(status, why), &context.limits, false);
    }

    fn answer(&mut self, answer: Answer, limits: &Limits, is_kept: bool) {
        self.is_ready = true;
        if !answer.delay.is_zero() {
            self.deadline = Some(Instant::now() + answer.delay);
            self.stage = Stage::Delaying(Box::new(answer));
            return;
        }
        let is_kept = is_kept && !answer.closes;
        let head = head(&answer, is_kept);
        let body = if self.is_head { "".into() } else { answer.body };
        (self.before, self.deadline) = (0, Some(Instant::now() + limits.pace));
        self.stage = Stage::Answering { head, body, written: 0, is_kept };
    }

    fn write(&mut self, limits: &Limits) -> io::Result<usize> {
        let Stage::Answering { head, body, written, is_kept } = &mut self.stage else { return Ok(0) };
        let rest = match written.checked_sub(head.len()) {
            // A short reply is sent in one piece, which wakes the client once.
            None if *written == 0 && body.len() <= PIECE => {
                head.push_str(body);
                *body = "".into();
                head.as_bytes()
            }
            None => head.as_bytes().get(*written..).unwrap_or(&[]),
            Some(of_body) => body.as_bytes().get(of_body..).unwrap_or(&[]),
        };
        if rest.is_empty() {
            self.stream.flush()?;
            self.weight = 0;
            if *is_kept && let Some(idle) = limits.idle {
                let fresh = !self.input.is_empty();
                let time = if fresh { limits.request } else { idle };
                // Not 0, so that the first byte of a request restarts the clock.
                (self.before, self.deadline) = (1, Some(Instant::now() + time));
                self.stage = Stage::Asking { fresh };
                return Ok(0);
            }
            self.stream.shut_down()?;
            (self.stage, self.is_served) = (Stage::Closing, false);
            self.deadline = Some(Instant::now() + limits.close);
            return Ok(0);
        }
        let sent = write(&mut self.stream, rest.get(..TURN).unwrap_or(rest))?;
        *written += sent;
        Ok(sent)
    }

    /// Reads some of the available input.
    fn read(&mut self) -> io::Result<usize> {
        // Data that arrives later causes another event.
        if std::mem::take(&mut self.is_drained) && !self.is_ending {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut some = [0; PIECE];
        let read = read(&mut self.stream, &mut some)?;
        self.is_drained = read > 0 && read < PIECE && self.stream.is_drained_by_short_reads();
        self.input.extend_from_slice(some.get(..read).unwrap_or(&[]));
        Ok(read)
    }
}

/// The head of a reply.
fn head(answer: &Answer, is_kept: bool) -> String {
    let Answer { status, kind, more, body, .. } = answer;
    let (length, closes) = (body.len(), if is_kept { "" } else { "Connection: close\r\n" });
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nX-Content-Type-Options: nosniff\r\n\
         {more}{closes}\r\n"
    )
}

/// Writes some bytes, as many as there is room for.
fn write(stream: &mut Stream, bytes: &[u8]) -> io::Result<usize> {
    match stream.write(bytes) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        written => written,
    }
}

/// Reads some bytes; returns an error at the end of the stream.
fn read(stream: &mut Stream, some: &mut [u8]) -> io::Result<usize> {
    match stream.read(some) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        read => read,
    }
}
