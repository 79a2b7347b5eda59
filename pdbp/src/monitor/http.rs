//! The figures over HTTP: `/metrics` for Prometheus, `/cluster.json` for `pdbp top` and programs.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::prometheus;
use crate::node::Shared;

/// How long nodes may take to answer before they are shown as silent.
const ANSWER: Duration = Duration::from_millis(500);
/// How long a client may take to ask, and to take its answer.
const CLIENT: Duration = Duration::from_secs(2);
/// The longest request.
const REQUEST: usize = 8 << 10;

const INDEX: &str = "\
PDBP cluster
/metrics       for Prometheus (OpenMetrics text)
/cluster.json  the same as JSON; what `pdbp top` shows
";

/// Serves the figures of the cluster over HTTP from one of its nodes, as the setting `metrics` says. It only reads, and asks
/// nobody who he is: let it listen where only those can connect who may see the figures.
///
/// A thread waits for requests. It ends with the last handle to the node.
pub struct Endpoint {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Endpoint {
    /// Takes the address, before there is anything to serve.
    pub(crate) fn bind(address: &str) -> io::Result<TcpListener> {
        TcpListener::bind(address)
    }

    pub(crate) fn start(listener: TcpListener, shared: &Arc<Shared>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (weak, stopped) = (Arc::downgrade(shared), Arc::clone(&stop));
        let name = format!("pdbp-http-{}", shared.id);
        let thread = thread::Builder::new().name(name).spawn(move || serve(&listener, &weak, &stopped))?;
        Ok(Self { address, stop, thread: Mutex::new(Some(thread)) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The thread waits for a connection; this is one.
        let woken = TcpStream::connect_timeout(&reachable(self.address), Duration::from_millis(200));
        if let Some(thread) = thread
            && woken.is_ok()
            && thread.thread().id() != thread::current().id()
        {
            // A thread that panicked has said so on stderr; there is nothing to add.
            let _ = thread.join();
        }
    }
}

/// An address of this host at which a listener on `address` is found.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn serve(listener: &TcpListener, shared: &Weak<Shared>, stop: &AtomicBool) {
    for stream in listener.incoming() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            // Out of file descriptors, for example: it may pass.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let Some(shared) = shared.upgrade() else { return };
        // Clients that go before they have their answer are no concern of the cluster.
        let _ = answer(stream, &shared);
    }
}

struct Response {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Response {
    fn text(status: &'static str, body: &str) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: body.to_owned() }
    }
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Head(String),
    Get(String),
    Other,
}

fn answer(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_write_timeout(Some(CLIENT))?;
    let asked = read_request(&mut stream)?;
    let response = match &asked {
        Some(Asked::Get(path) | Asked::Head(path)) => respond(path, shared),
        Some(Asked::Other) => Response::text("405 Method Not Allowed", "only GET and HEAD\n"),
        None => Response::text("400 Bad Request", "this is no HTTP request\n"),
    };
    let Response { status, kind, body } = response;
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let mut text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    if !matches!(asked, Some(Asked::Head(_))) {
        text.push_str(&body);
    }
    stream.write_all(text.as_bytes())
}

fn respond(path: &str, shared: &Shared) -> Response {
    match path {
        "/metrics" => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            Response { status: "200 OK", kind, body: prometheus::text(shared.observe(ANSWER)) }
        }
        "/cluster.json" => match serde_json::to_string(&shared.observe(ANSWER)) {
            Ok(body) => Response { status: "200 OK", kind: "application/json", body },
            Err(error) => Response::text("500 Internal Server Error", &format!("{error}\n")),
        },
        "/" => Response::text("200 OK", INDEX),
        _ => Response::text("404 Not Found", INDEX),
    }
}

/// Reads up to the empty line. `None` for what is no request, or takes too long or too many bytes.
fn read_request(stream: &mut TcpStream) -> io::Result<Option<Asked>> {
    let began = Instant::now();
    let mut bytes = Vec::new();
    loop {
        let left = CLIENT.saturating_sub(began.elapsed());
        if left.is_zero() || bytes.len() >= REQUEST {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        let mut some = [0; 1024];
        let read = match stream.read(&mut some) {
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Ok(None),
        };
        if read == 0 {
            return Ok(None);
        }
        bytes.extend_from_slice(some.get(..read).unwrap_or(&[]));
        match parse(&bytes) {
            Ok(Some(asked)) => return Ok(Some(asked)),
            Ok(None) => {}
            Err(_) => return Ok(None),
        }
    }
}

/// `None` as long as the request is not complete.
fn parse(bytes: &[u8]) -> Result<Option<Asked>, httparse::Error> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    if request.parse(bytes)?.is_partial() {
        return Ok(None);
    }
    let path = request.path.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default().to_owned();
    Ok(Some(match request.method {
        Some("GET") => Asked::Get(path),
        Some("HEAD") => Asked::Head(path),
        _ => Asked::Other,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let get = |path: &str| Some(Asked::Get(path.to_owned()));
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap(), get("/metrics"));
        assert_eq!(parse(b"GET /cluster.json?a=b HTTP/1.0\r\n\r\n").unwrap(), get("/cluster.json"));
        assert_eq!(parse(b"HEAD / HTTP/1.1\r\n\r\n").unwrap(), Some(Asked::Head("/".to_owned())));
        assert_eq!(parse(b"POST / HTTP/1.1\r\n\r\n").unwrap(), Some(Asked::Other));
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHo").unwrap(), None);
        assert!(parse(b"\x16\x03\x01\x02\x00").is_err());
    }

    #[test]
    fn a_listener_on_every_address_is_reached_on_this_host() {
        assert_eq!(reachable("0.0.0.0:80".parse().unwrap()), "127.0.0.1:80".parse().unwrap());
        assert_eq!(reachable("[::]:80".parse().unwrap()), "[::1]:80".parse().unwrap());
        assert_eq!(reachable("127.0.0.2:80".parse().unwrap()), "127.0.0.2:80".parse().unwrap());
    }
}
