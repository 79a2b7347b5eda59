//! Stands in for the monitor without the feature `metrics`. Settings that ask for one are refused before anything starts.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use crate::config::Settings;
use crate::node::{NodeEngine, Pipe, Shared};

/// Name of the part that answers on nodes of programs with the feature.
pub(crate) const NAME: &str = "pdbp.monitor";

/// Never constructed.
pub(crate) enum Monitor {}

impl Monitor {
    pub(crate) fn start(_: &mut NodeEngine) -> Result<Self, ()> {
        Err(())
    }

    pub(crate) fn leave(&self, _: &[Pipe], _: &mut NodeEngine) {
        match *self {}
    }

    pub(crate) fn advance(&self, _: &Shared, _: &mut NodeEngine) -> u32 {
        match *self {}
    }
}

/// Never constructed.
pub(crate) enum Endpoint {}

impl Endpoint {
    pub(crate) fn bind(_: &str, _: &Settings) -> io::Result<TcpListener> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn start(_: TcpListener, _: &Arc<Shared>) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
