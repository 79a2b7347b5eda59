//! Collective calls that the switches of a [fabric](super::Ground::Fabric) perform for groups of nodes.

use std::fmt;
use std::sync::{Arc, Mutex};

use pdbp_core::collective::{Call, Kind};

use super::port::lock;
use super::wire::Net;
use super::{Network, ground::OnFabric};
use crate::rapidio::{DATA, Error};

/// Identifies a group in its fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupKey {
    group: u16,
    /// Distinguishes the groups that have had this number.
    serial: u32,
}

impl GroupKey {
    /// The key as a number, which is never 0.
    pub fn to_bits(self) -> u64 {
        (u64::from(self.serial) << 16 | u64::from(self.group)) + 1
    }

    /// The key with this number.
    pub fn from_bits(bits: u64) -> Option<Self> {
        let bits = bits.checked_sub(1)?;
        Some(Self { group: bits as u16, serial: u32::try_from(bits >> 16).ok()? })
    }
}

/// Why a call in switches failed: members of the group have made different calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallFault {
    /// The number of the call.
    pub number: u32,
    /// Two ranks and their calls; `None` for any other error.
    pub between: Option<[(usize, Call); 2]>,
}

/// A member's end of a group whose calls are performed by switches. The group is forgotten once all its ends are dropped.
///
/// The fabric numbers members along its tree; here all ranks are indices into the list from which the group was made.
pub struct SwitchEnd {
    net: Arc<Mutex<Net>>,
    group: u16,
    rank: usize,
    /// The node of each rank.
    nodes: Vec<u16>,
}

impl fmt::Debug for SwitchEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SwitchEnd({} of group {})", self.rank, self.group)
    }
}

impl Network {
    /// Returns the index of the switch that a node is connected to. `None` on wires, or if there is no such node.
    pub fn board(&self, node: u16) -> Option<usize> {
        let net = lock(&self.0);
        let frames = &net.ground.as_ref()?.frames;
        (usize::from(node) < net.nodes.len()).then(|| frames.board(node))
    }

    /// Creates a group of these nodes, each of which must occur once. Returns its key, and the end of the first node. `None` on
    /// wires, for nodes that do not exist or occur twice, and if a switch has no mask for another group.
    pub fn open_group(&self, nodes: &[u16]) -> Option<(GroupKey, SwitchEnd)> {
        let key = {
            let mut net = lock(&self.0);
            let there = net.nodes.len();
            let mut ids = nodes.to_vec();
            ids.sort_unstable();
            let is_twice = ids.windows(2).any(|pair| pair[0] == pair[1]);
            if is_twice || ids.last().is_none_or(|last| usize::from(*last) >= there) {
                return None;
            }
            let ground = net.ground.as_mut()?;
            let group = ground.frames.open_group(ids)?;
            ground.groups = ground.groups.wrapping_add(1);
            let key = GroupKey { group, serial: ground.groups };
            ground.ends.insert(group, (key, 0));
            key
        };
        Some((key, self.join_group(key, nodes, 0)?))
    }

    /// Returns the end of another member of a group made from the same list. `None` once all earlier ends have been dropped.
    pub fn join_group(&self, key: GroupKey, nodes: &[u16], rank: usize) -> Option<SwitchEnd> {
        let mut net = lock(&self.0);
        let (of, ends) = net.ground.as_mut()?.ends.get_mut(&key.group)?;
        if *of != key {
            return None;
        }
        *ends += 1;
        Some(SwitchEnd { net: Arc::clone(&self.0), group: key.group, rank, nodes: nodes.to_vec() })
    }
}

impl SwitchEnd {
    /// Whether switches perform a call: those that move or combine data, except reductions with a function of the program and
    /// blocks too long for two to fit in a packet.
    pub fn does(call: &Call) -> bool {
        call.fits_switches(DATA)
    }

    /// Begins a call, whose number must be greater than that of the previous one, with its input and the contents of its output.
    ///
    /// # Errors
    /// [`Error::NotInSwitches`] if switches do not perform such calls, and [`Error::Refused`] for ranks and lengths that do not
    /// fit. Nothing was begun.
    pub fn start(&self, number: u32, call: &Call, input: &[u8], output: &[u8]) -> Result<(), Error> {
        if !Self::does(call) {
            return Err(Error::NotInSwitches { kind: call.kind });
        }
        call.check(self.nodes.len(), self.rank, input.len(), output.len())?;
        let own = |root: usize| self.place_of(root);
        let call = if has_root(call) { Call { root: own(call.root), ..*call } } else { *call };
        let is_root = call.root == own(self.rank);
        let input = match call.kind {
            // The blocks in tree order.
            Kind::Scatter if is_root => {
                self.along_tree().flat_map(|rank| block(input, rank, &call)).collect()
            }
            _ => input.to_vec(),
        };
        let mut net = lock(&self.net);
        let now = net.now;
        if let Some(ground) = net.ground.as_mut() {
            let data = (input, output.to_vec());
            ground.frames.start_call(now, self.node(), (self.group, number), call, data);
        }
        Ok(())
    }

    /// Returns the outcome of a call with its output; `None` while it is in progress.
    pub fn poll(&self, number: u32) -> Option<Result<Vec<u8>, CallFault>> {
        let mut net = lock(&self.net);
        let done = net.ground.as_mut()?.frames.poll_call(self.node(), self.group, number)?;
        Some(done.map_err(|error| self.fault(number, error)))
    }

    /// Puts the output of a call in the order of the list.
    pub fn put(&self, call: &Call, output: &[u8], into: &mut [u8]) {
        if call.kind == Kind::Gather && call.root == self.rank && call.bytes > 0 {
            for (rank, from) in self.along_tree().zip(output.chunks(call.bytes)) {
                if let Some(to) = into.get_mut(rank * call.bytes..(rank + 1) * call.bytes) {
                    to.copy_from_slice(from);
                }
            }
        } else if output.len() == into.len() {
            into.copy_from_slice(output);
        }
    }

    /// Whether a member has begun this call or a later one.
    pub fn has_begun(&self, rank: usize, number: u32) -> bool {
        let node = self.nodes.get(rank).copied().unwrap_or_default();
        self.frames(|ground| ground.frames.begun(node, self.group)).unwrap_or(0) >= number
    }

    /// Returns the first other member that has not begun a call.
    pub fn waits_for(&self, number: u32) -> Option<usize> {
        (0..self.nodes.len()).find(|rank| *rank != self.rank && !self.has_begun(*rank, number))
    }

    /// Returns a number that changes as long as a call makes progress here.
    pub fn state(&self, number: u32) -> u64 {
        self.frames(|ground| ground.frames.left(self.node(), self.group, number)).unwrap_or(0)
    }

    fn frames<T>(&self, of: impl FnOnce(&OnFabric) -> T) -> Option<T> {
        lock(&self.net).ground.as_ref().map(of)
    }

    fn node(&self) -> u16 {
        self.nodes.get(self.rank).copied().unwrap_or_default()
    }

    /// Returns the position of a rank among the members in tree order.
    fn place_of(&self, rank: usize) -> usize {
        let node = self.nodes.get(rank).copied().unwrap_or_default();
        self.nodes.iter().filter(|other| **other < node).count()
    }

    /// The ranks in tree order.
    fn along_tree(&self) -> impl Iterator<Item = usize> {
        let mut ranks: Vec<usize> = (0..self.nodes.len()).collect();
        ranks.sort_unstable_by_key(|rank| self.nodes.get(*rank));
        ranks.into_iter()
    }

    fn fault(&self, number: u32, error: Error) -> CallFault {
        let Error::Mismatch(mismatch) = error else { return CallFault { number, between: None } };
        let ranks: Vec<usize> = self.along_tree().collect();
        let rank = |place: usize| ranks.get(place).copied().unwrap_or(place);
        let of_list = |(place, call): (usize, Call)| {
            let root = if has_root(&call) { rank(call.root) } else { call.root };
            (rank(place), Call { root, ..call })
        };
        CallFault { number: mismatch.number, between: Some([mismatch.one, mismatch.other].map(of_list)) }
    }
}

impl Drop for SwitchEnd {
    fn drop(&mut self) {
        let mut net = lock(&self.net);
        let Some(ground) = net.ground.as_mut() else { return };
        if let Some((_, ends)) = ground.ends.get_mut(&self.group) {
            *ends -= 1;
            if *ends == 0 {
                ground.ends.remove(&self.group);
                ground.frames.close_group(self.group);
            }
        }
    }
}

fn has_root(call: &Call) -> bool {
    matches!(call.kind, Kind::Broadcast | Kind::Scatter | Kind::Gather | Kind::Reduce)
}

fn block(input: &[u8], rank: usize, call: &Call) -> Vec<u8> {
    input.get(rank * call.bytes..(rank + 1) * call.bytes).unwrap_or(&[]).to_vec()
}
