//! Groups that nodes open and close at run time, whose calls the switches perform, for nodes whose frames the fabric carries.
//!
//! A switch has a limited number of masks ([`MASKS`](super::MASKS)). A group that needs a switch without a free mask is refused.

use pdbp_core::collective::Call;

use super::Error;
use super::fabric::Fabric;
use super::frames::Frames;
use super::operation::Key;
use super::spanning::Members;

impl Frames {
    /// Opens a group of endpoints, given by ascending id. Returns its number, which may be that of a closed group; `None` if a switch has no
    /// mask left, all numbers are in use, or something of the fabric is down.
    pub(crate) fn open_group(&mut self, ids: Vec<u16>) -> Option<u16> {
        if !self.is_whole() {
            return None;
        }
        let fabric = &mut self.fabric;
        let group = Members::new(&fabric.tree, ids);
        if fabric.has_masks(&group) { fabric.add_group(group.ids) } else { None }
    }

    /// Closes a group, and discards everything held for it. Its packets in flight will be dropped.
    pub(crate) fn close_group(&mut self, number: u16) {
        if self.has_ended(number) {
            return;
        }
        let fabric = &mut self.fabric;
        if let Some(group) = fabric.groups.get_mut(usize::from(number)) {
            let closed = std::mem::replace(group, Members::new(&fabric.tree, Vec::new()));
            let masks = closed.switches().filter(|_| closed.in_switches);
            masks.for_each(|switch| fabric.switches[switch].masks -= 1);
            fabric.closed.push_back(number);
        }
        fabric.switches.iter_mut().for_each(|switch| switch.forget(number));
        fabric.endpoints.iter_mut().for_each(|endpoint| endpoint.forget(number));
    }

    /// Starts a call of a group at a member. The lengths have been checked.
    pub(crate) fn start_call(
        &mut self,
        now: u64,
        id: u16,
        (group, number): (u16, u32),
        call: Call,
        (input, output): (Vec<u8>, Vec<u8>),
    ) {
        self.reach(now);
        if self.has_ended(group) {
            return;
        }
        self.fabric.start_call(id, (group, number), call, input, output);
    }

    /// The result of a call at a member; `None` while it is in progress.
    pub(crate) fn poll_call(&mut self, id: u16, group: u16, number: u32) -> Option<Result<Vec<u8>, Error>> {
        if self.has_ended(group) {
            return Some(Err(Error::Changed));
        }
        self.fabric.poll_op(id, Key::Call(group, number))
    }

    /// The number of the last call of a group that an endpoint has started.
    pub(crate) fn begun(&self, id: u16, group: u16) -> u32 {
        if self.has_ended(group) {
            return u32::MAX;
        }
        self.fabric.endpoints.get(usize::from(id)).map_or(0, |endpoint| endpoint.begun(group))
    }

    /// The amount of work left in a call at a member: while it changes, the call makes progress.
    pub(crate) fn left(&self, id: u16, group: u16, number: u32) -> u64 {
        self.fabric.endpoints.get(usize::from(id)).map_or(0, |endpoint| endpoint.left((group, number)))
    }
}

impl Fabric {
    /// Whether a group is closed, or was never opened.
    pub(super) fn is_closed(&self, group: u16) -> bool {
        self.groups.get(usize::from(group)).is_none_or(|members| members.ids.is_empty())
    }
}
