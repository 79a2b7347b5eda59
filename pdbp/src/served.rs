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
            listeners.metrics = bound.map_err(|error| metrics(settings, error))?;
        }
        if let Some(address) = &settings.desk {
            let bound = is_hosted("desk_node", settings.desk_node)
                .and_then(|is_hosted| is_hosted.then(|| Desk::bind(address, settings)).transpose());
            listeners.desk = bound.map_err(|error| desk(settings, error))?;
        }
        Ok(listeners)
    }

    /// Starts the services of the node.
    pub(crate) fn serve(&mut self, node: &mut Node) -> Result<(), StartError> {
        let (index, settings) = (node.id().raw(), node.settings());
        let (has_figures, has_desk) = (settings.metrics_node == index, settings.desk_node == index);
        if let Some(listener) = self.metrics.take_if(|_| has_figures) {
            let endpoint = Endpoint::start(listener, &node.shared);
            node.endpoint = Some(Arc::new(endpoint.map_err(|error| metrics(node.settings(), error))?));
        }
        if let Some(listener) = self.desk.take_if(|_| has_desk) {
            let started = Desk::start(listener, node).map_err(|error| desk(node.settings(), error));
            node.desk = Some(Arc::new(started?));
        }
        Ok(())
    }
}

fn metrics(settings: &Settings, error: io::Error) -> StartError {
    StartError::Metrics { address: settings.metrics.clone().unwrap_or_default(), error }
}

fn desk(settings: &Settings, error: io::Error) -> StartError {
    StartError::Desk { address: settings.desk.clone().unwrap_or_default(), error }
}

#[cfg(all(test, feature = "desk"))]
mod tests {
    use super::*;
    use crate::Cluster;

    /// It was called a progress thread that could not be started, with the advice to set `progress` = "inline", with which no desk works.
    #[test]
    fn a_desk_that_cannot_be_started_is_called_that() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef".repeat(2)).unwrap();
        let builder = Cluster::builder().nodes(1).desk("127.0.0.1:0".to_owned());
        let cluster = builder.client_token_file(file.path().to_owned()).start().unwrap();
        drop(file);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut listeners = Listeners { desk: Some(listener), ..Listeners::default() };
        let error = listeners.serve(&mut cluster.node(0).unwrap()).unwrap_err().to_string();
        assert!(error.contains("`desk` = \"127.0.0.1:0\": `client_token_file`"), "{error}");
    }
}
