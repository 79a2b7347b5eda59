//! The core in your own event loop, over TCP: node 0 asks, and node 1 answers until its client is gone.
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use pdbp_core::embed::{Host, NodeMemory, Wire, WireError};
use pdbp_core::id::{NodeId, Time};
use pdbp_core::{Config, Event, storage, tables::PartKind};

storage!(static CLIENT = nodes 2, blocks 32 of 4032, row 8, parts 8, local 2, streams 2, pipe 4);
storage!(static SERVER = nodes 2, blocks 32 of 4032, row 8, parts 8, local 2, streams 2, pipe 4);

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Frames on a TCP connection, each preceded by its length in four bytes. Buffers the bytes that the connection has not accepted
/// yet, and those received.
struct Tcp {
    stream: TcpStream,
    out: Vec<u8>,
    come: Vec<u8>,
}

impl Tcp {
    /// Returns whether the connection has accepted everything. If it has failed, reading from it reports that.
    fn flush(&mut self) -> bool {
        while let Ok(taken @ 1..) = self.stream.write(&self.out) {
            self.out.drain(..taken);
        }
        self.out.is_empty()
    }
}

impl Wire for Tcp {
    fn try_send(&mut self, _to: NodeId, frame: &[u8]) -> Result<(), WireError> {
        if !self.flush() {
            return Err(WireError::WouldBlock);
        }
        self.out.extend((frame.len() as u32).to_le_bytes().iter().chain(frame));
        self.flush();
        Ok(())
    }

    fn try_recv(&mut self, _from: NodeId, room: &mut [u8]) -> Result<usize, WireError> {
        self.flush();
        let end = match self.stream.read_to_end(&mut self.come) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => WireError::WouldBlock,
            _ => WireError::Failed,
        };
        let length = self.come.first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
        let frame = self.come.get(4..4 + length).filter(|frame| !frame.is_empty()).ok_or(end)?;
        room.get_mut(..length).ok_or(WireError::Failed)?.copy_from_slice(frame);
        self.come.drain(..4 + length);
        Ok(length)
    }
}

fn node(me: u16, stream: TcpStream, memory: NodeMemory) -> Outcome {
    stream.set_nonblocking(true)?;
    let (me_id, out, come) = (NodeId::new(me).ok_or("no such node")?, vec![], vec![]);
    let host = Host::new(Config::new(me_id, 2), Tcp { stream, out, come }, memory)?;
    let (part, start, mut asked) = (host.register("part", PartKind::Cpu)?, Instant::now(), false);
    loop {
        let now = Time(start.elapsed().as_nanos() as u64);
        host.poll(now);
        while let Some(message) = host.recv(part) {
            println!("node{me} got {:?}", std::str::from_utf8(&message)?);
            match message.source().filter(|_| me == 1) {
                Some(client) => host.send(part, client, b"an answer")?,
                None => return Ok(()),
            }
        }
        if let Some(server) = host.find("part@node1").filter(|_| me == 0 && !asked) {
            host.send(part, server, b"a question")?;
            asked = true;
        }
        if std::iter::from_fn(|| host.event()).any(|event| matches!(event, Event::PeerFailed { .. })) {
            return if me == 1 { Ok(()) } else { Err("the server has gone".into()) };
        }
        // The loop may do other work here; a real one would also wait for the socket.
        std::thread::sleep(Duration::from_nanos(host.next_poll().since(now).min(100_000)));
    }
}

fn main() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let client = std::thread::spawn(move || node(0, stream, CLIENT.take()?));
    node(1, listener.accept()?.0, SERVER.take()?)?;
    client.join().map_err(|_| "the client has panicked")?
}
