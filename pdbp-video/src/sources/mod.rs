//! Live sources: streams received while the program runs, by RTSP or as RTP over UDP.
//!
//! ```text
//!  sender ──RTP/UDP──▶ ┌──────────────────────────────┐ access units ┌──────────┐
//!                      │ receiver: order, join, queue ├─────────────▶│ Follower │ of a decoding thread
//!  server ◀──RTSP────▶ └──────────────────────────────┘  or faults   └──────────┘
//! ```
//!
//! One thread receives all sources of a process ([`tokio`]; RTSP by [`retina`]); each source has a bounded queue between that thread and the
//! decoder. A source that cannot be reached, stalls, ends or sends unreadable data reports it once and recovers by itself: it is retried, after a
//! second at first and after [`RETRY`] at most. No source waits for another.
//!
//! Together they hold no more memory than their [`Room`] has.
//!
//! Pictures begin at a key picture. When packets are lost, pictures are left out up to the next one: only pictures as sent are measured.

mod descriptors;
mod receive;
mod room;
mod rtp;

use core::fmt;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::task::AbortHandle;
use url::Url;

pub use descriptors::{Descriptors, descriptors};
pub use receive::{RETRY, STALL};
pub use room::Room;
pub use rtp::{AccessUnit, Described, LATE, Media, RtpReader, Unit, videos};

use self::room::Hold;
use crate::annexb::Standard;
use crate::plain;

/// Access units that wait for their decoder: two seconds of 50 pictures.
const MOST_UNITS: usize = 100;
/// Their bytes, together.
const MOST_QUEUED: usize = 16 << 20;
/// Faults that wait with them.
const MOST_FAULTS: usize = 16;

/// The address of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// At a server.
    Rtsp {
        /// Without user and password.
        url: Url,
        /// User and password.
        credentials: Option<(String, String)>,
        /// Whether packets come in the connection, or over UDP.
        carrier: Carrier,
    },
    /// Packets are sent to an address of this host, or to a group.
    Rtp {
        /// Where to listen.
        to: SocketAddr,
        /// What is sent.
        media: Media,
    },
}

/// How a server's packets travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// In the connection.
    Tcp,
    /// Over UDP.
    Udp,
}

/// Why an argument is not a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}: {reason}")]
pub struct AddressError {
    /// The argument.
    pub text: String,
    /// What is wrong with it, and what to write.
    pub reason: String,
}

impl Address {
    /// Parses `rtsp://[USER:PASSWORD@]HOST[:PORT]/PATH`, the same with `rtspu` for packets over UDP, and `rtp://ADDRESS:PORT[?codec=h265]`. `None`
    /// if it is none of these, but the path of a file.
    pub fn parse(text: &str) -> Option<Result<Self, AddressError>> {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase())?;
        let refused = |reason: String| AddressError { text: plain::without_secrets(text), reason };
        Some(match scheme.as_str() {
            "rtsp" => rtsp(text, Carrier::Tcp).map_err(refused),
            "rtspu" => {
                let tail = text.get(scheme.len()..).unwrap_or_default();
                rtsp(&format!("rtsp{tail}"), Carrier::Udp).map_err(refused)
            }
            "rtp" => rtp(text).map_err(refused),
            _ => Err(refused(format!(
                "{scheme} is not read; give rtsp://HOST/PATH, rtp://ADDRESS:PORT, an .sdp file or a video file"
            ))),
        })
    }

    /// The sources in a session description that was read from a file.
    ///
    /// # Errors
    /// Why there are none.
    pub fn described(path: &Path, text: &[u8]) -> Result<Vec<Self>, AddressError> {
        let refused =
            |reason: String| AddressError { text: path.display().to_string(), reason: plain::text(&reason) };
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
    let usage = "give rtsp://[USER:PASSWORD@]HOST[:PORT]/PATH, and write the letters % / ? # of a password as %25 %2F %3F %23";
    if text.split_once("://").is_some_and(|(_, rest)| plain::may_have_user(rest)) {
        return Err(format!(
            "the @ may end a password that has a / or an @ of the path; {usage}, and that of a path as %40"
        ));
    }
    let mut url = Url::parse(text).map_err(|error| format!("{error}; {usage}"))?;
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
    let text = plain::without_secrets(text);
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

/// Without user and password, and without anything else in path or query that looks secret.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rtsp { url, carrier: Carrier::Tcp, .. } => {
                f.write_str(&plain::without_secrets(url.as_str()))
            }
            Self::Rtsp { url, carrier: Carrier::Udp, .. } => {
                f.write_str(&plain::without_secrets(url.as_str()).replacen("rtsp", "rtspu", 1))
            }
            Self::Rtp { to, .. } => write!(f, "rtp://{to}"),
        }
    }
}

/// A live source. It is received from [`start`](Self::start) until it is dropped.
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
    /// Creates a source at that address, in this process's room.
    pub fn new(address: Address) -> Self {
        Self { address, shared: Arc::new(Shared::new(Room::of_process())), receiver: OnceLock::new() }
    }

    /// Its address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Starts to receive, unless already started.
    pub fn start(&self) {
        self.receiver.get_or_init(|| receive::start(self.address.clone(), Arc::clone(&self.shared)));
    }

    /// Takes the next access unit, or the fault before it; `None` if nothing has come yet.
    pub fn take(&self) -> Option<Unit> {
        if self.waiting() == 0 { None } else { self.shared.take() }
    }

    /// Adds a unit as if it had been received.
    #[cfg(test)]
    pub(crate) fn feed(&self, unit: Unit) {
        self.shared.put(unit);
    }

    /// Number of entries that wait to be taken.
    pub fn waiting(&self) -> usize {
        // Relaxed: `take` checks again under the lock.
        self.shared.waiting.load(Ordering::Relaxed)
    }

    /// Keeps the last key picture from now on, for a page that shows it.
    pub(crate) fn keep_keys(&self) {
        self.shared.keeps_keys.store(true, Ordering::Relaxed);
    }

    /// Keeps a successfully decoded key picture, if keys are kept and there is room.
    pub(crate) fn decoded(&self, unit: AccessUnit) {
        if unit.is_key && self.shared.keeps_keys.load(Ordering::Relaxed) {
            self.shared.queue().keep_key(unit);
        }
    }

    /// The last key picture that was decoded, if keys are kept.
    pub(crate) fn last_key(&self) -> Option<AccessUnit> {
        self.shared.queue().last_key.clone()
    }
}

/// Between the receiver and the decoder.
pub(crate) struct Shared {
    queue: Mutex<Queue>,
    /// Entries of the queue.
    waiting: AtomicUsize,
    keeps_keys: AtomicBool,
    room: Arc<Room>,
}

struct Queue {
    entries: VecDeque<Unit>,
    bytes: usize,
    faults: usize,
    last_key: Option<AccessUnit>,
    /// Units are dropped until a key picture comes that there is room for.
    is_full: bool,
    /// A fault that waits until there is room for it. Units are dropped meanwhile: what follows it must not be decoded as if nothing had happened.
    withheld: Option<String>,
    /// For waiting entries, and the key picture.
    hold: Hold,
}

impl Shared {
    fn new(room: &Arc<Room>) -> Self {
        let queue = Queue {
            entries: VecDeque::new(),
            bytes: 0,
            faults: 0,
            last_key: None,
            is_full: false,
            withheld: None,
            hold: Hold::new(room),
        };
        Self {
            queue: Mutex::new(queue),
            waiting: AtomicUsize::new(0),
            keeps_keys: AtomicBool::new(false),
            room: Arc::clone(room),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Every change leaves a usable queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Unit> {
        let mut queue = self.queue();
        let unit = queue.entries.pop_front()?;
        match &unit {
            Ok(unit) => {
                let bytes = queue.bytes - unit.bytes.len();
                queue.hold(bytes);
            }
            Err(_) => {
                queue.faults -= 1;
                if let Some(reason) = queue.withheld.take() {
                    queue.fault(reason);
                }
            }
        }
        self.waiting.store(queue.entries.len(), Ordering::Relaxed);
        Some(unit)
    }

    /// Adds a unit or a fault. Without room, pictures are dropped until the next key picture, and a fault reports it.
    pub(crate) fn put(&self, unit: Unit) {
        let mut queue = self.queue();
        match unit {
            Ok(unit) => {
                if queue.withheld.is_some() || (queue.is_full && !unit.is_key) {
                    return;
                }
                let (was_full, refused) = (queue.is_full, queue.admit(unit).err());
                queue.is_full = refused.is_some();
                if let (false, Some(reason)) = (was_full, refused) {
                    queue.fault(format!("{reason}; pictures are left out until the next key picture"));
                }
            }
            Err(reason) => queue.fault(reason),
        }
        self.waiting.store(queue.entries.len(), Ordering::Relaxed);
    }
}

impl Queue {
    /// Sets the bytes held, if there is room for them.
    fn hold(&mut self, bytes: usize) -> bool {
        let key = self.last_key.as_ref().map_or(0, |key| key.bytes.len());
        let has_room = self.hold.set(bytes + key);
        if has_room {
            self.bytes = bytes;
        }
        has_room
    }

    /// Adds a unit, or returns why there is no room.
    fn admit(&mut self, unit: AccessUnit) -> Result<(), String> {
        let length = unit.bytes.len();
        let bytes = self.bytes + length;
        if self.entries.len() >= MOST_UNITS || (bytes > MOST_QUEUED && !self.entries.is_empty()) {
            return Err("decoding does not keep up".to_owned());
        }
        if bytes > MOST_QUEUED {
            return Err(format!(
                "a picture of {length} bytes, more than the {MOST_QUEUED} that a source may hold"
            ));
        }
        if !self.hold(bytes) {
            return Err(no_room(self.hold.most()));
        }
        self.entries.push_back(Ok(unit));
        Ok(())
    }

    fn keep_key(&mut self, unit: AccessUnit) {
        let key = unit.bytes.len();
        self.last_key = self.hold.set(self.bytes + key).then_some(unit);
        if self.last_key.is_none() {
            self.hold.set(self.bytes);
        }
    }

    fn fault(&mut self, reason: String) {
        if self.faults < MOST_FAULTS {
            self.faults += 1;
            self.entries.push_back(Err(reason));
        } else if let Some(Ok(_)) = self.entries.back() {
            // After another fault it can be left out.
            self.withheld = Some(reason);
            self.is_full = true;
        }
    }
}

/// Why a source can hold no more.
fn no_room(most: usize) -> String {
    format!(
        "the live sources hold all of the {} MiB that they may; decode fewer here, or allow them more (--live-memory MIB)",
        most >> 20
    )
}

#[cfg(test)]
mod tests;
