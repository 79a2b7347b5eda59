//! Stands in for `tls` when the crate is built without that feature.

use std::io::{self, IoSlice, Read, Write};

use crate::error::TlsError;
use crate::options::Tls;

/// Has no values.
pub(crate) enum Sessions {}

/// Has no values.
pub(crate) enum Session {}

impl Sessions {
    pub(crate) fn new(tls: &Tls) -> Result<Option<Self>, TlsError> {
        if *tls == Tls::Off { Ok(None) } else { Err(TlsError::NotBuilt) }
    }

    pub(crate) fn dial(&self) -> io::Result<Session> {
        match *self {}
    }

    pub(crate) fn take(&self) -> io::Result<Session> {
        match *self {}
    }
}

impl Session {
    pub(crate) fn exported(&self) -> io::Result<[u8; 32]> {
        match *self {}
    }

    pub(crate) fn read(&mut self, _: &mut (impl Read + Write), _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn write(&mut self, _: &mut (impl Read + Write), _: &[IoSlice<'_>]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn flush(&mut self, _: &mut impl Write) -> io::Result<()> {
        match *self {}
    }
}
