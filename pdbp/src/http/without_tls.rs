//! Stands in for `tls` without that feature, or without `desk`. Settings that ask for TLS are refused before anything starts.

use std::io::{self, Read, Write};

/// Never constructed.
pub(crate) enum Certificate {}

/// Never constructed.
pub(super) enum Session {}

impl Certificate {
    #[cfg(feature = "desk")]
    pub(crate) fn read(_: &std::path::Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn begin(&self) -> io::Result<Session> {
        match *self {}
    }
}

impl Session {
    pub(super) fn read(&mut self, _: &mut (impl Read + Write), _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub(super) fn write(&mut self, _: &mut (impl Read + Write), _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn flush(&mut self, _: &mut impl Write) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn close(&mut self, _: &mut impl Write) {
        match *self {}
    }
}
