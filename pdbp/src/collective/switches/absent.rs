//! Without the feature `rapidio`: no node is on a fabric.

use std::num::NonZeroU64;
use std::time::Duration;

use pdbp_core::collective::{Call, Fault};
use pdbp_core::id::NodeId;

use crate::error::RecvError;
use crate::node::Node;
use crate::part::{Part, Shared};

pub(in crate::collective) enum Switches {}

impl Switches {
    pub(in crate::collective) fn are_offered(_node: &Node, _nodes: &[NodeId]) -> bool {
        false
    }

    pub(in crate::collective) fn board(_node: &Node, _of: NodeId) -> Option<usize> {
        None
    }

    pub(in crate::collective) fn make(_node: &Node, _nodes: &[NodeId]) -> Option<(NonZeroU64, Self)> {
        None
    }

    pub(in crate::collective) fn find(
        _node: &Node,
        _nodes: &[NodeId],
        _rank: usize,
        _key: NonZeroU64,
    ) -> Option<Self> {
        None
    }

    pub(in crate::collective) fn start(&self, _number: u32, _call: &Call, _input: &[u8], _output: &[u8]) {
        match *self {}
    }

    pub(in crate::collective) fn poll(
        &self,
        _number: u32,
        _call: &Call,
        _into: &mut [u8],
    ) -> Option<Result<(), Fault>> {
        match *self {}
    }

    pub(in crate::collective) fn advance(&self) -> bool {
        match *self {}
    }

    pub(in crate::collective) fn missing(&self, _number: u32) -> impl Iterator<Item = usize> + use<> {
        std::iter::empty()
    }

    pub(in crate::collective) fn to_show(&self, _number: u32) -> Vec<usize> {
        match *self {}
    }

    pub(in crate::collective) fn state(&self, _number: u32) -> u64 {
        match *self {}
    }

    pub(in crate::collective) fn attach(&mut self, _part: &Part<Shared>) {
        match *self {}
    }

    pub(in crate::collective) fn will_sleep(&self) -> bool {
        match *self {}
    }

    pub(in crate::collective) fn sleep(
        &self,
        _part: &Part<Shared>,
        _time: Duration,
    ) -> Result<(), RecvError> {
        match *self {}
    }

    pub(in crate::collective) fn is_behind(&self, _number: u32) -> bool {
        match *self {}
    }

    pub(in crate::collective) fn does(_call: &Call) -> bool {
        false
    }
}
