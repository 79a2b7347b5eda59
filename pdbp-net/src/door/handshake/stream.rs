//! Reading and writing of a handshake: the bytes of a connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Instant;

use super::{Handshake, Stage, Step};
use crate::door::encoding::{self, Encoding, Received, SNIFF_LENGTH};
use crate::framing::http::Fault;
use crate::framing::soap::{ROOT, Word, envelope};

/// The first byte of a TLS connection.
const TLS_HANDSHAKE: u8 = 22;
/// Fatal, "unexpected message": the TLS alert for a peer that does not speak TLS.
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 10];
/// Bytes read at a time from a peer that speaks SOAP.
const CHUNK: usize = 2 << 10;
/// Maximum consecutive reads of what a refused stranger still sends. Beyond that it is closed, or it could keep the door's thread busy.
const RESTS: usize = 64;
/// The answer to HTTP at a TLS port. Callers recognise it by how it ends.
pub(in crate::door) const PLAIN_AT_TLS: &str = "this port speaks TLS";

impl Handshake {
    /// Returns the next message, of `wanted` bytes in the plain encoding; or the reply to send if the message is wrong.
    pub(super) fn receive(&mut self, wanted: usize) -> io::Result<Result<Received, Vec<u8>>> {
        loop {
            if matches!(self.encoding, Encoding::Unknown)
                && let Some(answer) = self.plain_at_tls()?
            {
                self.socket.give_up_session();
                return Ok(Err(answer));
            }
            let most = match &self.encoding {
                Encoding::Unknown if self.received.len() >= SNIFF_LENGTH => {
                    if self.received.first() == Some(&TLS_HANDSHAKE) {
                        // In plain text, by which the caller recognises that there is no TLS.
                        let fault = Fault::http(400, "this port does not speak TLS");
                        return Ok(Err(envelope::fault(fault)));
                    }
                    let encoding = Encoding::of(&self.received);
                    self.encoding = encoding.ok_or(io::Error::from(ErrorKind::InvalidData))?;
                    continue;
                }
                Encoding::Unknown => SNIFF_LENGTH,
                Encoding::Bytes if self.received.len() >= wanted => {
                    let word =
                        if matches!(self.stage, Stage::Accepted(_)) { Word::Hello } else { Word::Claim };
                    return Ok(Ok(Received::Message(word, self.received.clone())));
                }
                Encoding::Bytes => wanted,
                Encoding::Soap(role) => match encoding::read(role, &self.received, ROOT) {
                    Ok(None) => self.received.len() + CHUNK,
                    Ok(Some(received)) => return Ok(Ok(received)),
                    Err(fault) => return Ok(Err(envelope::fault(fault))),
                },
            };
            self.read(most)?;
        }
    }

    /// Returns the reply to a caller that does not speak TLS where TLS is required, judging by its first bytes.
    ///
    /// # Errors
    /// Nothing has arrived yet, or the connection has ended.
    fn plain_at_tls(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.is_tls_checked || !self.socket.is_encrypted() {
            return Ok(None);
        }
        // Only peek: TLS must still read these bytes.
        let mut first = [0; SNIFF_LENGTH];
        let answer = match (self.socket.stream.peek(&mut first)?, first) {
            (0, _) => return Err(ErrorKind::UnexpectedEof.into()),
            (_, [TLS_HANDSHAKE, ..]) => None,
            (_, [b'P', b'D']) => Some(ALERT.to_vec()),
            (_, [b'A'..=b'Z' | b'a'..=b'z', _]) => Some(envelope::fault(Fault::http(400, PLAIN_AT_TLS))),
            _ => Some(ALERT.to_vec()),
        };
        self.is_tls_checked = true;
        Ok(answer)
    }

    /// Discards what a refused peer still sends, so that it can read why it was refused.
    pub(super) fn drop_rest(&mut self) -> Step {
        // Fails only if the peer has gone.
        let _ = self.socket.stream.shutdown(Shutdown::Write);
        for _ in 0..RESTS {
            match self.socket.stream.read(&mut [0; CHUNK]) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Pending,
                _ => return Step::Closed,
            }
        }
        Step::Closed
    }

    /// Reads once, up to `most` bytes in total.
    ///
    /// # Errors
    /// The end of the connection, or that nothing has arrived yet.
    fn read(&mut self, most: usize) -> io::Result<()> {
        let (wanted, mut room) = (most.saturating_sub(self.received.len()), [0; CHUNK]);
        let room = room.get_mut(..wanted.min(CHUNK)).unwrap_or(&mut []);
        match self.socket.read(room) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.received.extend_from_slice(room.get(..count).unwrap_or(&[]));
                self.last_received = Instant::now();
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            // A call whose connection is still being made.
            Err(error) if error.kind() == ErrorKind::NotConnected => Err(ErrorKind::WouldBlock.into()),
            Err(error) => Err(error),
        }
    }

    /// Writes what is pending. Returns whether that was everything.
    pub(super) fn write(&mut self) -> io::Result<bool> {
        loop {
            let written = match &self.out[..] {
                // The TLS session may still hold some.
                [] => self.socket.flush().map(|()| None),
                out => self.socket.write(out).map(Some),
            };
            match written {
                Ok(None) => return Ok(true),
                Ok(Some(0)) => return Err(ErrorKind::WriteZero.into()),
                Ok(Some(count)) => _ = self.out.drain(..count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                    return match self.socket.stream.take_error()? {
                        Some(error) => Err(error),
                        None => Ok(false),
                    };
                }
                Err(error) => return Err(error),
            }
        }
    }
}
