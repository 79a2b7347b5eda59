//! Without the feature `desk` no node has one. Settings that ask for one are refused before anything is started.

use std::io;
use std::net::TcpListener;

use crate::config::Settings;
use crate::node::Node;

/// There is none.
pub(crate) enum Desk {}

impl Desk {
    pub(crate) fn bind(_: &str, _: &Settings) -> io::Result<TcpListener> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn start(_: TcpListener, _: Node) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
