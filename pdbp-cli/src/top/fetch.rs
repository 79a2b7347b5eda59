//! Fetches the figures of a cluster over HTTP.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use pdbp::monitor::ClusterFigures;

use super::super::Failed;

/// How long the endpoint may take for each step.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer that is accepted.
const LONGEST: usize = 256 << 20;
/// How many characters of the answer's first line are shown when the endpoint refuses.
const LONGEST_REASON: usize = 300;

/// Queries the endpoint at `address`.
pub(super) fn figures(address: &str) -> Result<ClusterFigures, Failed> {
    let secret = secret()?;
    let answer = get(address, "/cluster.json", &secret).map_err(|error| {
        let remedy = if error.kind() == io::ErrorKind::InvalidInput {
            "name a host and a port, as in 127.0.0.1:9100".to_owned()
        } else {
            format!("start the cluster with PDBP_METRICS={address}, or name its address with --connect")
        };
        format!("cannot get figures from {address}: {error}; {remedy}")
    })?;
    let body = body(&answer).map_err(|what| format!("{address} does not serve cluster figures: {what}"))?;
    serde_json::from_slice(body)
        .map_err(|error| format!("{address} serves figures that this version cannot read: {error}").into())
}

/// Sends a request with the line `secret` in its head.
fn get(address: &str, path: &str, secret: &str) -> io::Result<Vec<u8>> {
    let silent = || io::Error::new(io::ErrorKind::TimedOut, "it accepts connections but does not answer");
    let began = Instant::now();
    let mut stream = connect(address)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // Every endpoint accepts its IP address as the host. Names must be listed in its settings, since a page in a browser can forge them.
    let peer = stream.peer_addr()?;
    let host = SocketAddr::new(peer.ip(), peer.port());
    // In HTTP/1.0 no proxy in front of the endpoint sends chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n{secret}Connection: close\r\n\r\n")?;
    let (mut answer, mut some) = (Vec::new(), [0; 16 << 10]);
    loop {
        let left = (2 * PATIENCE).saturating_sub(began.elapsed());
        if left.is_zero() {
            return Err(silent());
        }
        stream.set_read_timeout(Some(left.min(PATIENCE)))?;
        match stream.read(&mut some) {
            Ok(0) => return Ok(answer),
            Ok(read) => answer.extend_from_slice(some.get(..read).unwrap_or(&[])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What a timeout is called depends on the system.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(silent());
            }
            Err(error) => return Err(error),
        }
        if answer.len() > LONGEST {
            return Err(io::Error::other("the answer is too long"));
        }
    }
}

/// The line with the secret of the setting `client_token_file`, if there is one.
fn secret() -> Result<String, Failed> {
    let Some(path) = pdbp::Settings::load(None)?.client_token_file else {
        return Ok(String::new());
    };
    let secret = std::fs::read_to_string(&path).map_err(|error| {
        format!(
            "`client_token_file` = \"{}\": {error}; name the file of the cluster, or unset it if that has none",
            path.display()
        )
    })?;
    Ok(format!("Authorization: Bearer {}\r\n", secret.trim()))
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name resolves to no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The body of a response, which ends when the connection closes.
fn body(answer: &[u8]) -> Result<&[u8], String> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(answer) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) => return Err("it broke off".to_owned()),
        Err(error) => return Err(format!("invalid HTTP: {error}")),
    };
    let body = answer.get(head..).unwrap_or(&[]);
    if response.code != Some(200) {
        let why = String::from_utf8_lossy(body);
        let why: String = why.chars().take_while(|c| !c.is_control()).take(LONGEST_REASON).collect();
        return Err(format!("status {} {why}", response.code.unwrap_or_default()).trim_end().to_owned());
    }
    let length = response.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|h| std::str::from_utf8(h.value).ok()?.trim().parse::<usize>().ok());
    if length.is_some_and(|length| length > body.len()) {
        return Err("it broke off".to_owned());
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HTTP/1.1 has it that every client can read chunks, so some proxies send them whatever the endpoint has said.
    #[test]
    fn answers_come_whole_from_proxies_too() {
        let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = proxy.local_addr().unwrap().to_string();
        let serves = std::thread::spawn(move || {
            let (mut stream, mut head) = (proxy.accept().unwrap().0, Vec::new());
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
            let is_newer = String::from_utf8_lossy(&head).contains(" HTTP/1.1\r\n");
            let says = if is_newer { chunks } else { "HTTP/1.1 200 OK\r\n\r\n{}" };
            stream.write_all(says.as_bytes()).unwrap();
        });
        assert_eq!(body(&get(&address, "/cluster.json", "").unwrap()), Ok(&b"{}"[..]));
        serves.join().unwrap();
    }

    #[test]
    fn bodies_are_found_and_refusals_said() {
        assert_eq!(body(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), Ok(&b"{}"[..]));
        assert_eq!(body(b"HTTP/1.0 200 OK\r\n\r\n{}"), Ok(&b"{}"[..]));
        for (answer, word) in [
            (&b"HTTP/1.1 404 Not Found\r\n\r\n"[..], "404"),
            (b"HTTP/1.1 503 Service Unavailable\r\n\r\n16 clients\n", "503 16 clients"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "broke off"),
            (b"HTTP/1.1 200 OK\r\nConte", "broke off"),
            (b"SSH-2.0-OpenSSH\r\n", "invalid HTTP"),
        ] {
            assert!(body(answer).unwrap_err().contains(word));
        }
    }
}
