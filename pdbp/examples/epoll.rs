//! Parts in your own `epoll` loop, next to a socket: a part of another node answers what a client writes.
//!
//! ```text
//! cargo run --release -p pdbp --example epoll
//! ```

use std::error::Error;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::task::Poll;
use std::thread;

use pdbp::{Cluster, PartKind, WakeFd};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// Tells the events apart.
const PARTS: u64 = 0;
const SOCKET: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let cluster = Cluster::local(2)?;
    let [gate, worker] =
        [cluster.node(0)?, cluster.node(1)?].map(|node| node.register("part", PartKind::Cpu));
    let (gate, worker) = (gate?, worker?);
    let (mut socket, client) = UnixStream::pair()?;
    socket.set_nonblocking(true)?;
    let client = thread::spawn(move || ask(client));

    let waker = WakeFd::new()?;
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &waker, EventData::new_u64(PARTS), EventFlags::IN)?;
    epoll::add(&poll, &socket, EventData::new_u64(SOCKET), EventFlags::IN)?;
    let mut line = [0; 256];
    loop {
        // Cleared before the parts are polled: whatever arrives from here on is either found by these calls or ends the wait
        // below.
        waker.clear();
        while let Poll::Ready(request) = worker.poll_recv(&mut waker.context()) {
            let request = request?;
            worker.send(request.source(), &request.to_ascii_uppercase())?;
            worker.flush();
        }
        while let Poll::Ready(answer) = gate.poll_recv(&mut waker.context()) {
            socket.write_all(&answer?)?;
        }
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 2];
        let ready = epoll::wait(&poll, &mut events, None)?;
        if events[..ready].iter().any(|event| event.data.u64() == SOCKET) {
            match socket.read(&mut line) {
                Ok(0) => break,
                Ok(bytes) => gate.send(worker.id(), &line[..bytes])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    println!("the client got {:?}", client.join().map_err(|_| "the client has panicked")??);
    Ok(())
}

fn ask(mut socket: UnixStream) -> io::Result<String> {
    socket.write_all(b"a question")?;
    let mut answer = [0; 10];
    socket.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
