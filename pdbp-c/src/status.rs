//! Statuses, what errors of the runtime become, and the last failure of each thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;

use pdbp::{
    ConfigError, LookupError, NoSuchNode, NodeId, PipeError, RecvError, RegisterError, SendError, StartError,
    WaitError,
};

use crate::call::{MaybeOut, exports};

/// How a call has ended: 0 done, above 0 no error, below 0 an error. Codes are never used again for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Status(pub i32);

macro_rules! statuses {
    ($($(#[$meta:meta])* $name:ident = $code:literal;)*) => {
        impl Status {
            $($(#[$meta])* pub const $name: Self = Self($code);)*

            /// The name in the header.
            fn name(self) -> Option<&'static CStr> {
                // Made of literals that end with a zero byte.
                let name = match self.0 {
                    $($code => concat!("PDBP_", stringify!($name), "\0"),)*
                    _ => return None,
                };
                CStr::from_bytes_with_nul(name.as_bytes()).ok()
            }
        }

        #[cfg(test)]
        pub(crate) const STATUSES: &[(&str, i32)] = &[$((concat!("PDBP_", stringify!($name)), $code)),*];
    };
}

statuses! {
    /// Done.
    DONE = 0;
    /// There is nothing, or no room, and the call may not wait.
    WOULD_BLOCK = 1;
    /// It waited as long as it may.
    TIMEOUT = 2;
    /// Somebody has ended the wait.
    INTERRUPTED = 3;
    /// The end of a stream, or no more events.
    END = 4;
    /// A null pointer.
    E_NULL = -1;
    /// A value that cannot be.
    E_ARGUMENT = -2;
    /// A pointer to something else.
    E_HANDLE = -3;
    /// The part is another thread's.
    E_THREAD = -4;
    /// The handle is of the process that this one is a fork of.
    E_FORKED = -5;
    /// A bug of the library.
    E_PANIC = -6;
    /// The program was compiled with the header of another version.
    E_VERSION = -7;
    /// What was not built in.
    E_UNSUPPORTED = -8;
    /// A setting that cannot be.
    E_SETTINGS = -9;
    /// The cluster did not start.
    E_START = -10;
    /// There is no such node, or another process has it.
    E_NO_NODE = -11;
    /// There is no such part.
    E_NO_PART = -12;
    /// Several nodes have a part of that name.
    E_AMBIGUOUS = -13;
    /// The name cannot be used or is taken, or the node has its parts.
    E_REFUSED = -14;
    /// A table is full.
    E_FULL = -15;
    /// A node has failed.
    E_PEER_FAILED = -16;
    /// The message is too long, or the set of destinations.
    E_TOO_LONG = -17;
    /// The message takes several blocks, for which a call that may not wait cannot know the room.
    E_NEEDS_WAITING = -18;
    /// The part has a loan.
    E_LOANED = -19;
    /// The part has no loan.
    E_NO_LOAN = -20;
    /// The stream is finished, broken, or goes no further.
    E_STREAM = -21;
    /// Nobody is left who could send anything.
    E_NOBODY_LEFT = -22;
    /// Something that this version has no code for: `pdbp_error` says what.
    E_OTHER = -23;
    /// There is no such device, or it has failed.
    E_DEVICE = -24;
    /// The group has ended: a member has made another call, or given one up.
    E_GROUP = -25;
}

/// Why a call has not done what it is for.
pub struct Failure(Status, Option<Box<Told>>);

/// What `pdbp_error` and `pdbp_error_nodes` say.
struct Told {
    text: String,
    nodes: Vec<NodeId>,
}

impl Failure {
    /// Nothing to tell: this is not worth a text.
    pub(crate) const WOULD_BLOCK: Self = Self(Status::WOULD_BLOCK, None);
    /// As [`WOULD_BLOCK`](Self::WOULD_BLOCK).
    pub(crate) const END: Self = Self(Status::END, None);

    #[cold]
    pub(crate) fn new(status: Status, text: String) -> Self {
        Self(status, Some(Box::new(Told { text, nodes: Vec::new() })))
    }

    #[cold]
    fn of(status: Status, error: &dyn Display, nodes: Vec<NodeId>) -> Self {
        Self(status, Some(Box::new(Told { text: error.to_string(), nodes })))
    }

    pub(crate) fn status(&self) -> Status {
        self.0
    }

    /// Keeps what there is to tell for `pdbp_error`.
    #[inline]
    pub(crate) fn record(self) -> Status {
        if let Some(told) = self.1 {
            keep(*told);
        }
        self.0
    }
}

/// The last failure of a thread.
#[derive(Default)]
struct Last {
    text: CString,
    nodes: Vec<NodeId>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// What the errors of the runtime recommend by its names in Rust, and what there is in C instead.
const NAMES: &[(&str, &str)] = &[
    ("send or drop it first", "call pdbp_commit or pdbp_abandon first"),
    ("`send_or`, `write_or`", "pdbp_wait, pdbp_write_or"),
    ("`streams`", "pdbp_any_segment"),
    ("`try_returned`", "pdbp_returned"),
    ("use `send`", "use pdbp_send"),
    ("use `send_recv`", "use pdbp_group_send_recv"),
    (" (`Event::ClusterUp`)", ""),
    (" (`Cuda::of` opens that of a context)", ""),
];

#[cold]
fn keep(told: Told) {
    let names = NAMES.iter();
    let text = names
        .fold(told.text, |text, (rust, c)| if text.contains(rust) { text.replace(rust, c) } else { text });
    let mut text = text.into_bytes();
    text.retain(|byte| *byte != 0);
    // Without zero bytes it is such a string. A thread that ends keeps nothing.
    let text = CString::new(text).unwrap_or_default();
    let _ = LAST.try_with(|last| *last.borrow_mut() = Last { text, nodes: told.nodes });
}

macro_rules! failures {
    ($($error:ty: $of:expr;)*) => {$(
        impl From<$error> for Failure {
            #[cold]
            fn from(error: $error) -> Self {
                let (status, nodes): (Status, Vec<NodeId>) = $of(&error);
                Self::of(status, &error, nodes)
            }
        }
    )*};
}

failures! {
    NoSuchNode: |_| (Status::E_NO_NODE, vec![]);
    ConfigError: |error: &ConfigError| match error {
        ConfigError::NotBuilt { .. } => (Status::E_UNSUPPORTED, vec![]),
        _ => (Status::E_SETTINGS, vec![]),
    };
    StartError: |error: &StartError| match error {
        StartError::Config(ConfigError::NotBuilt { .. }) | StartError::NoMpi { .. } => (Status::E_UNSUPPORTED, vec![]),
        StartError::Config(_) | StartError::NoAddress => (Status::E_SETTINGS, vec![]),
        StartError::SettingsDiffer(found) => (Status::E_SETTINGS, vec![found.peer]),
        StartError::Timeout(timeout) => (Status::TIMEOUT, timeout.peers.clone()),
        StartError::Interrupted => (Status::INTERRUPTED, vec![]),
        _ => (Status::E_START, vec![]),
    };
    LookupError: |error: &LookupError| match error {
        LookupError::UnknownNode { .. } => (Status::E_NO_NODE, vec![]),
        LookupError::UnknownPart { .. } => (Status::E_NO_PART, vec![]),
        LookupError::BadAddress { .. } => (Status::E_ARGUMENT, vec![]),
        LookupError::Ambiguous { .. } => (Status::E_AMBIGUOUS, vec![]),
        LookupError::Interrupted => (Status::INTERRUPTED, vec![]),
        _ => (Status::E_OTHER, vec![]),
    };
    WaitError: |error: &WaitError| match error {
        WaitError::Timeout(timeout) => (Status::TIMEOUT, timeout.peers.clone()),
        WaitError::PeerFailed(node) => (Status::E_PEER_FAILED, vec![*node]),
        WaitError::Interrupted => (Status::INTERRUPTED, vec![]),
        WaitError::NobodyPolls => (Status::E_SETTINGS, vec![]),
        _ => (Status::E_OTHER, vec![]),
    };
    RegisterError: |error: &RegisterError| match error {
        RegisterError::Refused(_) => (Status::E_REFUSED, vec![]),
        RegisterError::TableFull { .. } | RegisterError::Pipe(_) => (Status::E_FULL, vec![]),
        RegisterError::Timeout(timeout) => (Status::TIMEOUT, timeout.peers.clone()),
        RegisterError::Interrupted => (Status::INTERRUPTED, vec![]),
        _ => (Status::E_OTHER, vec![]),
    };
    PipeError: |error: &PipeError| match error {
        PipeError::NoneIdle(..) => (Status::E_FULL, vec![]),
        _ => (Status::E_OTHER, vec![]),
    };
    RecvError: of_recv;
}

fn of_recv(error: &RecvError) -> (Status, Vec<NodeId>) {
    match error {
        RecvError::Timeout(timeout) => (Status::TIMEOUT, timeout.peers.clone()),
        RecvError::Interrupted => (Status::INTERRUPTED, vec![]),
        RecvError::NobodyLeft => (Status::E_NOBODY_LEFT, vec![]),
        RecvError::NobodyPolls => (Status::E_SETTINGS, vec![]),
        RecvError::PeerFailed(node) => (Status::E_PEER_FAILED, vec![*node]),
        RecvError::StreamBroken { source, .. } => (Status::E_STREAM, vec![source.node()]),
        _ => (Status::E_OTHER, vec![]),
    }
}

fn of_send(error: &SendError) -> (Status, Vec<NodeId>) {
    match error {
        SendError::WouldBlock => (Status::WOULD_BLOCK, vec![]),
        SendError::Timeout(timeout) => (Status::TIMEOUT, timeout.peers.clone()),
        SendError::Interrupted => (Status::INTERRUPTED, vec![]),
        SendError::PeerFailed(node) => (Status::E_PEER_FAILED, vec![*node]),
        SendError::RelayFailed { relay, dest } => (Status::E_PEER_FAILED, vec![*relay, *dest]),
        SendError::StreamStopped { relay, dest, .. } => (Status::E_STREAM, vec![*relay, *dest]),
        SendError::StreamFinished(_) | SendError::ClusterGone { .. } => (Status::E_STREAM, vec![]),
        SendError::NoSuchPart(_) => (Status::E_NO_PART, vec![]),
        SendError::NoSuchNode(_) => (Status::E_NO_NODE, vec![]),
        SendError::TooLong { .. }
        | SendError::LongerThanBlock { .. }
        | SendError::LoanTooLong { .. }
        | SendError::TooManyDestinations { .. } => (Status::E_TOO_LONG, vec![]),
        SendError::NeedsWaiting { .. } => (Status::E_NEEDS_WAITING, vec![]),
        SendError::Loaned(node) => (Status::E_LOANED, vec![*node]),
        SendError::NoDestination => (Status::E_ARGUMENT, vec![]),
        _ => (Status::E_OTHER, vec![]),
    }
}

impl From<SendError> for Failure {
    #[cold]
    fn from(error: SendError) -> Self {
        match of_send(&error) {
            // Often, and of no interest.
            (Status::WOULD_BLOCK, _) => Self::WOULD_BLOCK,
            (status, nodes) => Self::of(status, &error, nodes),
        }
    }
}

exports! {
    /// The name of a status.
    fn pdbp_status_name(status: Status) -> *const c_char {
        Ok(status.name().unwrap_or(c"a status of another version").as_ptr())
    }

    /// The text of this thread's last failure, valid until the next one.
    fn pdbp_error() -> *const c_char {
        // A thread that ends has none.
        Ok(LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr()))
    }

    /// The nodes of this thread's last failure.
    fn pdbp_error_nodes(to: MaybeOut<u16>, room: usize) -> usize {
        let copy = |last: &RefCell<Last>| {
            let last = last.borrow();
            // SAFETY: null, or room for `room` numbers (the header's promise).
            let places = unsafe { crate::call::room(to.pointer(), if to.pointer().is_null() { 0 } else { room }) }?;
            for (place, node) in places.iter_mut().zip(&last.nodes) {
                place.write(node.raw());
            }
            Ok(last.nodes.len())
        };
        LAST.try_with(copy).unwrap_or(Ok(0))
    }
}
