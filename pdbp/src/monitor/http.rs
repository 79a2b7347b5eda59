//! The figures over HTTP: `/metrics` for Prometheus, `/cluster.json` for `pdbp top` and programs.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::sections::Sections;
use super::{ClusterFigures, Section, prometheus};
use crate::config::Settings;
use crate::http::{Answer, Hosts, Limits, Method, Request, Secret, Service, Site, Ticket};
use crate::node::Shared;

/// How long nodes may take to answer before they are reported as silent.
const ANSWER: Duration = Duration::from_millis(500);

/// A connection carries a single request, without a body.
const LIMITS: Limits = Limits {
    clients: 16,
    per_address: 14,
    head: 8 << 10,
    request: Duration::from_secs(5),
    pace: Duration::from_secs(10),
    least: usize::MAX,
    idle: None,
    close: Duration::from_secs(1),
    held: usize::MAX,
};

const INDEX: &str = "\
PDBP cluster
/metrics       for Prometheus (OpenMetrics text)
/cluster.json  the same as JSON; what `pdbp top` shows
";

/// Serves the cluster's figures over HTTP from one of its nodes, at the address in the setting `metrics`. Read-only. Without the
/// setting `client_token_file` there is no authentication: let it listen only where all who can connect may see the figures. With
/// the setting, clients must send the secret in that file as bearer token (`Authorization: Bearer SECRET`); others get status
/// 401.
///
/// **Clients.** Clients do not wait for each other, and nothing waits for them: one thread serves up to 16 at a time on
/// non-blocking sockets, and answers more with status 503. A request has at most 8 KiB and 64 headers and must be complete within
/// 5 seconds; the client has 10 seconds to take the whole answer, however small its reads. Simultaneous requests share one query
/// of the cluster.
///
/// **Hosts.** A page of another site can make its name resolve to this address (DNS rebinding), and a browser would then let it
/// read the figures. So requests must be addressed to an IP address, to `localhost`, to the host in the setting `metrics`, or to
/// one in the setting `metrics_hosts`; all others get status 421. Such an attack needs a name, so any IP address is accepted, and
/// any port: behind a tunnel or in a container they differ from those listened on. HTTP/1.0 may omit the host.
///
/// The thread ends with the last handle to the node, without waiting for clients.
///
/// A program adds figures of its own with [`show`](Self::show).
pub struct Endpoint {
    service: Service,
    pub(super) sections: Arc<Sections>,
}

impl Endpoint {
    /// Binds the address, before anything can be served.
    pub(crate) fn bind(address: &str, settings: &Settings) -> io::Result<TcpListener> {
        Secret::read(settings.client_token_file.as_deref())?;
        TcpListener::bind(address)
    }

    pub(crate) fn start(listener: TcpListener, shared: &Arc<Shared>) -> io::Result<Self> {
        let settings = &shared.settings;
        let secret = Secret::read(settings.client_token_file.as_deref())?;
        let sections = Arc::<Sections>::default();
        let of_program = Arc::clone(&sections);
        let figures = Figures { shared: Arc::downgrade(shared), of_program, secret, ..Figures::default() };
        let name = format!("pdbp-http-{}", shared.id);
        let service = Service::start(listener, LIMITS, hosts(settings), None, name, |_| figures)?;
        Ok(Self { service, sections })
    }

    /// The address at which it listens; for port 0 in the setting, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.service.address()
    }
}

/// The host names that the endpoint answers to.
fn hosts(settings: &Settings) -> Hosts {
    let own = settings.metrics.as_deref().and_then(|address| address.rsplit_once(':')).map(|(host, _)| host);
    Hosts::new(own.into_iter().chain(settings.metrics_hosts.iter().map(String::as_str)))
}

/// The site that is served. Pages are made at most once per turn.
#[derive(Default)]
struct Figures {
    shared: Weak<Shared>,
    of_program: Arc<Sections>,
    secret: Secret,
    seen: Option<ClusterFigures>,
    sections: BTreeMap<String, Arc<Result<Section, String>>>,
    metrics: Option<Answer>,
    json: Option<Answer>,
}

impl Figures {
    fn current(&mut self) -> Option<&ClusterFigures> {
        if self.seen.is_none() {
            self.seen = self.shared.upgrade().map(|shared| shared.observe(ANSWER));
        }
        self.seen.as_ref()
    }

    fn metrics(&mut self) -> Option<Answer> {
        if self.metrics.is_none() {
            let figures = self.current()?.clone();
            let names = self.of_program.names().into_iter();
            let sections = names.filter_map(|name| self.section(&name).map(|section| (name, section)));
            let body = prometheus::text(figures, sections.collect());
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            self.metrics = Some(Answer::new("200 OK", kind, body));
        }
        self.metrics.clone()
    }

    fn json(&mut self) -> Option<Answer> {
        if self.json.is_none() {
            self.json = Some(match serde_json::to_string(self.current()?) {
                Ok(body) => Answer::new("200 OK", "application/json", body),
                Err(error) => Answer::text("500 Internal Server Error", &format!("{error}\n")),
            });
        }
        self.json.clone()
    }
}

impl Figures {
    /// A section of the program; `None` if no section has this name.
    fn section(&mut self, name: &str) -> Option<Arc<Result<Section, String>>> {
        if !self.sections.contains_key(name) {
            self.sections.insert(name.to_owned(), Arc::new(self.of_program.render(name)?));
        }
        self.sections.get(name).cloned()
    }

    fn page(&mut self, path: &str) -> Option<Answer> {
        let name = path.strip_prefix('/')?.strip_suffix(".json")?;
        Some(match &*self.section(name)? {
            Ok(section) => Answer::new("200 OK", "application/json", section.json()),
            Err(why) => {
                Answer::text("500 Internal Server Error", &format!("{name} cannot be shown: {why}\n"))
            }
        })
    }

    fn index(&self) -> String {
        let pages = self.of_program.names().into_iter().map(|name| format!("/{name}.json\n"));
        pages.fold(INDEX.to_owned(), |index, page| index + &page)
    }
}

impl Site for Figures {
    fn renew(&mut self) {
        self.sections.clear();
        (self.seen, self.metrics, self.json) = (None, None, None);
    }

    fn admit(&mut self, request: &Request) -> Result<usize, Answer> {
        if !matches!(request.method, Method::Get | Method::Head) {
            let refusal = Answer::refusal("405 Method Not Allowed", "only GET and HEAD\n");
            return Err(Answer { more: "Allow: GET, HEAD\r\n", ..refusal });
        }
        self.secret.check(request).map(|()| 0)
    }

    fn ask(&mut self, _: Ticket, request: &Request, _: Vec<u8>) -> Option<Answer> {
        let answer = match request.path.as_str() {
            "/metrics" => self.metrics(),
            "/cluster.json" => self.json(),
            "/" => Some(Answer::text("200 OK", &self.index())),
            path => {
                let page = self.page(path);
                Some(page.unwrap_or_else(|| Answer::text("404 Not Found", &self.index())))
            }
        };
        Some(answer.unwrap_or_else(|| Answer::refusal("503 Service Unavailable", "this node has ended\n")))
    }
}
