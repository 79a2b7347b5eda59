//! Live sources: streams that are sent to this program while it runs, by RTSP or as RTP over UDP.
//!
//! ```text
//!  sender ──RTP/UDP──▶ ┌──────────────────────────────┐ access units ┌──────────┐
//!                      │ receiver: order, join, queue ├─────────────▶│ Follower │ of a decoding thread
//!  server ◀──RTSP────▶ └──────────────────────────────┘  or faults   └──────────┘
//! ```
//!
//! All sources of a process are received by one thread ([`tokio`]; RTSP by [`retina`]); each has a queue of a bounded length between that
//! thread and the decoder. A source that cannot be reached, stalls, ends or sends what cannot be read says so once and comes back by itself: it
//! is tried again, after a second at first and after [`RETRY`] at most. No source waits for another.
//!
//! Pictures begin at a key picture. When packets are lost, pictures are left out until the next one: what is measured is what was sent.

mod receive;
mod rtp;

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use tokio::task::AbortHandle;
use url::Url;

pub use receive::{RETRY, STALL};
pub use rtp::{AccessUnit, Described, Media, RtpReader, Unit, videos};

use crate::annexb::Standard;

/// Access units that wait for their decoder: two seconds of 50 pictures.
const MOST_UNITS: usize = 100;
/// Their bytes, together.
const MOST_QUEUED: usize = 16 << 20;
/// Faults that wait with them.
const MOST_FAULTS: usize = 16;

/// Where a source is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// At a server.
    Rtsp {
        /// Without user and password.
        url: Url,
        /// User and password.
        credentials: Option<(String, String)>,
        /// Whether packets come in the connection, or beside it.
        carrier: Carrier,
    },
    /// It is sent to an address of this host, or to a group.
    Rtp {
        /// Where to listen.
        to: SocketAddr,
        /// What is sent.
        media: Media,
    },
}

/// How packets of a server come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// In the connection.
    Tcp,
    /// Over UDP.
    Udp,
}

/// Why an argument names no source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}: {reason}")]
pub struct AddressError {
    /// The argument.
    pub text: String,
    /// What is wrong with it, and what to write.
    pub reason: String,
}

impl Address {
    /// Reads `rtsp://[USER:PASSWORD@]HOST[:PORT]/PATH`, the same with `rtspu` for packets over UDP, and `rtp://ADDRESS:PORT[?codec=h265]`. `None`
    /// if it is none of these, but the path of a file.
    pub fn parse(text: &str) -> Option<Result<Self, AddressError>> {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase())?;
        let refused = |reason: String| AddressError { text: without_password(text), reason };
        Some(match scheme.as_str() {
            "rtsp" => rtsp(text, Carrier::Tcp).map_err(refused),
            "rtspu" => rtsp(&text.replacen("rtspu", "rtsp", 1), Carrier::Udp).map_err(refused),
            "rtp" => rtp(text).map_err(refused),
            _ => Err(refused(format!(
                "{scheme} is not read; give rtsp://HOST/PATH, rtp://ADDRESS:PORT, an .sdp file or a video file"
            ))),
        })
    }

    /// The sources that a session description names, read from a file.
    ///
    /// # Errors
    /// Why there is none.
    pub fn described(path: &Path, text: &[u8]) -> Result<Vec<Self>, AddressError> {
        let refused = |reason: String| AddressError { text: path.display().to_string(), reason };
        let address =
            |video: Described| match video.to {
                Some(to) => Ok(Self::Rtp { to, media: video.media }),
                None => Err("it does not say to which address and port the video is sent (lines c= and m=)"
                    .to_owned()),
            };
        let addresses =
            videos(text).and_then(|videos| videos.into_iter().map(address).collect::<Result<Vec<_>, _>>());
        addresses.map_err(refused)
    }
}

fn rtsp(text: &str, carrier: Carrier) -> Result<Address, String> {
    let mut url = Url::parse(text).map_err(|error| format!("{error}; give rtsp://HOST[:PORT]/PATH"))?;
    if url.host_str().is_none_or(str::is_empty) {
        return Err("names no host; give rtsp://HOST[:PORT]/PATH".into());
    }
    let plain = |part: &str| percent_encoding::percent_decode_str(part).decode_utf8_lossy().into_owned();
    let credentials = (!url.username().is_empty())
        .then(|| (plain(url.username()), plain(url.password().unwrap_or_default())));
    let cleared = url.set_username("").and_then(|()| url.set_password(None));
    cleared.map_err(|()| "cannot have a user and a password".to_owned())?;
    Ok(Address::Rtsp { url, credentials, carrier })
}

fn rtp(text: &str) -> Result<Address, String> {
    let usage = "give rtp://ADDRESS:PORT of an address of this host or a group, such as rtp://0.0.0.0:5004 or rtp://127.0.0.1:5004?codec=h265";
    let (_, rest) = text.split_once("://").unwrap_or_default();
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let to = address
        .trim_end_matches('/')
        .parse()
        .map_err(|_| format!("{address:?} is no IP address with a port; {usage}"))?;
    let standard = match query {
        "" | "codec=h264" => Standard::H264,
        "codec=h265" | "codec=hevc" => Standard::H265,
        other => return Err(format!("{other:?} is not known; {usage}")),
    };
    Ok(Address::Rtp { to, media: Media { standard, payload_type: None, parameter_sets: Vec::new() } })
}

/// What may be shown.
fn without_password(text: &str) -> String {
    match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        _ => text.to_owned(),
    }
}

/// Without user and password.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rtsp { url, carrier: Carrier::Tcp, .. } => url.fmt(f),
            Self::Rtsp { url, carrier: Carrier::Udp, .. } => {
                f.write_str(&url.as_str().replacen("rtsp", "rtspu", 1))
            }
            Self::Rtp { to, .. } => write!(f, "rtp://{to}"),
        }
    }
}

/// A live source. It is received from [`start`](Self::start) on, until it is dropped.
pub struct Source {
    address: Address,
    shared: Arc<Shared>,
    receiver: OnceLock<Option<AbortHandle>>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("address", &self.address).field("waiting", &self.waiting()).finish()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(Some(receiver)) = self.receiver.get() {
            receiver.abort();
        }
    }
}

impl Source {
    /// A source at that address.
    pub fn new(address: Address) -> Self {
        Self { address, shared: Arc::default(), receiver: OnceLock::new() }
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Begins to receive, if it has not begun yet.
    pub fn start(&self) {
        self.receiver.get_or_init(|| receive::start(self.address.clone(), Arc::clone(&self.shared)));
    }

    /// The next access unit, or what happened before it; `None` if there is nothing yet.
    pub fn take(&self) -> Option<Unit> {
        if self.waiting() == 0 { None } else { self.shared.take() }
    }

    /// As if it had been received.
    #[cfg(test)]
    pub(crate) fn feed(&self, unit: Unit) {
        self.shared.put(unit);
    }

    /// How much waits to be taken.
    pub fn waiting(&self) -> usize {
        // Relaxed: `take` looks again under the lock.
        self.shared.waiting.load(Ordering::Relaxed)
    }

    /// The last key picture that was taken, for who wants to see what the source shows.
    pub fn last_key(&self) -> Option<AccessUnit> {
        self.shared.queue().last_key.clone()
    }
}

/// Between the receiver and the decoder.
#[derive(Default)]
pub(crate) struct Shared {
    queue: Mutex<Queue>,
    /// Entries of the queue.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Unit>,
    bytes: usize,
    faults: usize,
    last_key: Option<AccessUnit>,
    /// Units are left out until a key picture comes for which there is room.
    is_full: bool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Every change leaves a queue that can be used.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Unit> {
        let mut queue = self.queue();
        let unit = queue.entries.pop_front()?;
        match &unit {
            Ok(unit) => {
                queue.bytes -= unit.bytes.len();
                if unit.is_key {
                    queue.last_key = Some(unit.clone());
                }
            }
            Err(_) => queue.faults -= 1,
        }
        self.waiting.store(queue.entries.len(), Ordering::Relaxed);
        Some(unit)
    }

    /// Adds a unit or a fault. Where there is no room pictures are left out until the next key picture, and a fault says so.
    pub(crate) fn put(&self, unit: Unit) {
        let mut queue = self.queue();
        match unit {
            Ok(unit) => {
                let has_room =
                    queue.entries.len() < MOST_UNITS && queue.bytes + unit.bytes.len() <= MOST_QUEUED;
                if queue.is_full && !(has_room && unit.is_key) {
                    return;
                }
                queue.is_full = !has_room;
                if has_room {
                    queue.bytes += unit.bytes.len();
                    queue.entries.push_back(Ok(unit));
                } else {
                    queue.fault(
                        "decoding does not keep up; pictures are left out until the next key picture"
                            .to_owned(),
                    );
                }
            }
            Err(reason) => queue.fault(reason),
        }
        self.waiting.store(queue.entries.len(), Ordering::Relaxed);
    }
}

impl Queue {
    fn fault(&mut self, reason: String) {
        if self.faults < MOST_FAULTS {
            self.faults += 1;
            self.entries.push_back(Err(reason));
        }
    }
}

/// How often is looked whether something has come.
const LOOK: Duration = Duration::from_millis(5);

/// Calls `look`, which says how much it has found, for so long.
pub(crate) fn attend<E>(length: Duration, mut look: impl FnMut() -> Result<usize, E>) -> Result<(), E> {
    let end = Instant::now() + length;
    loop {
        let found = look()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        if found == 0 {
            thread::sleep(LOOK.min(left));
        }
    }
}

#[cfg(test)]
mod tests;
