//! The strict subset of HTTP/1.1 that the exchange service speaks: bodies with one Content-Length, no transfer codings, no upgrades, no folded
//! lines. Heads are parsed by httparse.

use std::fmt;

/// Maximum bytes of a head.
pub(crate) const HEAD: usize = 8 << 10;
/// Maximum fields of a head, and of the head of a part.
pub(crate) const FIELDS: usize = 64;
/// The path of the service.
pub(crate) const PATH: &str = "/pdbp/exchange";
/// Maximum characters of a boundary (RFC 2046 section 5.1.1).
const BOUNDARY: usize = 70;

/// Why a message was refused, as reported to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) why: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// It is not a SOAP message: reported by an HTTP status, without an envelope.
    Http(u16),
    /// The envelope is malformed, or not expected here.
    Sender,
    VersionMismatch,
    MustUnderstand,
}

impl Fault {
    pub(crate) const fn http(status: u16, why: &'static str) -> Self {
        Self { kind: FaultKind::Http(status), why }
    }

    pub(crate) const fn sender(why: &'static str) -> Self {
        Self { kind: FaultKind::Sender, why }
    }

    /// The HTTP status that it is reported with.
    pub fn status(&self) -> u16 {
        match self.kind {
            FaultKind::Http(status) => status,
            FaultKind::Sender => 400,
            FaultKind::VersionMismatch | FaultKind::MustUnderstand => 500,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status(), self.why)
    }
}

/// The reason phrase of a status.
pub(crate) fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        505 => "HTTP Version Not Supported",
        _ => "Internal Server Error",
    }
}

/// The content of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    None,
    /// An envelope.
    Soap,
    /// An MTOM package: its boundary, and the Content-ID of its root part if stated.
    Package {
        boundary: Vec<u8>,
        start: Option<String>,
    },
}

/// The purpose of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// It carries a message.
    Message,
    /// It asks for the description of the service, by this query.
    Get(String),
}

/// The head of a request or response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head<T> {
    pub(crate) what: T,
    pub(crate) content: Content,
    /// Length of the body in bytes.
    pub(crate) length: usize,
    /// Length of the head in bytes.
    pub(crate) size: usize,
}

/// Parses the head of a request; `None` while it is incomplete.
///
/// # Errors
/// Why it is refused.
pub(crate) fn request(bytes: &[u8]) -> Result<Option<Head<Request>>, Fault> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    let Some(size) = complete(parsed.parse(bytes), bytes)? else { return Ok(None) };
    is_current(parsed.version)?;
    let fields = Fields(parsed.headers);
    if fields.only("host")?.is_none() {
        return Err(Fault::http(400, "a request must have one Host"));
    }
    if fields.only("expect")?.is_some() {
        return Err(Fault::http(417, "Expect is not supported"));
    }
    let (content, length) = fields.body()?;
    let target = origin(parsed.path.unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let what = match parsed.method {
        _ if path != PATH => return Err(Fault::http(404, "the service is at /pdbp/exchange")),
        Some("POST") => Request::Message,
        Some("GET") => Request::Get(query.to_owned()),
        _ => return Err(Fault::http(405, "the service takes POST; GET has ?wsdl and ?xsd")),
    };
    let content = match content {
        None if what == Request::Message => {
            return Err(Fault::http(415, "a message is application/soap+xml, or multipart/related with one"));
        }
        None => Content::None,
        Some(content) => content,
    };
    let length = match length {
        None if what == Request::Message => {
            return Err(Fault::http(411, "a message must have a Content-Length"));
        }
        length => length.unwrap_or(0),
    };
    Ok(Some(Head { what, content, length, size }))
}

/// Path and query of a target. In the absolute form, as sent to a proxy, scheme and host precede them (RFC 9112 section 3.2.2).
fn origin(target: &str) -> &str {
    let is_http = |scheme: &str| ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let absolute = target.split_once("://").filter(|(scheme, _)| is_http(scheme));
    let origin = absolute.and_then(|(_, rest)| rest.get(rest.find(['/', '?']).filter(|host| *host > 0)?..));
    origin.unwrap_or(target)
}

/// Parses the head of a response, with its status; `None` while it is incomplete.
///
/// # Errors
/// Why it is refused.
pub(crate) fn answer(bytes: &[u8]) -> Result<Option<Head<u16>>, Fault> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut parsed = httparse::Response::new(&mut fields);
    let Some(size) = complete(parsed.parse(bytes), bytes)? else { return Ok(None) };
    is_current(parsed.version)?;
    let what = parsed.code.unwrap_or(0);
    let fields = Fields(parsed.headers);
    // Only the status matters then; the body of a foreign server may have any type.
    let (content, length) = if what == 200 { fields.body()? } else { (None, fields.length()?) };
    Ok(Some(Head { what, content: content.unwrap_or(Content::None), length: length.unwrap_or(0), size }))
}

/// The head of a MIME part.
pub(crate) struct Part<'b> {
    /// Its Content-ID.
    pub(crate) id: &'b str,
    /// Its length, if stated.
    pub(crate) length: Option<usize>,
    /// Bytes of the head.
    pub(crate) size: usize,
}

/// Parses the head of a MIME part; `None` while it is incomplete.
///
/// # Errors
/// Why it is refused.
pub(crate) fn part(bytes: &[u8]) -> Result<Option<Part<'_>>, Fault> {
    const PART: usize = 1 << 10;
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let (size, fields) = match httparse::parse_headers(bytes, &mut fields) {
        Ok(httparse::Status::Complete((size, fields))) if size <= PART => (size, Fields(fields)),
        Ok(httparse::Status::Partial) if bytes.len() < PART => return Ok(None),
        Ok(_) => return Err(Fault::sender("the head of a part has more than 1 KiB")),
        Err(_) => return Err(Fault::sender("the head of a part is malformed")),
    };
    if fields.only("content-transfer-encoding")?.is_some_and(|how| !how.eq_ignore_ascii_case("binary")) {
        return Err(Fault::sender("the Content-Transfer-Encoding of a part must be binary"));
    }
    let length = fields.length()?;
    let id = fields.only("content-id")?.unwrap_or_default();
    let id = id.strip_prefix('<').and_then(|id| id.strip_suffix('>'));
    Ok(Some(Part { id: id.ok_or(Fault::sender("a part has no Content-ID"))?, length, size }))
}

fn complete(parsed: httparse::Result<usize>, bytes: &[u8]) -> Result<Option<usize>, Fault> {
    match parsed {
        Ok(httparse::Status::Complete(size)) if size <= HEAD => {
            let has_whole_lines = bytes.get(..size).is_some_and(has_whole_lines);
            has_whole_lines
                .then_some(Some(size))
                .ok_or(Fault::http(400, "lines of a head must end with CR LF"))
        }
        Ok(httparse::Status::Partial) if bytes.len() < HEAD => Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            Err(Fault::http(431, "a head may have at most 8 KiB and 64 fields"))
        }
        Err(httparse::Error::Version) => Err(Fault::http(505, "the service speaks HTTP/1.1")),
        Err(_) => Err(Fault::http(400, "this is not HTTP")),
    }
}

/// Whether all lines end with CR LF. httparse also takes a bare LF for an end, which a proxy in front may take for something else, and then
/// the two see different requests (RFC 9112 sections 2.2 and 11.2).
fn has_whole_lines(head: &[u8]) -> bool {
    let mut lines = head.split(|byte| *byte == b'\n');
    // What follows the last end.
    lines.next_back();
    lines.all(|line| line.ends_with(b"\r"))
}

fn is_current(version: Option<u8>) -> Result<(), Fault> {
    if version == Some(1) { Ok(()) } else { Err(Fault::http(505, "the service speaks HTTP/1.1")) }
}

struct Fields<'h, 'b>(&'h [httparse::Header<'b>]);

impl<'b> Fields<'_, 'b> {
    /// The value of a field that may appear only once.
    fn only(&self, name: &str) -> Result<Option<&'b str>, Fault> {
        let mut all = self.0.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
        let Some(field) = all.next() else { return Ok(None) };
        if all.next().is_some() {
            return Err(Fault::http(400, "a field that may appear once appears twice"));
        }
        // Not `str::trim`: a no-break space is part of the value, and to a proxy in front it is, too.
        let value = std::str::from_utf8(field.value.trim_ascii());
        value.map(Some).map_err(|_| Fault::http(400, "a field is not UTF-8"))
    }

    fn length(&self) -> Result<Option<usize>, Fault> {
        let Some(length) = self.only("content-length")? else { return Ok(None) };
        let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        let number = length.parse().ok().filter(|_| is_number);
        number.map(Some).ok_or(Fault::http(400, "the Content-Length is not a number"))
    }

    fn body(&self) -> Result<(Option<Content>, Option<usize>), Fault> {
        let length = self.length()?;
        if self.0.iter().any(|field| field.name.eq_ignore_ascii_case("transfer-encoding")) {
            // With both, a proxy in front may take the other one to count (request smuggling, RFC 9112 section 6.3).
            return Err(match length {
                Some(_) => Fault::http(400, "a body has a Content-Length or a transfer coding, not both"),
                None => Fault::http(501, "transfer codings are not supported; state a Content-Length"),
            });
        }
        let coding = self.only("content-encoding")?;
        if coding.is_some_and(|coding| !coding.eq_ignore_ascii_case("identity")) {
            return Err(Fault::http(501, "content codings are not supported"));
        }
        Ok((self.only("content-type")?.map(content).transpose()?, length))
    }
}

/// Parses a Content-Type.
fn content(value: &str) -> Result<Content, Fault> {
    const NEITHER: Fault =
        Fault::http(415, "a message is application/soap+xml, or multipart/related with one");
    const NO_BOUNDARY: Fault = Fault::sender("a package must have a boundary of 1 to 70 characters");
    let (kind, mut rest) = value.split_once(';').unwrap_or((value, ""));
    let kind = kind.trim();
    let (mut boundary, mut start, mut of) = (None, None, None);
    while !rest.trim().is_empty() {
        let (name, after) = rest.split_once('=').ok_or(NEITHER)?;
        let (value, after) = parameter(after).ok_or(NEITHER)?;
        let mut other = None;
        let place = match name.trim().to_ascii_lowercase().as_str() {
            "boundary" => &mut boundary,
            "start" => &mut start,
            "type" => &mut of,
            "charset" if !value.eq_ignore_ascii_case("utf-8") => {
                return Err(Fault::http(415, "envelopes must be UTF-8"));
            }
            _ => &mut other,
        };
        if place.replace(value).is_some() {
            return Err(Fault::http(400, "the Content-Type has a parameter twice"));
        }
        rest = after;
    }
    if kind.eq_ignore_ascii_case("application/soap+xml") {
        return Ok(Content::Soap);
    }
    let is_package = kind.eq_ignore_ascii_case("multipart/related")
        && of.is_some_and(|of| of.eq_ignore_ascii_case("application/xop+xml"));
    if !is_package {
        return Err(NEITHER);
    }
    let boundary = boundary.filter(|boundary| (1..=BOUNDARY).contains(&boundary.len())).ok_or(NO_BOUNDARY)?;
    let start = start.map(|start| start.trim_start_matches('<').trim_end_matches('>').to_owned());
    Ok(Content::Package { boundary: boundary.as_bytes().to_vec(), start })
}

/// The value of a parameter, a token or quoted, and what follows it.
fn parameter(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    if let Some(text) = text.strip_prefix('"') {
        let (value, after) = text.split_once('"')?;
        let after = after.trim_start();
        // Escapes are not supported: none of the values that matter has any.
        let ends = after.is_empty() || after.starts_with(';');
        return (ends && !value.contains('\\')).then(|| (value, after.strip_prefix(';').unwrap_or(after)));
    }
    let (value, after) = text.split_once(';').unwrap_or((text, ""));
    Some((value.trim(), after))
}

/// A response without a SOAP message, after which the connection is closed.
pub(crate) fn plain(status: u16, kind: &str, body: &str) -> Vec<u8> {
    let (phrase, length) = (phrase(status), body.len());
    // RFC 9110 section 15.5.6.
    let more = if status == 405 { "Allow: GET, POST\r\n" } else { "" };
    format!("HTTP/1.1 {status} {phrase}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}Connection: close\r\n\r\n{body}")
        .into_bytes()
}

#[cfg(test)]
mod tests;
