//! The thread that receives all live sources of the process.

use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::sync::{Arc, OnceLock};

use futures::{FutureExt as _, StreamExt as _};
use retina::client::{
    Credentials, PacketItem, PlayOptions, Session, SessionOptions, SetupOptions, Transport,
};
use tokio::net::UdpSocket;
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use url::Url;

use super::descriptors;
use super::room::Hold;
use super::rtp::{RtpReader, Unit};
use super::{Address, Carrier, Media, Shared, no_room, videos};
use crate::plain;

/// A source that sends nothing for this long has stalled.
pub const STALL: Duration = Duration::from_secs(5);
/// The longest time after which a broken source is retried.
pub const RETRY: Duration = Duration::from_secs(8);
/// The first retry.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest that a server may take for an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// The longest that packets may come without a key picture before it counts as a fault.
const KEY: Duration = Duration::from_secs(15);
/// Bytes of datagrams that wait to be read: twice those of a very large key picture.
const BUFFER: usize = 4 << 20;
/// Bytes of the largest datagram.
const DATAGRAM: usize = 65_536;

/// Receives a source from now on; `None` if that is impossible, which a fault reports.
pub(super) fn start(address: Address, shared: Arc<Shared>) -> Option<AbortHandle> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let make = || Builder::new_multi_thread().worker_threads(1).thread_name("sources").enable_all().build();
    match RUNTIME.get_or_init(|| make().map_err(|error| error.to_string())) {
        Ok(runtime) => Some(runtime.spawn(receive(address, shared)).abort_handle()),
        Err(error) => {
            shared.put(Err(format!(
                "cannot be received: {error}; free memory or file handles, and start again"
            )));
            None
        }
    }
}

/// Receives for ever.
async fn receive(address: Address, shared: Arc<Shared>) {
    let mut listener = Listener::new(shared);
    let mut wait = Duration::ZERO;
    loop {
        listener.has_unit = false;
        // Servers' answers are parsed by library code, which may panic over hostile ones.
        let reason = AssertUnwindSafe(listen(&address, &mut listener)).catch_unwind().await;
        let reason = reason.unwrap_or_else(|_| {
            "what it sent made its reader panic; let its maker look at the session description".to_owned()
        });
        listener.fault(reason);
        // What its reader had collected is lost.
        listener.hold.set(0);
        wait = next_wait(wait, listener.has_unit);
        sleep(wait).await;
    }
}

/// How long to wait after an attempt that has, or has not, given a picture.
fn next_wait(before: Duration, has_unit: bool) -> Duration {
    if has_unit { FIRST_RETRY } else { (before * 2).clamp(FIRST_RETRY, RETRY) }
}

/// Receives until it fails; returns why.
async fn listen(address: &Address, listener: &mut Listener) -> String {
    match address {
        Address::Rtp { to, media } => datagrams(*to, media, listener).await,
        Address::Rtsp { url, credentials, carrier } => {
            let credentials =
                credentials.clone().map(|(username, password)| Credentials { username, password });
            session(url, credentials, *carrier, listener).await
        }
    }
}

/// Passes on what is received.
pub(super) struct Listener {
    shared: Arc<Shared>,
    /// For what its reader collects.
    hold: Hold,
    begun: Instant,
    /// The last fault, until pictures come: a persisting fault is reported once.
    said: Option<String>,
    last_unit: Instant,
    /// Whether a picture has come since the source was last tried.
    has_unit: bool,
    /// Advice to add to faults of lost packets.
    advice: String,
}

impl Listener {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (hold, now) = (Hold::new(&shared.room), Instant::now());
        Self { shared, hold, begun: now, said: None, last_unit: now, has_unit: false, advice: String::new() }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// When there is something to do even if no packet has come.
    fn due(&self, reader: &RtpReader) -> Option<Instant> {
        reader.due().map(|due| self.begun + due)
    }

    /// Goes on without late packets.
    fn expire(&mut self, reader: &mut RtpReader) {
        reader.expire(self.now(), &mut |unit| self.unit(unit));
    }

    /// Takes a packet. Returns whether it belongs to the stream.
    pub(super) fn push(&mut self, reader: &mut RtpReader, packet: &[u8]) -> bool {
        let is_one = reader.push(packet, self.now(), &mut |unit| self.unit(unit));
        if !self.hold.set(reader.held()) {
            reader.restart();
            self.hold.set(reader.held());
            self.fault(no_room(self.hold.most()));
        }
        if self.last_unit.elapsed() > KEY {
            self.fault(format!(
                "packets come, but no key picture for {} s; let the sender make one every few seconds (unless it sends neither H.264 nor H.265)",
                KEY.as_secs()
            ));
        }
        is_one
    }

    fn unit(&mut self, unit: Unit) {
        match unit {
            Ok(unit) => {
                self.said = None;
                (self.last_unit, self.has_unit) = (Instant::now(), true);
                self.shared.put(Ok(unit));
            }
            Err(reason) => {
                let advice = if reason.ends_with("lost") { self.advice.as_str() } else { "" };
                self.fault(format!("{reason}{advice}; pictures are left out until the next key picture"));
            }
        }
    }

    fn fault(&mut self, reason: String) {
        let reason = plain::text(&reason);
        if self.said.as_ref() != Some(&reason) {
            self.shared.put(Err(reason.clone()));
            self.said = Some(reason);
        }
    }

    fn stalled(&mut self, reader: &mut RtpReader) {
        reader.restart();
        self.fault(format!("no packet for {} s", STALL.as_secs()));
        self.last_unit = Instant::now();
    }
}

/// Reads what is sent to an address; returns why it fails.
async fn datagrams(to: core::net::SocketAddr, media: &Media, listener: &mut Listener) -> String {
    let socket = match bind(to).await {
        Ok(socket) => socket,
        Err(error) => {
            let advice = descriptors::advice(&error)
                .unwrap_or_else(|| "another program may, or the address is none of this host".to_owned());
            return format!("cannot listen at {to}: {error}; {advice}");
        }
    };
    listener.advice = widen(&socket);
    let mut reader = RtpReader::new(media);
    let mut packet = vec![0; DATAGRAM];
    let mut heard = Instant::now();
    listener.last_unit = heard;
    loop {
        let stall = heard + STALL;
        let until = listener.due(&reader).map_or(stall, |due| due.min(stall));
        match timeout_at(until, socket.recv(&mut packet)).await {
            Ok(Ok(length)) => {
                if listener.push(&mut reader, packet.get(..length).unwrap_or_default()) {
                    heard = Instant::now();
                }
            }
            Ok(Err(error)) => return format!("cannot be received: {error}"),
            Err(_) if Instant::now() < stall => listener.expire(&mut reader),
            Err(_) => {
                listener.stalled(&mut reader);
                heard = Instant::now();
            }
        }
        // A stall is noticed even if others send to the address.
        if heard.elapsed() > STALL {
            listener.stalled(&mut reader);
            heard = Instant::now();
        }
    }
}

/// Asks for a buffer that holds a burst as large as a large key picture. Returns advice if the system gives less.
fn widen(socket: &UdpSocket) -> String {
    #[cfg(unix)]
    {
        use rustix::net::sockopt;
        // A smaller buffer is reported below.
        let _ = sockopt::set_socket_recv_buffer_size(socket, BUFFER);
        let given = sockopt::socket_recv_buffer_size(socket).unwrap_or_default();
        // Linux reports twice the requested size, for its own records.
        if given < BUFFER {
            return format!(
                " (or here, where the system gives {} KiB for what comes at once: sysctl -w net.core.rmem_max={BUFFER})",
                given >> 10
            );
        }
    }
    let _ = socket;
    String::new()
}

async fn bind(to: core::net::SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(to).await?;
    match to.ip() {
        core::net::IpAddr::V4(group) if group.is_multicast() => {
            socket.join_multicast_v4(group, core::net::Ipv4Addr::UNSPECIFIED)?;
        }
        core::net::IpAddr::V6(group) if group.is_multicast() => socket.join_multicast_v6(&group, 0)?,
        _ => {}
    }
    Ok(socket)
}

/// Reads what a server sends; returns why no more comes.
async fn session(
    url: &Url,
    credentials: Option<Credentials>,
    carrier: Carrier,
    listener: &mut Listener,
) -> String {
    let no_answer = || format!("the server does not answer within {} s", ANSWER.as_secs());
    let options = SessionOptions::default().creds(credentials).user_agent("pdbp-video".to_owned());
    let mut session = match timeout(ANSWER, Session::describe(url.clone(), options)).await {
        Ok(Ok(session)) => session,
        Ok(Err(error)) => return said("cannot be opened", &error),
        Err(_) => return no_answer(),
    };
    let described = videos(session.sdp());
    let is_read = |name: &str| ["h264", "h265"].contains(&name);
    let stream = session
        .streams()
        .iter()
        .position(|stream| stream.media() == "video" && is_read(stream.encoding_name()));
    let (media, stream) = match (described, stream) {
        (Ok(videos), Some(stream)) => match videos.into_iter().next() {
            Some(video) => (video.media, stream),
            None => return "it offers no video".to_owned(),
        },
        (Err(reason), _) => return format!("the server's description: {reason}"),
        (Ok(_), None) => return "the server offers no H.264 or H.265 video".to_owned(),
    };
    let transport = match carrier {
        Carrier::Tcp => Transport::Tcp(Default::default()),
        Carrier::Udp => Transport::Udp(Default::default()),
    };
    match timeout(ANSWER, session.setup(stream, SetupOptions::default().transport(transport))).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return said("the server refuses", &error),
        Err(_) => return no_answer(),
    }
    let mut packets = match timeout(ANSWER, session.play(PlayOptions::default())).await {
        Ok(Ok(session)) => session,
        Ok(Err(error)) => return said("the server refuses", &error),
        Err(_) => return no_answer(),
    };
    // In a connection none is late, and over UDP the library passes on only packets in order.
    let mut reader = RtpReader::new(&media).in_order();
    let mut heard = Instant::now();
    (listener.last_unit, listener.advice) = (heard, String::new());
    loop {
        // The sender's reports keep coming when its encoder has stopped: only packets of the stream count.
        match timeout_at(heard + STALL, packets.next()).await {
            Ok(Some(Ok(PacketItem::Rtp(packet)))) if listener.push(&mut reader, packet.raw()) => {
                heard = Instant::now();
            }
            Ok(Some(Ok(_))) if heard.elapsed() < STALL => {}
            Ok(Some(Ok(_))) => return format!("no packet for {} s", STALL.as_secs()),
            Ok(Some(Err(error))) => return said("the connection broke", &error),
            Ok(None) => return "the sender has ended it".to_owned(),
            Err(_) => return format!("no packet for {} s", STALL.as_secs()),
        }
    }
}

/// The first line of an error; the rest locates it in the connection.
fn said(what: &str, error: &retina::Error) -> String {
    let error = error.to_string();
    let advice = descriptors::advice_of(&error).map_or_else(String::new, |advice| format!("; {advice}"));
    format!("{what}: {}{advice}", error.lines().next().unwrap_or_default())
}

#[cfg(test)]
mod tests;
