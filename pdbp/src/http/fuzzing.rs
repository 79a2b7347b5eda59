//! Requests made of arbitrary bytes: a head, and what follows it.

use super::Hosts;
use super::request::Request;

/// Maximum bytes of a head, and of a body.
const MOST: usize = 8 << 10;

/// Reads a request that arrives in pieces of `piece` bytes; returns its type and body, if the request is
/// complete.
fn read(bytes: &[u8], piece: usize) -> Option<(String, Vec<u8>)> {
    let (mut waiting, mut body) = (Vec::new(), Vec::new());
    let mut request: Option<Request> = None;
    for piece in bytes.chunks(piece) {
        waiting.extend_from_slice(piece);
        if request.is_none()
            && let Some((found, length)) = Request::read(&waiting, MOST).ok()?
        {
            assert!(length <= MOST, "a head is longer than it may be");
            let _ = Hosts::default().check(&found);
            waiting.drain(..length);
            request = Some(found);
        }
        if let Some(request) = &mut request {
            let used = request.body.take(&waiting, &mut body, MOST).ok()?;
            waiting.drain(..used);
            assert!(body.len() <= MOST, "a body is longer than it may be");
            if request.body.is_whole() {
                return Some((std::mem::take(&mut request.kind), body));
            }
        }
    }
    None
}

/// Checks that a request parses the same however it is cut. Returns its body.
pub(crate) fn request(bytes: &[u8]) -> Option<Vec<u8>> {
    let whole = read(bytes, bytes.len().max(1));
    let size = bytes.last().map_or(1, |last| usize::from(*last) + 1);
    assert_eq!(read(bytes, size), whole, "a request differs by the pieces in which it comes");
    whole.map(|(_, body)| body)
}
