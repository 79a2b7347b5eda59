//! Defaults and limits that differ over sockets.

use std::time::Duration;

use super::{Codec, ConfigError, Origin, Progress, Settings, TransportKind, position};

impl Settings {
    /// Whether `listen` is for the gateway's trunks; with the transport over sockets it is where other
    /// processes join.
    pub(crate) fn is_gateway_listening(&self) -> bool {
        self.grid.is_some() && self.transport != TransportKind::Net
    }

    /// How long a trunk may be without a connection.
    pub(crate) fn trunk_outage(&self) -> Duration {
        if self.is_set("outage_ms") { self.outage } else { Duration::from_secs(60) }
    }

    /// How a trunk compresses its blocks.
    pub(crate) fn trunk_codec(&self) -> Codec {
        if self.is_set("codec") { self.codec } else { Codec::Auto }
    }

    /// Applies the defaults that differ over sockets.
    pub(crate) fn prepare_for_net(&mut self) {
        self.transport = TransportKind::Net;
        if self.progress == Progress::Thread && !self.is_set("lease_ms") {
            self.lease = Duration::from_secs(2);
        }
        if self.found && !self.is_set("nodes") {
            self.nodes = 16;
        }
    }

    /// Applies the defaults that differ in an open cluster that this process founds.
    ///
    /// # Errors
    /// If all places would be for masters.
    pub(crate) fn prepare_for_open(&mut self) -> Result<(), ConfigError> {
        if self.masters == Self::default().masters && !self.is_set("masters") {
            self.masters = 1;
        }
        if self.masters > 1 && self.masters >= self.nodes {
            let origin = self.origins.get(position("masters")).cloned().unwrap_or(Origin::Default);
            let (value, expected) = (self.masters.to_string(), FEWER_MASTERS);
            return Err(ConfigError::Value { key: "masters", value, origin, expected });
        }
        Ok(())
    }
}

const FEWER_MASTERS: &str =
    "fewer masters than places in the open cluster, the setting `nodes`: raise `nodes`, or lower `masters`";
