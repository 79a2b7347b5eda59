//! Reading from and writing to a guest: the bytes of a connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Instant;

use super::{Guest, Stage, Step};
use crate::door::speech::{self, Heard, Speech, TELLING};
use crate::framing::http::Fault;
use crate::framing::soap::{ROOT, Word, envelope};

/// The first byte of a TLS connection.
const TLS_HANDSHAKE: u8 = 22;
/// Fatal, "unexpected message": the TLS alert for a peer that does not speak TLS.
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 10];
/// Bytes read at a time from a guest that speaks SOAP.
const CHUNK: usize = 2 << 10;
/// Maximum consecutive reads of what a refused stranger still sends. Beyond that it is closed, or it could keep the door's thread busy.
const RESTS: usize = 64;
/// The answer to HTTP at a TLS port. Callers recognise it by how it ends.
pub(in crate::door) const PLAIN_AT_TLS: &str = "this port speaks TLS";

impl Guest {
    /// Returns the next message, of `wanted` bytes in the plain encoding; or the reply to send if the message is wrong.
    pub(super) fn hear(&mut self, wanted: usize) -> io::Result<Result<Heard, Vec<u8>>> {
        loop {
            if matches!(self.speech, Speech::Unknown)
                && let Some(answer) = self.plain_at_tls()?
            {
                self.socket.give_up_session();
                return Ok(Err(answer));
            }
            let most = match &self.speech {
                Speech::Unknown if self.heard.len() >= TELLING => {
                    if self.heard.first() == Some(&TLS_HANDSHAKE) {
                        // In plain text, by which the caller recognises that there is no TLS.
                        let fault = Fault::http(400, "this port does not speak TLS");
                        return Ok(Err(envelope::fault(fault)));
                    }
                    let speech = Speech::of(&self.heard);
                    self.speech = speech.ok_or(io::Error::from(ErrorKind::InvalidData))?;
                    continue;
                }
                Speech::Unknown => TELLING,
                Speech::Bytes if self.heard.len() >= wanted => {
                    let word = if matches!(self.stage, Stage::Taken(_)) { Word::Hello } else { Word::Claim };
                    return Ok(Ok(Heard::Message(word, self.heard.clone())));
                }
                Speech::Bytes => wanted,
                Speech::Soap(role) => match speech::read(role, &self.heard, ROOT) {
                    Ok(None) => self.heard.len() + CHUNK,
                    Ok(Some(heard)) => return Ok(Ok(heard)),
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
        if self.is_told_apart || !self.socket.is_encrypted() {
            return Ok(None);
        }
        // Only peek: TLS must still read these bytes.
        let mut first = [0; TELLING];
        let answer = match (self.socket.stream.peek(&mut first)?, first) {
            (0, _) => return Err(ErrorKind::UnexpectedEof.into()),
            (_, [TLS_HANDSHAKE, ..]) => None,
            (_, [b'P', b'D']) => Some(ALERT.to_vec()),
            (_, [b'A'..=b'Z' | b'a'..=b'z', _]) => Some(envelope::fault(Fault::http(400, PLAIN_AT_TLS))),
            _ => Some(ALERT.to_vec()),
        };
        self.is_told_apart = true;
        Ok(answer)
    }

    /// Discards what a refused guest still sends, so that it can read why it was refused.
    pub(super) fn drop_rest(&mut self) -> Step {
        // Fails only if the guest has gone.
        let _ = self.socket.stream.shutdown(Shutdown::Write);
        for _ in 0..RESTS {
            match self.socket.stream.read(&mut [0; CHUNK]) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Waits,
                _ => return Step::Gone,
            }
        }
        Step::Gone
    }

    /// Reads once, up to `most` bytes in total.
    ///
    /// # Errors
    /// The end of the connection, or that nothing has arrived yet.
    fn read(&mut self, most: usize) -> io::Result<()> {
        let (wanted, mut room) = (most.saturating_sub(self.heard.len()), [0; CHUNK]);
        let room = room.get_mut(..wanted.min(CHUNK)).unwrap_or(&mut []);
        match self.socket.read(room) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.heard.extend_from_slice(room.get(..count).unwrap_or(&[]));
                self.last_heard = Instant::now();
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
