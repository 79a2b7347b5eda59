//! What a client asks for, and whether it means this server.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The most headers of a request.
const HEADERS: usize = 64;
/// The most characters of a client's words that an answer repeats.
const REPEATED: usize = 100;

/// A request whose head is complete.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: Method,
    /// Without what follows a question mark.
    pub(super) path: String,
    /// Host and port, if it names them.
    authority: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Head,
    Other,
}

/// A status, and what to tell the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: &'static str,
    pub(super) why: String,
}

impl Refused {
    pub(super) fn new(status: &'static str, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }

    pub(super) fn too_long(most: usize) -> Self {
        let why = format!("a request may have {most} bytes and {HEADERS} headers\n");
        Self::new("431 Request Header Fields Too Large", why)
    }
}

impl Request {
    /// `None` as long as the head is not complete, which may have `most` bytes.
    pub(super) fn read(bytes: &[u8], most: usize) -> Result<Option<Self>, Refused> {
        let bad = |why: &str| Refused::new("400 Bad Request", why);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(length)) if length <= most => {}
            Ok(httparse::Status::Partial) if bytes.len() < most => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(Refused::too_long(most)),
            Err(_) => return Err(bad("this is no HTTP request\n")),
        }
        let method = match request.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            _ => Method::Other,
        };
        let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
        let host = hosts.next().map(|header| String::from_utf8_lossy(header.value).trim().to_owned());
        // RFC 9112 section 3.2.
        if hosts.next().is_some() || (host.is_none() && request.version == Some(1)) {
            return Err(bad("the request must have one Host header\n"));
        }
        let target = request.path.unwrap_or_default();
        // The host of the absolute form, as sent to a proxy, goes before that of the header.
        let (authority, path) = match target.strip_prefix("http://") {
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
                (Some(authority.to_owned()), path)
            }
            None => (host, target),
        };
        let path = match path.split('?').next().unwrap_or_default() {
            "" => "/",
            path => path,
        };
        Ok(Some(Self { method, path: path.to_owned(), authority }))
    }
}

/// The hosts that a server takes requests for, besides IP addresses and `localhost`.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self(names.map(plain).collect())
    }

    /// Whether the request is for this server.
    pub(super) fn check(&self, request: &Request) -> Result<(), Refused> {
        let Some(authority) = &request.authority else { return Ok(()) };
        let shown: String = authority.chars().take(REPEATED).flat_map(char::escape_default).collect();
        let Some(host) = host(authority) else {
            let why = format!("the request is for \"{shown}\", which is no host and port\n");
            return Err(Refused::new("400 Bad Request", why));
        };
        if self.takes(host) {
            return Ok(());
        }
        let name: String = host.chars().take(REPEATED).flat_map(char::escape_default).collect();
        let why = format!(
            "these figures are not served under the host name \"{shown}\": use an IP address or localhost, or add the name to the \
             setting metrics_hosts (PDBP_METRICS_HOSTS={name})\n"
        );
        Err(Refused::new("421 Misdirected Request", why))
    }

    fn takes(&self, host: &str) -> bool {
        if let Some(address) = host.strip_prefix('[') {
            return address.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
        }
        let name = plain(host);
        name.parse::<Ipv4Addr>().is_ok() || name == "localhost" || self.0.contains(&name)
    }
}

/// Names are compared in lower case, without the dot of a name that is absolute.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The host of a host with or without a port.
fn host(authority: &str) -> Option<&str> {
    let (host, port) = match authority.rfind(']') {
        Some(end) => authority.split_at(end + 1),
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = port.strip_prefix(':').unwrap_or(port);
    (!host.is_empty() && port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit())).then_some(host)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 8 << 10;

    fn read(bytes: &[u8]) -> Result<Option<Request>, &'static str> {
        Request::read(bytes, MOST).map_err(|refused| refused.status)
    }

    fn request(method: Method, path: &str, authority: Option<&str>) -> Result<Option<Request>, &'static str> {
        let (path, authority) = (path.to_owned(), authority.map(str::to_owned));
        Ok(Some(Request { method, path, authority }))
    }

    #[test]
    fn requests_are_read() {
        use Method::{Get, Head, Other};
        for (text, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", request(Get, "/metrics", Some("x"))),
            ("GET /cluster.json?a=b HTTP/1.0\r\n\r\n", request(Get, "/cluster.json", None)),
            ("HEAD / HTTP/1.1\r\nhOST:[::1]:80 \r\n\r\n", request(Head, "/", Some("[::1]:80"))),
            ("POST / HTTP/1.1\r\nHost: x\r\n\r\n", request(Other, "/", Some("x"))),
            ("GET http://a:1/b?c HTTP/1.1\r\nHost: x\r\n\r\n", request(Get, "/b", Some("a:1"))),
            ("GET http://a?c HTTP/1.1\r\nHost: x\r\n\r\n", request(Get, "/", Some("a"))),
            ("GET /metrics HTTP/1.1\r\nHo", Ok(None)),
            ("", Ok(None)),
            ("GET / HTTP/1.1\r\n\r\n", Err("400 Bad Request")),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", Err("400 Bad Request")),
            ("\x16\x03\x01\x02\x00", Err("400 Bad Request")),
        ] {
            assert_eq!(read(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn requests_that_are_too_long_are_refused_at_the_limit() {
        let with = |headers: usize, length: usize| {
            let text = format!("GET / HTTP/1.1\r\nHost: x\r\n{}", "A: b\r\n".repeat(headers - 1));
            let rest = length.saturating_sub(text.len() + 7);
            format!(
                "{text}{}\r\n\r\n",
                if rest > 0 { format!("B: {}", "c".repeat(rest)) } else { String::new() }
            )
        };
        let too_long = Err("431 Request Header Fields Too Large");
        assert!(read(with(1, MOST).as_bytes()).is_ok_and(|request| request.is_some()));
        assert_eq!(read(with(1, MOST + 1).as_bytes()), too_long);
        assert_eq!(read(&with(1, MOST + 1).as_bytes()[..MOST]), too_long);
        assert_eq!(read(&with(1, MOST + 1).as_bytes()[..MOST - 1]), Ok(None));
        assert_eq!(read(with(HEADERS + 1, 0).as_bytes()), too_long);
        assert_eq!(read(&[b'x'; MOST]), too_long);
    }

    #[test]
    fn only_names_that_the_cluster_knows_are_taken() {
        let hosts = Hosts::new(["Node7.Cluster", "front."].into_iter());
        let check = |authority: &str| {
            let text = format!("GET / HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            hosts.check(&read(text.as_bytes()).unwrap().unwrap())
        };
        for host in [
            "127.0.0.1:9100",
            "10.1.2.3",
            "[::1]:80",
            "[fe80::1]",
            "localhost:1",
            "LOCALHOST",
            "localhost.",
            "node7.cluster:9",
            "node7.cluster.",
            "front",
        ] {
            assert_eq!(check(host), Ok(()), "{host}");
        }
        for host in [
            "evil.example:9100",
            "node7",
            "node7.cluster.evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "::1.evil.example",
            "[::1.evil.example]",
            "a\u{e4}",
        ] {
            let refused = check(host).unwrap_err();
            let (status, why) = (refused.status, refused.why);
            let bad = host.starts_with("::1");
            assert_eq!(status, if bad { "400 Bad Request" } else { "421 Misdirected Request" }, "{host}");
            assert!(bad || why.contains("metrics_hosts"), "{why}");
            assert!(!host.is_ascii() || why.contains(host), "{why}");
        }
        for host in ["", ":80", "a:b", "a:123456", "[::1]x"] {
            assert_eq!(check(host).unwrap_err().status, "400 Bad Request", "{host}");
        }
        let old = read(b"GET / HTTP/1.0\r\n\r\n").unwrap().unwrap();
        assert_eq!(hosts.check(&old), Ok(()));
    }

    proptest! {
        /// Any bytes get an answer, and what is complete stays so however it arrives.
        #[test]
        fn requests_of_any_bytes_are_read_or_refused(
            line in "(GET|PUT) [ -~]{0,20} HTTP/1.[01]\r\n",
            rest in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            for bytes in [rest.clone(), [line.as_bytes(), &rest, b"\r\n\r\n"].concat()] {
                if let Ok(Some(request)) = Request::read(&bytes, MOST) {
                    let _ = Hosts::default().check(&request);
                    prop_assert!(!request.path.is_empty());
                }
            }
        }
    }
}
