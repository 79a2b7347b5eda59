//! Faults reported to clients.

use super::envelope::Version;

/// The fault code (SOAP 1.2 part 1 section 5.4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// The client's fault: the same request will fail again.
    Sender,
    /// The desk's or the part's fault: it may be temporary.
    Receiver,
    VersionMismatch,
    MustUnderstand,
}

impl Code {
    pub(super) const fn name(self, version: Version) -> &'static str {
        match (self, version) {
            (Self::Sender, Version::V11) => "Client",
            (Self::Receiver, Version::V11) => "Server",
            (Self::Sender, Version::V12) => "Sender",
            (Self::Receiver, Version::V12) => "Receiver",
            (Self::VersionMismatch, _) => "VersionMismatch",
            (Self::MustUnderstand, _) => "MustUnderstand",
        }
    }
}

/// The reason, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// No envelope, or none with an operation of the desk.
    Malformed,
    /// The message or its reply is too long.
    TooLong,
    NoSuchPart,
    /// The mailbox was never opened, or is closed.
    NoSuchMailbox,
    /// Another part of the desk's node has the name.
    NameTaken,
    /// The part has not read earlier messages, or the desk has no capacity. Nothing was sent.
    Busy,
    /// Sent, but not answered in time.
    Timeout,
    /// The part, or its node, was gone before it replied.
    PartGone,
    /// Anything else; see the message.
    Failed,
}

impl Reason {
    pub(super) const ALL: [Self; 9] = [
        Self::Malformed,
        Self::TooLong,
        Self::NoSuchPart,
        Self::NoSuchMailbox,
        Self::NameTaken,
        Self::Busy,
        Self::Timeout,
        Self::PartGone,
        Self::Failed,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "Malformed",
            Self::TooLong => "TooLong",
            Self::NoSuchPart => "NoSuchPart",
            Self::NoSuchMailbox => "NoSuchMailbox",
            Self::NameTaken => "NameTaken",
            Self::Busy => "Busy",
            Self::Timeout => "Timeout",
            Self::PartGone => "PartGone",
            Self::Failed => "Failed",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) code: Code,
    pub(super) reason: Reason,
    pub(super) message: String,
}

impl Fault {
    pub(super) fn new(code: Code, reason: Reason, message: String) -> Self {
        Self { code, reason, message }
    }

    pub(super) fn malformed(message: impl Into<String>) -> Self {
        Self::new(Code::Sender, Reason::Malformed, message.into())
    }

    pub(super) fn receiver(reason: Reason, message: impl Into<String>) -> Self {
        Self::new(Code::Receiver, reason, message.into())
    }

    /// The HTTP status (SOAP 1.1 section 6.2, SOAP 1.2 part 2 section 7.4.2).
    pub(super) const fn status(&self, version: Version) -> &'static str {
        match (version, self.code) {
            (Version::V12, Code::Sender) => "400 Bad Request",
            _ => "500 Internal Server Error",
        }
    }
}
