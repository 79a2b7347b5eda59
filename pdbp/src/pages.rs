//! A program's own pages, on the HTTP server that a cluster uses for its figures.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::http::{Answer, Hosts, Limits, Method, Request, Service, Site, Ticket};

/// A connection carries a single request, without a body.
const LIMITS: Limits = Limits {
    clients: 16,
    per_address: 14,
    head: 8 << 10,
    request: Duration::from_secs(5),
    pace: Duration::from_secs(30),
    least: usize::MAX,
    idle: None,
    close: Duration::from_secs(1),
    held: 256 << 20,
};

/// Browsers load nothing from elsewhere, and cache nothing.
const HEADERS: &str = "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
    img-src data:; connect-src 'self'\r\nCache-Control: no-store\r\n";

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Its media type, such as `text/html; charset=utf-8`.
    pub kind: &'static str,
    /// Its content.
    pub body: String,
}

/// Serves pages over HTTP on its own thread, until it is dropped.
///
/// It answers only `GET` and `HEAD`, without authentication: let it listen only where all who can connect may see the pages. As
/// with [`Endpoint`](crate::monitor::Endpoint), slow clients do not hold up others, 16 are served at a time, and requests must be
/// addressed to an IP address, to `localhost` or to the host in `address`. The pages' headers forbid them to load anything from
/// elsewhere.
///
/// ```
/// use pdbp::{Page, Pages};
///
/// let pages = Pages::serve("127.0.0.1:0", |path| {
///     (path == "/").then(|| Page { kind: "text/plain; charset=utf-8", body: "hello\n".into() })
/// })?;
/// println!("http://{}/", pages.address());
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Pages(Service);

impl Pages {
    /// Listens at `address`, such as `127.0.0.1:8080`; port 0 picks any free port. `page` returns the page for a path, or `None` if
    /// no such page exists; all clients wait while it runs.
    ///
    /// # Errors
    /// The address cannot be bound, or no thread can be started.
    pub fn serve(address: &str, page: impl FnMut(&str) -> Option<Page> + Send + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let hosts = Hosts::new(address.rsplit_once(':').map(|(host, _)| host).into_iter());
        Service::start(listener, LIMITS, hosts, None, "pdbp-pages".to_owned(), |_| Shown(page)).map(Self)
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

struct Shown<F>(F);

impl<F: FnMut(&str) -> Option<Page>> Site for Shown<F> {
    fn admit(&mut self, request: &Request) -> Result<usize, Answer> {
        if matches!(request.method, Method::Get | Method::Head) {
            return Ok(0);
        }
        let refusal = Answer::refusal("405 Method Not Allowed", "only GET and HEAD\n");
        Err(Answer { more: "Allow: GET, HEAD\r\n", ..refusal })
    }

    fn ask(&mut self, _: Ticket, request: &Request, _: Vec<u8>) -> Option<Answer> {
        Some(match (self.0)(&request.path) {
            Some(Page { kind, body }) => Answer { more: HEADERS, ..Answer::new("200 OK", kind, body) },
            None => Answer::text("404 Not Found", "no such page\n"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    fn ask(pages: &Pages, request: &str) -> String {
        loop {
            let (mut stream, mut answer) = (TcpStream::connect(pages.address()).unwrap(), String::new());
            let asked = stream.write_all(request.as_bytes());
            // A client that gets no processor for seconds before it has asked is refused.
            if asked.and_then(|()| stream.read_to_string(&mut answer)).is_ok()
                && !answer.starts_with("HTTP/1.1 408 ")
            {
                return answer;
            }
        }
    }

    #[test]
    fn pages_are_served_as_they_are_when_they_are_asked_for() {
        let mut times = 0;
        let pages = Pages::serve("127.0.0.1:0", move |path| {
            times += 1;
            let page = Page { kind: "text/html; charset=utf-8", body: format!("<p>time {times}") };
            (path == "/").then_some(page)
        });
        let pages = pages.unwrap();
        let get =
            |path: &str, host: &str| ask(&pages, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let first = get("/", "127.0.0.1");
        assert!(first.starts_with("HTTP/1.1 200 OK\r\n") && first.ends_with("\r\n\r\n<p>time 1"), "{first}");
        assert!(first.contains("default-src 'none'") && first.contains("no-store"), "{first}");
        assert!(get("/?x=y", "localhost:8080").ends_with("time 2"));
        assert!(get("/other", "localhost").starts_with("HTTP/1.1 404"));
        assert!(get("/", "elsewhere.example").starts_with("HTTP/1.1 421"));
        assert!(ask(&pages, "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 405"));
    }
}
