//! A node that sends the other one messages, one longer than a block, and a stream, and checks what comes from there.

use pdbp_core::embed::{Error, Host, Piece, Sending, StreamReader, StreamWriter, Wire, WireTransport};
use pdbp_core::endpoint::SendError;
use pdbp_core::id::{PartId, Time};
use pdbp_core::policy::Adaptive;
use pdbp_core::tables::PartKind;
use pdbp_core::umb::StaticMemory;

pub type Link<W> = WireTransport<'static, W>;

const MESSAGES: u32 = 1000;
const STREAMED: usize = 50_000;
/// Longer than a block.
static LONG: [u8; 3000] = [7; 3000];

pub struct Node<'h, W: Wire> {
    host: &'h Host<Link<W>>,
    me: PartId,
    other: &'static str,
    sent: u32,
    received: u32,
    long: Option<Sending<'h, 'static, Link<W>, StaticMemory, Adaptive>>,
    long_received: bool,
    writer: Option<StreamWriter<'h, Link<W>, StaticMemory, Adaptive>>,
    written: usize,
    reader: Option<StreamReader<'h, Link<W>, StaticMemory, Adaptive>>,
    read: usize,
    ended: [bool; 2],
}

impl<'h, W: Wire> Node<'h, W> {
    pub fn new(host: &'h Host<Link<W>>, other: &'static str) -> Result<Self, Error> {
        let me = host.register("worker", PartKind::Cpu)?;
        let (long, writer, reader, ended) = (None, None, None, [false; 2]);
        let (sent, received, written, read, long_received) = (0, 0, 0, 0, false);
        Ok(Self {
            host,
            me,
            other,
            sent,
            received,
            long,
            long_received,
            writer,
            written,
            reader,
            read,
            ended,
        })
    }

    /// Does what can be done now. Whether everything has gone and everything has come.
    pub fn turn(&mut self, now: Time) -> Result<bool, Error> {
        self.host.poll(now);
        self.receive();
        if let Some(to) = self.host.find(self.other) {
            self.send(to)?;
        }
        Ok(self.received == MESSAGES && self.long_received && self.ended == [true; 2])
    }

    fn send(&mut self, to: PartId) -> Result<(), Error> {
        while self.sent < MESSAGES {
            match self.host.send(self.me, to, &self.sent.to_le_bytes()) {
                Ok(()) => self.sent += 1,
                Err(SendError::WouldBlock) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if self.long.is_none() {
            self.long = Some(self.host.send_long(self.me, to, &LONG)?);
            self.writer = Some(self.host.open_stream(self.me, to)?);
        }
        let (Some(long), Some(writer)) = (&mut self.long, &mut self.writer) else { return Ok(()) };
        long.poll()?;
        while self.written < STREAMED {
            let bytes = [(self.written / 100) as u8; 100];
            let taken = writer.write(bytes.get(self.written % 100..).unwrap_or(&[]))?;
            self.written += taken;
            if taken == 0 {
                return Ok(());
            }
        }
        self.ended[0] = writer.poll_finish()?;
        Ok(())
    }

    fn receive(&mut self) {
        while let Some(message) = self.host.recv(self.me) {
            if message.len() == LONG.len() {
                assert!(!self.long_received && *message == LONG);
                self.long_received = true;
            } else {
                assert!(*message == self.received.to_le_bytes());
                self.received += 1;
            }
        }
        self.reader = self.reader.take().or_else(|| self.host.accept(self.me));
        let Some(reader) = &mut self.reader else { return };
        loop {
            match reader.poll_next() {
                Piece::Data(bytes) => {
                    for byte in bytes.iter() {
                        assert!(*byte == (self.read / 100) as u8);
                        self.read += 1;
                    }
                }
                Piece::End => {
                    assert!(self.read == STREAMED);
                    self.ended[1] = true;
                    // What is dropped now is over; the next one would be another stream.
                    return;
                }
                Piece::Nothing => return,
                Piece::Broken => {
                    assert!(self.ended[1], "nobody gives it up");
                    return;
                }
            }
        }
    }
}
