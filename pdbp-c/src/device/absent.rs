//! There are no devices without the feature `cuda`.

use std::ffi::c_void;

use pdbp::{Node, Target};

use crate::call::Wait;
use crate::part::PartHandle;
use crate::status::{Failure, Status};

/// None.
pub(crate) enum Device {}

/// None.
pub(crate) enum Operation {}

/// None.
#[derive(Default)]
pub(crate) struct Copiers;

impl Device {
    pub(crate) fn open(_: u32, _: u32) -> Result<Self, Failure> {
        let text =
            "this libpdbp was built without CUDA; build it with the feature `cuda`, which is on by default";
        Err(Failure::new(Status::E_UNSUPPORTED, text.to_owned()))
    }
}

impl Operation {
    pub(crate) unsafe fn send(
        _: &PartHandle,
        device: &Device,
        _: (u64, usize),
        _: *mut c_void,
        _: Target,
    ) -> Result<Self, Failure> {
        match *device {}
    }

    pub(crate) unsafe fn recv(
        _: &PartHandle,
        device: &Device,
        _: (u64, usize),
        _: *mut c_void,
    ) -> Result<Self, Failure> {
        match *device {}
    }

    pub(crate) fn wait(&mut self, _: Wait, _: &Node) -> Result<(), Failure> {
        match *self {}
    }

    pub(crate) fn bytes(&self) -> usize {
        match *self {}
    }

    pub(crate) fn source(&self) -> Option<Target> {
        match *self {}
    }

    pub(crate) fn end(&mut self, _: Wait, _: &Node) -> Result<(), Failure> {
        match *self {}
    }
}
