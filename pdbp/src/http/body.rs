//! The body of a request: of a stated length, or in chunks (RFC 9112 sections 6 and 7.1, without trailers).

use super::request::{Refused, has_whole_lines};

/// Longest line before a chunk: its length, and extensions, which are ignored.
const LINE: usize = 256;

/// The rest of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// This many bytes.
    Bytes(u64),
    /// The line with the length of a chunk.
    Size,
    /// This many bytes of a chunk.
    Chunk(u64),
    /// The end of a chunk's last line.
    ChunkEnd,
    /// The empty line after the last chunk.
    End,
}

impl Body {
    /// Whether the body is complete.
    pub(super) fn is_whole(&self) -> bool {
        *self == Self::Bytes(0)
    }

    /// Moves the body's bytes out of `bytes` into `to`, up to a total of `most`. Returns how many bytes of
    /// `bytes` were used.
    pub(super) fn take(&mut self, bytes: &[u8], to: &mut Vec<u8>, most: usize) -> Result<usize, Refused> {
        let mut used = 0;
        while !self.is_whole() {
            let rest = bytes.get(used..).unwrap_or(&[]);
            let step = match self {
                Self::Bytes(left) | Self::Chunk(left) => {
                    let here = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    if to.len() + here > most {
                        return Err(Refused::too_large(most));
                    }
                    to.extend_from_slice(rest.get(..here).unwrap_or(&[]));
                    *left -= here as u64;
                    if *self == Self::Chunk(0) {
                        *self = Self::ChunkEnd;
                    }
                    here
                }
                // httparse takes an empty line for a length of 0.
                Self::Size if rest.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) => return Err(bad()),
                Self::Size => match httparse::parse_chunk_size(rest) {
                    Ok(httparse::Status::Complete((length, _))) if length > LINE => return Err(bad()),
                    Ok(httparse::Status::Complete((length, _)))
                        if !rest.get(..length).is_some_and(has_whole_lines) =>
                    {
                        return Err(bad());
                    }
                    Ok(httparse::Status::Complete((length, size))) => {
                        *self = if size == 0 { Self::End } else { Self::Chunk(size) };
                        length
                    }
                    Ok(httparse::Status::Partial) if rest.len() <= LINE => 0,
                    _ => return Err(bad()),
                },
                Self::ChunkEnd | Self::End => match rest {
                    [b'\r', b'\n', ..] => {
                        *self = if *self == Self::End { Self::Bytes(0) } else { Self::Size };
                        2
                    }
                    [] | [b'\r'] => 0,
                    _ => return Err(bad()),
                },
            };
            if step == 0 {
                break;
            }
            used += step;
        }
        Ok(used)
    }
}

fn bad() -> Refused {
    Refused::new(
        "400 Bad Request",
        "the chunked body is malformed, or has trailers, which are not accepted\n",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the body, and what follows it.
    fn read(
        mut body: Body,
        bytes: &[u8],
        most: usize,
        step: usize,
    ) -> Result<(Vec<u8>, bool, usize), &'static str> {
        let (mut to, mut waiting, mut used) = (Vec::new(), Vec::new(), 0);
        for piece in bytes.chunks(step) {
            waiting.extend_from_slice(piece);
            let taken = body.take(&waiting, &mut to, most).map_err(|refused| refused.status)?;
            waiting.drain(..taken);
            used += taken;
        }
        Ok((to, body.is_whole(), used))
    }

    #[test]
    fn bodies_are_read_however_they_are_cut() {
        let chunked = b"4\r\nwiki\r\n5;name=value\r\npedia\r\n0\r\n\r\n";
        for step in 1..=chunked.len() {
            assert_eq!(read(Body::Size, chunked, 9, step), Ok((b"wikipedia".to_vec(), true, chunked.len())));
            assert_eq!(read(Body::Bytes(5), b"hello", 5, step), Ok((b"hello".to_vec(), true, 5)));
        }
        let next = b"0\r\n\r\nGET / HTTP/1.1";
        assert_eq!(read(Body::Size, next, 0, next.len()), Ok((Vec::new(), true, 5)));
        assert_eq!(read(Body::Bytes(2), b"abcd", 9, 4), Ok((b"ab".to_vec(), true, 2)));
        assert_eq!(read(Body::Size, b"4\r\nwi", 9, 1), Ok((b"wi".to_vec(), false, 5)));
    }

    #[test]
    fn bodies_that_are_none_or_too_long_are_refused() {
        let bad = Err("400 Bad Request");
        let long = format!("4;{}\r\nwiki", "x".repeat(LINE));
        for text in [
            "x\r\n",
            "4\r\nwikis",
            "0\r\nTrailer: x\r\n\r\n",
            "-1\r\n",
            "11111111111111111\r\n",
            "\r\n",
            // A proxy that takes this for the end of the line sees a different body.
            "4;\nab\r\nwiki\r\n0\r\n\r\n",
            "4;a\nb\r\n",
            &long,
        ] {
            for step in [1, text.len()] {
                assert_eq!(read(Body::Size, text.as_bytes(), 100, step), bad, "{text}");
            }
        }
        assert_eq!(read(Body::Size, b"ffffffffffffffff\r\nabcdef", 3, 9), Err("413 Content Too Large"));
        assert_eq!(read(Body::Size, b"2\r\nab\r\n2\r\ncd\r\n", 3, 9), Err("413 Content Too Large"));
    }
}
