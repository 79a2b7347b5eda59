//! The desk: gives programs in any language access to the parts of a running cluster, by SOAP.
//!
//! ```text
//!  zeep, curl, … ◀──HTTP──▶ http::Service ──▶ Counter ──▶ envelope: limits, what is asked for
//!                                                └──▶ Exchanges: own parts ◀──messages──▶ parts of the cluster
//!                                                      └── Mailboxes: named parts ◀──messages──┘
//! ```
//!
//! With the setting `desk` a node serves these operations, by SOAP 1.1 and 1.2, document/literal, with messages in base64:
//!
//! | operation | does |
//! |---|---|
//! | `Send(To, Content, From?)` | sends a message to a part, in the name of a mailbox if one is given; returns once it is in flight |
//! | `Call(To, Content, TimeoutMs?)` | sends a message to a part, and returns the first message that the part sends back |
//! | `Parts()` | the addresses of all parts |
//! | `OpenMailbox(Name, IdleMs?)` | opens a mailbox, a part of the desk's node with this name; returns its address |
//! | `Receive(Mailbox, Taken, TimeoutMs?)` | the messages of a mailbox after number `Taken`, which is 0 at first; waits for one if there is none |
//! | `CloseMailbox(Mailbox)` | closes a mailbox and discards its messages; returns when its name is free |
//!
//! `http://HOST:PORT/pdbp?wsdl` describes them (WSDL 1.1 with the schema; `?xsd` returns the schema alone). Called parts know nothing of SOAP:
//! they reply to [`Message::source`](crate::Message::source) as to any part, once per call. A second reply is discarded. Only one
//! from a part of another cluster that comes after the next call of that part is taken for the reply to that call.
//!
//! **Mailboxes.** A program that wants to be sent messages opens a mailbox, and parts find it by name like any part of the node:
//! `part.find("dashboard@node0", …)`. Their messages have numbers from 1, and stay until the client has confirmed them by the `Taken` of its next
//! `Receive`: if an answer is lost, the same messages come again. Opening a mailbox that is open returns the same one with its messages,
//! so that a client may start again where it was; clients that must not share messages choose different names. If two clients receive from one
//! mailbox at a time, the earlier request is answered without messages. A mailbox holds 64 messages and 1 MiB, or one longer message; when it is
//! full, those who send to it wait, as with any part that does not receive. It is closed after a minute, or `IdleMs` (an hour at most), in which
//! nobody received from it. What a part of another cluster did not get of what was sent from a mailbox comes back to that, with the command
//! 65535 and without a sender. A desk has at most 1,024 mailboxes, for which it holds 64 MiB together. Streams to a mailbox are discarded.
//!
//! The detail of a fault is a `Failure` with one of these reasons:
//!
//! | reason | whose | what |
//! |---|---|---|
//! | `Malformed` | sender | no SOAP 1.1 or 1.2 envelope, or none with one of these operations |
//! | `TooLong` | sender, receiver | the message, its reply, or the next message of the mailbox exceeds 4 MiB; or what surrounds it 64 KiB |
//! | `NoSuchPart` | sender | no part has the address, or several have the name |
//! | `NoSuchMailbox` | sender | the mailbox was never opened, or has been closed |
//! | `NameTaken` | sender | another part of the node has the name that the mailbox should have |
//! | `Busy` | receiver | the part does not read, its cluster is unreachable, or too many calls are in progress: nothing was sent; with `Retry-After` |
//! | `Timeout` | receiver | sent, but no reply arrived in time |
//! | `PartGone` | receiver | the part or its node was gone before it replied |
//! | `Failed` | receiver | anything else; see the message |

mod answer;
mod bell;
mod envelope;
mod exchange;
mod fault;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod mailbox;
mod mailboxes;
mod registrar;
mod remote;
mod run;
mod stats;
#[cfg(test)]
mod tests;
mod threads;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Progress, Settings};
use crate::http::{Answer, Certificate, Hosts, Limits, Method, Request, Secret, Service, Site, Ticket};
use crate::node::Node;
use envelope::{Operation, Version};
use exchange::{Exchanges, Order, Reply};
use fault::Fault;
pub use stats::DeskStats;
use stats::Done;

/// Path of the service.
const PATH: &str = "/pdbp";

const LIMITS: Limits = Limits {
    clients: 64,
    per_address: 56,
    head: 8 << 10,
    request: Duration::from_secs(5),
    pace: Duration::from_secs(10),
    least: 160 << 10,
    idle: Some(Duration::from_secs(60)),
    close: Duration::from_secs(1),
    held: 64 << 20,
};

const INDEX: &str = "\
PDBP desk: the parts of a cluster, by SOAP 1.1 and 1.2
/pdbp?wsdl  the operations Send, Call, Parts, OpenMailbox, Receive and CloseMailbox (WSDL 1.1)
/pdbp?xsd   the schema of their bodies
";

/// Serves clients outside the cluster from one of its nodes, at the address in the setting `desk`. By SOAP 1.1 and 1.2 they send to parts
/// (`Send`), call them (`Call`), list them (`Parts`), and have mailboxes that parts send to (`OpenMailbox`, `Receive`, `CloseMailbox`);
/// `http://HOST:PORT/pdbp?wsdl` describes how.
///
/// **Clients.** One thread serves up to 64 clients at a time, at most 56 of them from one address, and never blocks on a client. Connections are
/// kept open while requests arrive. If all places are taken, a new client gets the place of a client that left without waiting for its reply, or
/// of the one silent for longest; if no client gives way, it gets status 503. The head of a request may have 8 KiB and 64 fields and must arrive
/// within 5 seconds; bodies and replies may take as long as they advance by 160 KiB every 10 seconds; a connection without a request is closed
/// after 60 seconds. A message has at most 4 MiB, what surrounds it in its envelope 64 KiB, all bodies and replies together 64 MiB.
///
/// **Access.** Whoever may use the desk may use all of it, any mailbox included. If it listens on a loopback address, any process on this host
/// may. With the setting `client_token_file` clients must send the secret in that file as bearer token (`Authorization: Bearer SECRET`). Any
/// other address requires that setting, and either `desk_tls`, a folder with the certificate for TLS 1.3 (plain connections are then refused),
/// or `plain`, which lets the secret travel unencrypted. As for the figures, requests must be addressed to an IP address, to `localhost`, to the
/// host in the setting `desk`, or to one in `metrics_hosts`.
pub struct Desk {
    service: Service,
    done: Arc<Done>,
    /// Dropped after the threads of the service have ended, so that none of them has the last handle to the node.
    _node: Node,
}

impl Desk {
    /// Binds the address, before anything can be served.
    pub(crate) fn bind(address: &str, settings: &Settings) -> io::Result<TcpListener> {
        let refused = |why: &str| Err(io::Error::other(why.to_owned()));
        if settings.progress == Progress::Inline {
            return refused(
                "with `progress` = \"inline\" nothing polls the node while calls wait; set \"thread\", or \"host\" and poll it in a loop",
            );
        }
        let secret = Secret::read(settings.client_token_file.as_deref())?;
        let certificate = certificate(settings)?;
        let listener = TcpListener::bind(address)?;
        if listener.local_addr()?.ip().is_loopback() {
            return Ok(listener);
        }
        if !secret.is_set() {
            return refused(
                "other hosts can reach it, and any client could send to parts: set `client_token_file`, or use 127.0.0.1",
            );
        }
        if !settings.plain && certificate.is_none() {
            return refused(
                "other hosts can reach it, and clients would send their secret unencrypted: set `desk_tls`, or `plain` = \"on\" on a network that \
                 you trust, or use 127.0.0.1",
            );
        }
        Ok(listener)
    }

    /// Starts the desk, which keeps a clone of the node: one without a desk.
    pub(crate) fn start(listener: TcpListener, node: &Node) -> io::Result<Self> {
        // Interrupts are meant for the calls of the program.
        let node = node.uninterrupted();
        let settings = node.settings();
        let secret = Secret::read(settings.client_token_file.as_deref())?;
        let own = settings.desk.as_deref().and_then(|address| address.rsplit_once(':')).map(|(host, _)| host);
        let hosts = Hosts::new(own.into_iter().chain(settings.metrics_hosts.iter().map(String::as_str)));
        let certificate = certificate(settings)?;
        let scheme = if certificate.is_some() { "https" } else { "http" };
        let (address, timeout) = (listener.local_addr()?, settings.timeout);
        let name = format!("pdbp-http-{}", node.id());
        let (mut failed, done) = (None, Arc::<Done>::default());
        let count = Arc::clone(&done);
        let of_service = node.clone();
        let service = Service::start(listener, LIMITS, hosts, certificate, name, |waker| {
            let exchanges = Exchanges::start(of_service, waker, Arc::clone(&count))
                .map_err(|error| failed = Some(error))
                .ok();
            Counter {
                exchanges,
                secret,
                scheme,
                address,
                timeout,
                done: count,
                versions: Vec::new(),
                outcomes: Vec::new(),
            }
        })?;
        match failed {
            Some(error) => Err(error),
            None => Ok(Self { service, done, _node: node }),
        }
    }

    /// The address at which it listens; for port 0 in the setting, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.service.address()
    }

    /// Returns counters of the replies to clients so far.
    pub fn stats(&self) -> DeskStats {
        self.done.stats(self.service.counts())
    }
}

/// The certificate named by the setting `desk_tls`.
fn certificate(settings: &Settings) -> io::Result<Option<Certificate>> {
    settings.desk_tls.as_deref().map(Certificate::read).transpose()
}

/// Answers the requests of clients.
struct Counter {
    /// `None` if the start failed; then no client asks.
    exchanges: Option<Exchanges>,
    secret: Secret,
    scheme: &'static str,
    address: SocketAddr,
    timeout: Duration,
    done: Arc<Done>,
    /// The SOAP version for each waiting client.
    versions: Vec<(Ticket, Version)>,
    outcomes: Vec<(Ticket, exchange::Outcome)>,
}

impl Site for Counter {
    fn admit(&mut self, request: &Request) -> Result<usize, Answer> {
        if !matches!(request.path.as_str(), PATH | "/") {
            return Err(Answer::refusal("404 Not Found", INDEX));
        }
        self.secret.check(request)?;
        match request.method {
            Method::Get | Method::Head => Ok(0),
            Method::Post if request.path == PATH => match request.kind.as_str() {
                "text/xml" | "application/soap+xml" => Ok(envelope::ENVELOPE),
                _ => Err(Answer::refusal(
                    "415 Unsupported Media Type",
                    "send an envelope as text/xml (SOAP 1.1) or application/soap+xml (SOAP 1.2)\n",
                )),
            },
            _ => {
                let refusal = Answer::refusal("405 Method Not Allowed", INDEX);
                Err(Answer { more: "Allow: GET, HEAD, POST\r\n", ..refusal })
            }
        }
    }

    fn ask(&mut self, ticket: Ticket, request: &Request, body: Vec<u8>) -> Option<Answer> {
        if request.method != Method::Post {
            return Some(self.page(request));
        }
        let version = if request.kind == "text/xml" { Version::V11 } else { Version::V12 };
        let (version, operation) = match envelope::read(&body, version) {
            Ok(read) => read,
            // A client that does not speak SOAP may send anything next.
            Err((version, fault)) => return Some(Answer { closes: true, ..self.fault(version, &fault) }),
        };
        drop(body);
        let exchanges = self.exchanges.as_mut()?;
        let (timeout, outcomes) = (self.timeout, &mut self.outcomes);
        let order = |address, content, answer, from| Order { ticket, address, content, answer, from };
        // `None`: the reply comes later.
        let reply = match operation {
            Operation::Parts => return Some(answer::parts(version, &exchanges.node().parts())),
            Operation::Send { to, content, from } => {
                exchanges.find(order(to, content, None, from)).map(|()| None)
            }
            Operation::Call { to, content, timeout: own } => {
                exchanges.find(order(to, content, Some(own.unwrap_or(timeout)), None)).map(|()| None)
            }
            Operation::OpenMailbox { name, idle } => {
                let (mailboxes, registrar) = exchanges.mailboxes();
                mailboxes.open(registrar, ticket, name, idle)
            }
            Operation::Receive { mailbox, taken, timeout: own } => {
                let timeout = own.unwrap_or(timeout);
                exchanges.mailboxes().0.receive(ticket, &mailbox, taken, timeout, outcomes).map(|()| None)
            }
            Operation::CloseMailbox { mailbox } => {
                let (mailboxes, registrar) = exchanges.mailboxes();
                mailboxes.close(registrar, ticket, &mailbox, outcomes).map(|()| None)
            }
        };
        match reply {
            Ok(None) => {
                self.versions.push((ticket, version));
                None
            }
            Ok(Some(reply)) => Some(self.reply(version, Ok(reply))),
            Err(fault) => Some(self.fault(version, &fault)),
        }
    }

    fn abandon(&mut self, ticket: Ticket) {
        self.versions.retain(|(one, _)| *one != ticket);
        if let Some(exchanges) = &mut self.exchanges {
            exchanges.abandon(ticket);
        }
    }

    fn advance(&mut self, answers: &mut Vec<(Ticket, Answer)>) -> Option<std::time::Instant> {
        let next = self.exchanges.as_mut()?.advance(&mut self.outcomes);
        for (ticket, outcome) in std::mem::take(&mut self.outcomes) {
            let Some(i) = self.versions.iter().position(|(one, _)| *one == ticket) else { continue };
            let (_, version) = self.versions.swap_remove(i);
            let answer = self.reply(version, outcome);
            answers.push((ticket, answer));
        }
        next
    }
}

impl Counter {
    fn reply(&self, version: Version, outcome: exchange::Outcome) -> Answer {
        match outcome {
            Ok(Reply::Sent) => {
                self.done.sent.add();
                answer::sent(version)
            }
            Ok(Reply::Called(content)) => {
                self.done.called.add();
                answer::called(version, &content)
            }
            Ok(Reply::Opened(address)) => answer::opened(version, &address),
            Ok(Reply::Received(letters)) => answer::received(version, &letters),
            Ok(Reply::Closed) => answer::closed(version),
            Err(fault) => self.fault(version, &fault),
        }
    }

    fn fault(&self, version: Version, fault: &Fault) -> Answer {
        self.done.fault(fault.reason);
        answer::fault(version, fault)
    }

    fn page(&self, request: &Request) -> Answer {
        let own = self.address.to_string();
        let url = format!("{}://{}{PATH}", self.scheme, request.authority.as_ref().unwrap_or(&own));
        match request.query.to_ascii_lowercase().as_str() {
            "wsdl" | "singlewsdl" => Answer::new("200 OK", "text/xml; charset=utf-8", answer::wsdl(&url)),
            "xsd" => Answer::new("200 OK", "text/xml; charset=utf-8", answer::XSD),
            _ => Answer::text("200 OK", INDEX),
        }
    }
}
