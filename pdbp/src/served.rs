//! A node's HTTP services for clients outside the cluster: its figures, and the desk.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use pdbp_core::id::NodeId;

use crate::config::Settings;
use crate::desk::Desk;
use crate::error::StartError;
use crate::monitor::Endpoint;
use crate::node::Node;

/// The addresses that nodes of this process serve, bound before anything can be served.
#[derive(Default)]
pub(crate) struct Listeners {
    metrics: Option<TcpListener>,
    desk: Option<TcpListener>,
}

impl Listeners {
    /// Binds the addresses that one of these nodes serves.
    pub(crate) fn bind(settings: &Settings, hosted: &[NodeId]) -> Result<Self, StartError> {
        let is_hosted = |key, node: u16| {
            if node >= settings.nodes {
                let last = settings.nodes - 1;
                return Err(io::Error::other(format!(
                    "`{key}` is {node}, but the cluster only has nodes 0 to {last}"
                )));
            }
            Ok(hosted.iter().any(|one| one.raw() == node))
        };
        let mut listeners = Self::default();
        if let Some(address) = &settings.metrics {
            let bound = is_hosted("metrics_node", settings.metrics_node)
                .and_then(|is_hosted| is_hosted.then(|| Endpoint::bind(address, settings)).transpose());
            let failed = |error| StartError::Metrics { address: address.clone(), error };
            listeners.metrics = bound.map_err(failed)?;
        }
        if let Some(address) = &settings.desk {
            let bound = is_hosted("desk_node", settings.desk_node)
                .and_then(|is_hosted| is_hosted.then(|| Desk::bind(address, settings)).transpose());
            let failed = |error| StartError::Desk { address: address.clone(), error };
            listeners.desk = bound.map_err(failed)?;
        }
        Ok(listeners)
    }

    /// Starts the services of the node.
    pub(crate) fn serve(&mut self, node: &mut Node) -> io::Result<()> {
        let (index, settings) = (node.id().raw(), node.settings());
        let (figures, desk) = (settings.metrics_node == index, settings.desk_node == index);
        if let Some(listener) = self.metrics.take_if(|_| figures) {
            node.endpoint = Some(Arc::new(Endpoint::start(listener, &node.shared)?));
        }
        if let Some(listener) = self.desk.take_if(|_| desk) {
            node.desk = Some(Arc::new(Desk::start(listener, node)?));
        }
        Ok(())
    }
}
