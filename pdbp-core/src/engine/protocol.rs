//! Settings on which all nodes must agree. Two nodes that disagree report the setting by name, and have no link.
//!
//! The first message on every link, in every session and every [`round`](super::round) of it, carries the sender's settings.
//! Until a node has received them and found them equal to its own, it accepts nothing else from the peer and gives it no credit,
//! so no data is in flight that the two would interpret differently. If the settings differ, both nodes report it
//! ([`Event::SettingsDiffer`]), and the link counts as failed until there is a new one. Nothing is sent on a link before there is
//! something to send, so nodes that never communicate do not compare settings; but all nodes communicate with the primary master.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Config, Engine, Event, PrivatePipes};
use crate::agreement::MESSAGE;
use crate::cdu::{BLOCK_HEADER, BlockClass, BlockHeader, CDU_HEADER, Cdus};
use crate::id::NodeId;
use crate::policy::SpacePolicy;
use crate::routing::Routing;
use crate::transport::Transport;
use crate::umb::{ArrivedBlock, BlockMemory};

/// A setting that must be the same on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setting {
    /// [`Config::nodes`].
    Nodes,
    /// [`Config::body`], in bytes.
    Body,
    /// [`Config::stream_pipes`].
    StreamPipes,
    /// [`Config::masters`].
    Masters,
    /// [`Config::voters`].
    Voters,
    /// [`Config::lease`], in nanoseconds.
    Lease,
    /// [`Config::patience`], in nanoseconds.
    Patience,
    /// [`Config::routing`]: 0 is direct, 1 is a grid.
    Routing,
    /// The length of `parts` in [`Storage`](super::Storage): rows of PTA.
    Parts,
    /// The length of `agreement.log` in [`Storage`](super::Storage).
    Log,
}

impl Setting {
    /// All settings, in wire order.
    pub const ALL: [Self; 10] = [
        Self::Nodes,
        Self::Body,
        Self::StreamPipes,
        Self::Masters,
        Self::Voters,
        Self::Lease,
        Self::Patience,
        Self::Routing,
        Self::Parts,
        Self::Log,
    ];
}

impl core::fmt::Display for Setting {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Nodes => "nodes",
            Self::Body => "body",
            Self::StreamPipes => "stream_pipes",
            Self::Masters => "masters",
            Self::Voters => "voters",
            Self::Lease => "lease",
            Self::Patience => "patience",
            Self::Routing => "routing",
            Self::Parts => "parts",
            Self::Log => "agreement.log",
        })
    }
}

/// A setting whose values differ between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// The other node.
    pub peer: NodeId,
    /// The setting.
    pub setting: Setting,
    /// Its value at this node.
    pub own: u64,
    /// Its value at the other.
    pub theirs: u64,
}

impl core::fmt::Display for Disagreement {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { peer, setting, own, theirs } = self;
        write!(
            f,
            "`{setting}` is {own} here but {theirs} at {peer}; give all nodes the same value and restart them"
        )
    }
}

const COUNT: usize = Setting::ALL.len();

/// The values of all settings in wire format: 8 bytes each, in the order of [`Setting::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Protocol([U64; COUNT]);

// A block has room for the settings and for a message of the agreement.
const _: () = assert!(2 * CDU_HEADER + size_of::<Protocol>() + MESSAGE + CDU_HEADER <= Config::MIN_BODY);

impl Protocol {
    pub(super) fn of(config: &Config, parts: usize, log: usize) -> Self {
        Self(Setting::ALL.map(|setting| {
            let value = match setting {
                Setting::Nodes => config.nodes.into(),
                Setting::Body => config.body as u64,
                Setting::StreamPipes => config.stream_pipes.into(),
                Setting::Masters => config.masters.into(),
                Setting::Voters => config.voters.into(),
                Setting::Lease => config.lease,
                Setting::Patience => config.patience,
                Setting::Routing => u64::from(config.routing == Routing::Grid),
                Setting::Parts => parts as u64,
                Setting::Log => log as u64,
            };
            U64::new(value)
        }))
    }

    fn differences(self, theirs: Self, peer: NodeId) -> impl Iterator<Item = Disagreement> {
        let values = self.0.into_iter().zip(theirs.0);
        let settings = Setting::ALL.into_iter().zip(values);
        settings.filter(|(_, (own, theirs))| own != theirs).map(move |(setting, (own, theirs))| {
            Disagreement { peer, setting, own: own.get(), theirs: theirs.get() }
        })
    }
}

impl<T: Transport, M: BlockMemory, P: SpacePolicy> Engine<'_, T, M, P> {
    /// Returns the first setting in which this node was found to differ from another, if any. The host decides what to do about
    /// it; for this engine, links to nodes with other settings have failed.
    pub fn disagreement(&self) -> Option<Disagreement> {
        self.disagreement
    }

    /// Reads the settings that a peer has announced.
    pub(super) fn read_protocol(&mut self, peer: NodeId, bytes: &[u8], pipes: &mut impl PrivatePipes) {
        let Ok(theirs) = Protocol::read_from_bytes(bytes) else {
            // Another version, with a different number of settings.
            return self.report_malformed(peer, crate::cdu::Malformed::Field, pipes);
        };
        let link = self.links.to_mut(peer);
        if theirs == self.protocol {
            if link.is_some_and(|link| link.state.agree()) {
                self.control_dirty = true;
            }
            return;
        }
        if link.is_some_and(|link| link.state.is_incompatible()) {
            return;
        }
        for disagreement in self.protocol.differences(theirs, peer) {
            self.disagreement.get_or_insert(disagreement);
            pipes.event(Event::SettingsDiffer(disagreement));
        }
        if let Some(id) = self.links.to(peer).filter(|link| !link.state.is_down()).map(|link| link.id) {
            self.on_settings_mismatch(id, pipes);
        }
    }

    /// Examines a block from a node without a link to this one: it may have been configured with a different routing.
    pub(super) fn inspect_unlinked(
        &mut self,
        peer: NodeId,
        block: &ArrivedBlock,
        pipes: &mut impl PrivatePipes,
    ) {
        let bytes = block.bytes();
        let is_control = BlockHeader::read(bytes).is_ok_and(|h| h.class() == BlockClass::Control);
        let first = Cdus::new(bytes.get(BLOCK_HEADER..).unwrap_or(&[])).next();
        if let Some(Ok(train)) = first.filter(|_| is_control)
            && train.command() == crate::mesp::SETTINGS
        {
            train.messages().take(1).for_each(|message| self.read_protocol(peer, message, pipes));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn node(index: u16) -> NodeId {
        NodeId::new(index).expect("a small number names a node")
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Bytes of the right length are settings, whatever they contain, and each difference is named.
        #[test]
        fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..2 * size_of::<Protocol>()), own in any::<[u64; COUNT]>()) {
            let own = Protocol(own.map(U64::new));
            let read = Protocol::read_from_bytes(&bytes);
            prop_assert_eq!(read.is_ok(), bytes.len() == size_of::<Protocol>());
            let Ok(theirs) = read else { return Ok(()) };
            prop_assert_eq!(theirs.as_bytes(), &bytes[..]);
            let named = own.differences(theirs, node(3)).count();
            prop_assert_eq!(named == 0, own == theirs);
        }
    }

    #[test]
    fn a_disagreement_says_the_setting_both_values_and_what_to_do() {
        let disagreement = Disagreement { peer: node(2), setting: Setting::StreamPipes, own: 8, theirs: 4 };
        assert_eq!(
            std::format!("{disagreement}"),
            "`stream_pipes` is 8 here but 4 at node2; give all nodes the same value and restart them"
        );
    }
}
