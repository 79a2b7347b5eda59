//! Parses a request, and checks whether it is meant for this server.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::body::Body;

/// Maximum headers of a request.
const HEADERS: usize = 64;
/// Maximum characters of a client's text that a reply repeats.
const REPEATED: usize = 100;

/// A request whose head is complete.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// The path, without the query.
    pub(crate) path: String,
    /// The query, after the question mark.
    pub(crate) query: String,
    /// Host and port, if given.
    pub(crate) authority: Option<String>,
    /// The media type of its body, without parameters, in lower case.
    pub(crate) kind: String,
    /// The bearer token.
    pub(crate) bearer: Option<String>,
    /// The body that follows the head.
    pub(super) body: Body,
    /// Whether the client waits for 100 Continue.
    pub(super) waits: bool,
    /// Whether the client wants to send more requests on this connection.
    pub(super) is_kept: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Post,
    Other,
}

/// A status, and an explanation for the client.
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
        let why = format!("the head of a request may have at most {most} bytes and {HEADERS} headers\n");
        Self::new("431 Request Header Fields Too Large", why)
    }

    pub(super) fn too_large(most: usize) -> Self {
        Self::new(
            "413 Content Too Large",
            format!("the body of this request may have at most {most} bytes\n"),
        )
    }
}

impl Request {
    /// Returns the request and the length of its head, at most `most` bytes; `None` while the head is
    /// incomplete.
    pub(super) fn read(bytes: &[u8], most: usize) -> Result<Option<(Self, usize)>, Refused> {
        let bad = |why: &str| Refused::new("400 Bad Request", why);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let length = match request.parse(bytes) {
            Ok(httparse::Status::Complete(length)) if length <= most => length,
            Ok(httparse::Status::Partial) if bytes.len() < most => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(Refused::too_long(most)),
            Err(_) => return Err(bad("malformed HTTP request\n")),
        };
        if !bytes.get(..length).is_some_and(has_whole_lines) {
            return Err(bad("a line of the head ends with LF instead of CR LF\n"));
        }
        let method = match request.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            Some("POST") => Method::Post,
            _ => Method::Other,
        };
        let fields = Fields(request.headers);
        let is_newer = request.version == Some(1);
        let host = fields.only("host").map_err(bad)?;
        // RFC 9112 section 3.2.
        if host.is_none() && is_newer {
            return Err(bad("the request must have one Host header\n"));
        }
        let target = request.path.unwrap_or_default();
        let (authority, path) = match absolute(target) {
            // It overrides the header.
            Some((authority, path)) => (Some(authority.to_owned()), path),
            None => (host, target),
        };
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let path = if path.is_empty() { "/" } else { path };
        let kind = fields.only("content-type").map_err(bad)?.unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let bearer = fields.only("authorization").map_err(bad)?;
        let bearer = bearer.as_deref().and_then(|said| said.split_once(' '));
        let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let waits = match fields.only("expect").map_err(bad)? {
            None => false,
            Some(what) if what.eq_ignore_ascii_case("100-continue") => is_newer,
            Some(_) => {
                return Err(Refused::new("417 Expectation Failed", "only 100-continue may be expected\n"));
            }
        };
        let request = Self {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            authority,
            kind,
            bearer: bearer.map(|(_, secret)| secret.trim().to_owned()),
            body: fields.body()?,
            waits,
            is_kept: is_newer && !fields.all("connection").any(|said| has_word(&said, "close")),
        };
        Ok(Some((request, length)))
    }
}

/// The authority, and the path with its query, of a target in the absolute form, as sent to a proxy (RFC 9112 section 3.2.2).
fn absolute(target: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = target.split_once("://")?;
    let is_http = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    is_http.then(|| rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len())))
}

/// The headers of a request.
struct Fields<'a>(&'a [httparse::Header<'a>]);

impl Fields<'_> {
    fn all(&self, name: &str) -> impl Iterator<Item = String> {
        let named = self.0.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
        // Not `str::trim`: a no-break space is part of the value, to a proxy in front as well.
        named.map(|header| String::from_utf8_lossy(header.value.trim_ascii()).into_owned())
    }

    /// The value of a header that may appear only once.
    fn only(&self, name: &str) -> Result<Option<String>, &'static str> {
        let mut all = self.all(name);
        let first = all.next();
        match (all.next(), name) {
            (None, _) => Ok(first),
            (Some(_), "host") => Err("the request must have one Host header\n"),
            (Some(_), _) => Err("a header that may appear only once is repeated\n"),
        }
    }

    /// How the body is delimited: by one stated length or in chunks, never both (RFC 9112 section 6.3).
    fn body(&self) -> Result<Body, Refused> {
        let bad = |why: &str| Refused::new("400 Bad Request", why);
        let length = self.only("content-length").map_err(|_| bad("the body has two lengths\n"))?;
        let coding = self.only("transfer-encoding").map_err(|_| bad("the body has two codings\n"))?;
        if self.all("content-encoding").any(|coding| !coding.eq_ignore_ascii_case("identity")) {
            return Err(Refused::new("415 Unsupported Media Type", "the body must not be compressed\n"));
        }
        match (length, coding) {
            (None, None) => Ok(Body::Bytes(0)),
            (Some(_), Some(_)) => Err(bad("the request has both Content-Length and Transfer-Encoding\n")),
            (None, Some(coding)) if coding.eq_ignore_ascii_case("chunked") => Ok(Body::Size),
            (None, Some(_)) => {
                Err(Refused::new("501 Not Implemented", "chunked is the only transfer coding supported\n"))
            }
            (Some(length), None) => {
                let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
                let length = length.parse().ok().filter(|_| is_number);
                length.map(Body::Bytes).ok_or_else(|| bad("the length of the body is not a number\n"))
            }
        }
    }
}

/// Whether all lines end with CR LF. httparse also accepts a bare LF as an end, which a proxy in front may
/// interpret differently; the two then see different requests (RFC 9112 sections 2.2 and 11.2).
pub(super) fn has_whole_lines(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    // The rest after the last end.
    lines.next_back();
    lines.all(|line| line.ends_with(b"\r"))
}

/// Whether a comma-separated list contains the word.
fn has_word(list: &str, word: &str) -> bool {
    list.split(',').any(|one| one.trim().eq_ignore_ascii_case(word))
}

/// The host names that a server answers to, in addition to IP addresses and `localhost`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(Vec<String>);

impl Hosts {
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self(names.map(plain).collect())
    }

    /// Refuses a request that is not meant for this server.
    pub(super) fn check(&self, request: &Request) -> Result<(), Refused> {
        let Some(authority) = &request.authority else { return Ok(()) };
        let shown: String = authority.chars().take(REPEATED).flat_map(char::escape_default).collect();
        let Some(host) = host(authority) else {
            let why = format!("the request is for \"{shown}\", which is not a host and port\n");
            return Err(Refused::new("400 Bad Request", why));
        };
        if self.takes(host) {
            return Ok(());
        }
        let name: String = host.chars().take(REPEATED).flat_map(char::escape_default).collect();
        let why = format!(
            "the host name \"{shown}\" is not served here: use an IP address or localhost, or add the name to the \
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

/// Names are compared in lower case, without a trailing dot.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The host, without the port, if any.
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
        let read = Request::read(bytes, MOST).map_err(|refused| refused.status)?;
        Ok(read.map(|(request, length)| {
            assert!(bytes[..length].ends_with(b"\r\n\r\n"));
            request
        }))
    }

    /// Method, path, query and host of a request.
    type Seen = Result<Option<(Method, String, String, Option<String>)>, &'static str>;

    fn seen(text: &str) -> Seen {
        Ok(read(text.as_bytes())?.map(|r| (r.method, r.path, r.query, r.authority)))
    }

    fn request(method: Method, path: &str, authority: Option<&str>) -> Seen {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        Ok(Some((method, path.to_owned(), query.to_owned(), authority.map(str::to_owned))))
    }

    #[test]
    fn requests_are_read() {
        use Method::{Get, Head, Other, Post};
        for (text, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", request(Get, "/metrics", Some("x"))),
            ("GET /cluster.json?a=b HTTP/1.0\r\n\r\n", request(Get, "/cluster.json?a=b", None)),
            ("HEAD / HTTP/1.1\r\nhOST:[::1]:80 \r\n\r\n", request(Head, "/", Some("[::1]:80"))),
            ("POST / HTTP/1.1\r\nHost: x\r\n\r\n", request(Post, "/", Some("x"))),
            ("PUT / HTTP/1.1\r\nHost: x\r\n\r\n", request(Other, "/", Some("x"))),
            ("GET http://a:1/b?c HTTP/1.1\r\nHost: x\r\n\r\n", request(Get, "/b?c", Some("a:1"))),
            ("GET http://a?c HTTP/1.1\r\nHost: x\r\n\r\n", request(Get, "/?c", Some("a"))),
            ("GET HTTPS://a:1 HTTP/1.1\r\nHost: x\r\n\r\n", request(Get, "/", Some("a:1"))),
            ("GET ftp://a/b HTTP/1.1\r\nHost: x\r\n\r\n", request(Get, "ftp://a/b", Some("x"))),
            ("GET /b?http://a/c HTTP/1.1\r\nHost: x\r\n\r\n", request(Get, "/b?http://a/c", Some("x"))),
            ("GET /metrics HTTP/1.1\r\nHo", Ok(None)),
            ("", Ok(None)),
            ("GET / HTTP/1.1\r\n\r\n", Err("400 Bad Request")),
            ("GET / HTTP/1.1\r\nHost: x\n\r\n", Err("400 Bad Request")),
            ("GET / HTTP/1.1\nHost: x\r\n\r\n", Err("400 Bad Request")),
            ("GET / HTTP/1.1\r\nHost: x\r\n\n", Err("400 Bad Request")),
            ("GET / HTTP/1.1\r\nHost: x\r\nA: b\nC: d\r\n\r\n", Err("400 Bad Request")),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", Err("400 Bad Request")),
            ("\x16\x03\x01\x02\x00", Err("400 Bad Request")),
        ] {
            assert_eq!(seen(text), expected, "{text}");
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
    fn headers_say_how_the_body_comes() {
        let with = |lines: &str| read(format!("POST / HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n").as_bytes());
        for (lines, body) in [
            ("A: b", Ok(Body::Bytes(0))),
            ("Content-Length: 7", Ok(Body::Bytes(7))),
            ("Transfer-Encoding: Chunked", Ok(Body::Size)),
            ("Content-Encoding: identity", Ok(Body::Bytes(0))),
            ("Content-Length: 7\r\nTransfer-Encoding: chunked", Err("400 Bad Request")),
            ("Content-Length: 7\r\nContent-Length: 7", Err("400 Bad Request")),
            ("Content-Length: 7, 7", Err("400 Bad Request")),
            ("Content-Length: -7", Err("400 Bad Request")),
            ("Content-Length: +7", Err("400 Bad Request")),
            ("Content-Length:", Err("400 Bad Request")),
            ("Content-Length: 7\u{a0}", Err("400 Bad Request")),
            ("Content-Length: \t7 \t", Ok(Body::Bytes(7))),
            ("Transfer-Encoding: \u{85}chunked", Err("501 Not Implemented")),
            ("Content-Length: 99999999999999999999", Err("400 Bad Request")),
            ("Transfer-Encoding: gzip, chunked", Err("501 Not Implemented")),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", Err("400 Bad Request")),
            ("Content-Encoding: gzip", Err("415 Unsupported Media Type")),
            ("Expect: a miracle", Err("417 Expectation Failed")),
        ] {
            assert_eq!(with(lines).map(|request| request.unwrap().body), body, "{lines}");
        }
        let request = with("Expect: 100-Continue\r\nContent-Type: Text/XML; charset=utf-8").unwrap().unwrap();
        assert!(request.waits && request.is_kept && request.kind == "text/xml" && request.bearer.is_none());
        let request = with("Connection: te, Close\r\nAuthorization: bearer abc").unwrap().unwrap();
        assert!(!request.waits && !request.is_kept && request.bearer.as_deref() == Some("abc"));
        assert_eq!(with("Authorization: Basic abc").unwrap().unwrap().bearer, None);
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
        /// Any bytes get an answer, and a complete request parses the same however it arrives.
        #[test]
        fn requests_of_any_bytes_are_read_or_refused(
            line in "(GET|PUT) [ -~]{0,20} HTTP/1.[01]\r\n",
            rest in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            for bytes in [rest.clone(), [line.as_bytes(), &rest, b"\r\n\r\n"].concat()] {
                if let Ok(Some((request, length))) = Request::read(&bytes, MOST) {
                    let _ = Hosts::default().check(&request);
                    prop_assert!(!request.path.is_empty() && length <= bytes.len());
                }
            }
        }
    }
}
