//! A line between two processes that can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Passes connections on to an address.
pub(crate) struct Proxy {
    address: String,
    lines: Arc<Mutex<Lines>>,
}

#[derive(Default)]
struct Lines {
    open: Vec<TcpStream>,
    count: usize,
    is_closed: bool,
    is_stalled: bool,
}

impl Proxy {
    pub(crate) fn to(target: String) -> Self {
        Self::connecting(Duration::ZERO, move || TcpStream::connect(&target))
    }

    /// Delays everything that passes by this much.
    pub(crate) fn slow(target: String, delay: Duration) -> Self {
        Self::connecting(delay, move || TcpStream::connect(&target))
    }

    /// Leads nowhere until `target` is set.
    pub(crate) fn later(target: Arc<OnceLock<std::net::SocketAddr>>) -> Self {
        let nowhere = || std::io::Error::from(std::io::ErrorKind::NotFound);
        Self::connecting(Duration::ZERO, move || TcpStream::connect(target.get().ok_or_else(nowhere)?))
    }

    /// Calls from another address of this host, at which a process that listens at 127.0.0.1 cannot be reached.
    pub(crate) fn from_elsewhere(target: std::net::SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        Self::connecting(Duration::ZERO, move || {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind(([127, 0, 0, 2], 0).into())?;
            let stream = runtime.block_on(socket.connect(target))?.into_std()?;
            stream.set_nonblocking(false)?;
            Ok(stream)
        })
    }

    fn connecting(
        delay: Duration,
        connect: impl Fn() -> std::io::Result<TcpStream> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let lines = Arc::new(Mutex::new(Lines::default()));
        let shared = Arc::clone(&lines);
        thread::spawn(move || {
            for from in listener.incoming() {
                let (Ok(from), Ok(to)) = (from, connect()) else { continue };
                let mut lines = shared.lock().unwrap();
                if lines.is_closed {
                    continue;
                }
                lines.count += 1;
                for (from, to) in [(clone(&from), clone(&to)), (clone(&to), clone(&from))] {
                    pass_on(from, to, &shared, delay);
                }
                lines.open.extend([from, to]);
            }
        });
        Self { address, lines }
    }

    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    /// Ends all connections. Whatever is in flight is lost, possibly half a frame.
    pub(crate) fn cut(&self) {
        let mut lines = self.lines.lock().unwrap();
        for stream in lines.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // After the end of what was stalled.
        lines.is_stalled = false;
    }

    /// Ends all connections, and refuses new ones.
    pub(crate) fn close(&self) {
        self.lines.lock().unwrap().is_closed = true;
        self.cut();
    }

    /// Lets nothing pass from now on, but keeps the connections.
    pub(crate) fn stall(&self) {
        self.lines.lock().unwrap().is_stalled = true;
    }

    pub(crate) fn open(&self) {
        self.lines.lock().unwrap().is_closed = false;
    }

    /// Number of connections so far.
    pub(crate) fn lines(&self) -> usize {
        self.lines.lock().unwrap().count
    }
}

/// Passes on what arrives, each piece after the delay.
fn pass_on(mut from: TcpStream, mut to: TcpStream, lines: &Arc<Mutex<Lines>>, delay: Duration) {
    let under_way = if delay.is_zero() { 1 } else { 4096 };
    let (sender, pieces) = sync_channel::<(Instant, Vec<u8>)>(under_way);
    let lines = Arc::clone(lines);
    thread::spawn(move || {
        let mut bytes = vec![0; 4096];
        while let Ok(count) = from.read(&mut bytes)
            && count > 0
            && sender.send((Instant::now() + delay, bytes[..count].to_vec())).is_ok()
        {}
    });
    thread::spawn(move || {
        for (due, piece) in pieces {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            while lines.lock().unwrap().is_stalled {
                thread::sleep(Duration::from_millis(1));
            }
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

fn clone(stream: &TcpStream) -> TcpStream {
    stream.try_clone().unwrap()
}
