//! Stands in for the desk without the feature `desk`. Settings that ask for one are refused before anything starts.

use std::io;
use std::net::TcpListener;

use crate::config::Settings;
use crate::node::Node;

/// Never constructed.
pub(crate) enum Desk {}

impl Desk {
    pub(crate) fn bind(_: &str, _: &Settings) -> io::Result<TcpListener> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn start(_: TcpListener, _: &Node) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
