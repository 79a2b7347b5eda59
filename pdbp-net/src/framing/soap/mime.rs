//! MTOM packages: the delimiters between their parts.

use super::super::http::Fault;

/// A delimiter, by what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delimiter {
    /// A part, whose head starts after this many bytes.
    Part(usize),
    /// The end of the package, after this many bytes.
    Last(usize),
}

/// Parses the delimiter that must be here, after `before`. `None` while it is incomplete.
///
/// # Errors
/// There is something else.
pub(crate) fn delimiter(
    bytes: &[u8],
    boundary: &[u8],
    before: &'static [u8],
) -> Result<Option<Delimiter>, Fault> {
    const SHORT: Fault = Fault::sender("no boundary follows the stated end of a part");
    let mut rest = bytes;
    for expected in [before, b"--", boundary] {
        let common = expected.len().min(rest.len());
        let (here, behind) = rest.split_at(common);
        if !expected.starts_with(here) {
            return Err(SHORT);
        }
        if common < expected.len() {
            return Ok(None);
        }
        rest = behind;
    }
    let used = bytes.len() - rest.len() + 2;
    match rest.first_chunk() {
        Some(b"\r\n") => Ok(Some(Delimiter::Part(used))),
        Some(b"--") => Ok(Some(Delimiter::Last(used))),
        Some(_) => Err(SHORT),
        None => Ok(None),
    }
}

/// The length of a part that does not state it: up to the next delimiter. `None` until that has arrived.
pub(crate) fn length(bytes: &[u8], boundary: &[u8]) -> Option<usize> {
    let is_delimiter =
        |bytes: &[u8]| bytes.strip_prefix(b"\r\n--").is_some_and(|rest| rest.starts_with(boundary));
    (0..bytes.len()).find(|at| bytes.get(*at..).is_some_and(is_delimiter))
}
