//! The figures over HTTP: `/metrics` for Prometheus, `/cluster.json` for `pdbp top` and programs.
//!
//! ```text
//!  clients ◀──HTTP──▶ server: one thread, sockets that never block ──paths──▶ pages: Node::observe, as text
//!                        └── request: what is asked for, and under which host
//! ```
//!
//! The server is our own and small, because what it has to do is small too: GET, one answer per connection, and limits on
//! everything that a client decides. Of the kept servers, tiny_http has no deadline on its sockets, so that a silent client
//! keeps a thread for ever, and hyper would bring a runtime for asynchronous code into every program that has a cluster. mio
//! (sockets) and httparse (requests) are what those servers are built on.

mod request;
mod server;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mio::Waker;

use super::{ClusterFigures, prometheus};
use crate::config::Settings;
use crate::node::Shared;
use request::Hosts;
use server::{Limits, Page, Pages, Server};

/// How long nodes may take to answer before they are shown as silent.
const ANSWER: Duration = Duration::from_millis(500);

const INDEX: &str = "\
PDBP cluster
/metrics       for Prometheus (OpenMetrics text)
/cluster.json  the same as JSON; what `pdbp top` shows
";

/// Serves the figures of the cluster over HTTP from one of its nodes, as the setting `metrics` says. It only reads, and asks
/// nobody who he is: let it listen where only those can connect who may see the figures.
///
/// **Clients.** None waits for another, and nothing waits for them: one thread serves up to 16 at a time, with sockets that
/// never block, and tells more than that to try again (status 503). A request has 8 KiB, 64 headers and 5 seconds until it is
/// complete, the client 10 seconds to take the whole answer, however small the steps are in which it does. Requests that come
/// together share one look at the cluster.
///
/// **Hosts.** A page of another site can have its name resolve to this address (DNS rebinding), and a browser would then let it read
/// the figures. So the request has to say that it is for an IP address, for `localhost`, for the host in the setting `metrics`, or
/// for one of those in the setting `metrics_hosts`; any other gets status 421. Such an attack needs a name, so any IP
/// address will do, and any port: behind a tunnel or in a container they are others than those listened on. HTTP/1.0 may
/// leave the host out.
///
/// The thread ends with the last handle to the node, and waits for no client then.
pub struct Endpoint {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Takes the address, before there is anything to serve.
    pub(crate) fn bind(address: &str) -> io::Result<TcpListener> {
        TcpListener::bind(address)
    }

    pub(crate) fn start(listener: TcpListener, shared: &Arc<Shared>) -> io::Result<Self> {
        let hosts = hosts(&shared.settings);
        let pages = Figures { shared: Arc::downgrade(shared), ..Figures::default() };
        Self::serve(listener, Limits::default(), hosts, pages, format!("pdbp-http-{}", shared.id))
    }

    fn serve(
        listener: TcpListener,
        limits: Limits,
        hosts: Hosts,
        pages: impl Pages + Send + 'static,
        name: String,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut server = Server::new(listener, limits, hosts, pages, Arc::clone(&stop))?;
        let waker = server.waker()?;
        let thread = thread::Builder::new().name(name).spawn(move || server.run())?;
        Ok(Self { address, stop, waker, thread: Some(thread) })
    }

    /// Where it listens: with port 0 in the setting, the port that it was given.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Pairs with the loads of the server, which looks whenever it has been woken.
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && self.waker.wake().is_ok()
            && thread.thread().id() != thread::current().id()
        {
            // Lasts as long as a look at the cluster at most. A thread that panicked has said so on stderr.
            let _ = thread.join();
        }
    }
}

/// The hosts under which the endpoint is asked.
fn hosts(settings: &Settings) -> Hosts {
    let own = settings.metrics.as_deref().and_then(|address| address.rsplit_once(':')).map(|(host, _)| host);
    Hosts::new(own.into_iter().chain(settings.metrics_hosts.iter().map(String::as_str)))
}

/// What there is to see. Pages are made at most once per turn.
#[derive(Default)]
struct Figures {
    shared: Weak<Shared>,
    seen: Option<ClusterFigures>,
    metrics: Option<Page>,
    json: Option<Page>,
}

impl Figures {
    fn look(&mut self) -> Option<&ClusterFigures> {
        if self.seen.is_none() {
            self.seen = self.shared.upgrade().map(|shared| shared.observe(ANSWER));
        }
        self.seen.as_ref()
    }

    fn metrics(&mut self) -> Option<Page> {
        if self.metrics.is_none() {
            let body = prometheus::text(self.look()?.clone()).into();
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            self.metrics = Some(Page { status: "200 OK", kind, body });
        }
        self.metrics.clone()
    }

    fn json(&mut self) -> Option<Page> {
        if self.json.is_none() {
            self.json = Some(match serde_json::to_string(self.look()?) {
                Ok(body) => Page { status: "200 OK", kind: "application/json", body: body.into() },
                Err(error) => Page::text("500 Internal Server Error", &format!("{error}\n")),
            });
        }
        self.json.clone()
    }
}

impl Pages for Figures {
    fn renew(&mut self) {
        (self.seen, self.metrics, self.json) = (None, None, None);
    }

    fn page(&mut self, path: &str) -> Page {
        let page = match path {
            "/metrics" => self.metrics(),
            "/cluster.json" => self.json(),
            "/" => Some(Page::text("200 OK", INDEX)),
            _ => Some(Page::text("404 Not Found", INDEX)),
        };
        page.unwrap_or_else(|| Page::text("503 Service Unavailable", "this node has ended\n"))
    }
}
