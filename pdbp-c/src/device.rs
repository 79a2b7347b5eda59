//! Memory of CUDA devices: messages that are sent from it and received into it (`pdbp_cuda.h`).
//!
//! The program lends its memory to an operation, and has it again when that has ended. An operation belongs to its part, and to the thread
//! that owns it. What this library was built without (the feature `cuda`) answers `PDBP_E_UNSUPPORTED`.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;

use crate::call::{MaybeOut, Out, Wait, exports, named};
use crate::freed::{boxed, unboxed};
use crate::handle::{Free, Handle, Header, In};
use crate::node::TargetBits;
use crate::part::{PartHandle, share_of};
use crate::status::Status;

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod cuda;

#[cfg(not(feature = "cuda"))]
use absent as cuda;
pub(crate) use cuda::Copiers;
use cuda::{Device, Operation};

/// `pdbp_cuda`.
#[repr(C)]
pub struct CudaHandle {
    header: Header,
    device: Device,
}

// SAFETY: see the struct.
unsafe impl Handle for CudaHandle {
    const TAG: u32 = 0x4355_4441;
    #[cfg(test)]
    const POINTER: &'static str = "pdbp_cuda *";
    fn header(&self) -> &Header {
        &self.header
    }
    #[cfg(test)]
    fn sample(_: &crate::tests::World) -> *mut Self {
        // Most machines have none.
        std::ptr::null_mut()
    }
}

/// `pdbp_op`.
#[repr(C)]
pub struct OpHandle {
    header: Header,
    operation: RefCell<Operation>,
    /// Dropped after the operation.
    part: Arc<PartHandle>,
}

// SAFETY: see the struct.
unsafe impl Handle for OpHandle {
    const TAG: u32 = 0x4f50_4552;
    #[cfg(test)]
    const POINTER: &'static str = "pdbp_op *";
    fn header(&self) -> &Header {
        &self.header
    }
    fn is_callers(&self) -> bool {
        self.part.is_callers()
    }
    fn enter(&self) -> Result<(), crate::status::Failure> {
        self.part.enter()
    }
    #[cfg(test)]
    fn sample(_: &crate::tests::World) -> *mut Self {
        std::ptr::null_mut()
    }
}

fn handle_of(part: &PartHandle, operation: Operation) -> *mut OpHandle {
    let operation = RefCell::new(operation);
    boxed(OpHandle { header: Header::new::<OpHandle>(), operation, part: share_of(part) })
}

exports! {
    /// A device, by its primary context.
    fn pdbp_cuda_open(ordinal: u32, copies: u32, out: Out<*mut CudaHandle>) -> Status {
        let device = Device::open(ordinal, copies)?;
        out.put(boxed(CudaHandle { header: Header::new::<CudaHandle>(), device }));
        Ok(Status::DONE)
    }

    /// Frees the handle of a device; operations keep what they need.
    fn pdbp_cuda_free(device: Free<CudaHandle>) -> () {
        let Some(device) = device else { return Ok(()) };
        // SAFETY: `pdbp_cuda_open` has made it, and this is its end.
        drop(unsafe { unboxed(device) });
        Ok(())
    }

    /// Begins to send device memory as one message.
    fn pdbp_cuda_send(
        part: In<PartHandle>, device: In<CudaHandle>, from: u64, size: usize, after: *mut c_void, to: TargetBits,
        out: Out<*mut OpHandle>
    ) -> Status {
        // SAFETY: the operation is kept beside a share of the part, and dropped before it; the header's promise for memory and stream.
        let operation = unsafe { Operation::send(part, &device.device, (from, size), after, part.target(to)?) }?;
        out.put(handle_of(part, operation));
        Ok(Status::DONE)
    }

    /// Begins to receive a message into device memory.
    fn pdbp_cuda_recv(
        part: In<PartHandle>, device: In<CudaHandle>, into: u64, room: usize, after: *mut c_void, out: Out<*mut OpHandle>
    ) -> Status {
        // SAFETY: as above.
        let operation = unsafe { Operation::recv(part, &device.device, (into, room), after) }?;
        out.put(handle_of(part, operation));
        Ok(Status::DONE)
    }

    /// Goes on with an operation, until it is over if the call may wait so long.
    fn pdbp_op_wait(op: In<OpHandle>, bytes: MaybeOut<usize>, source: MaybeOut<TargetBits>, wait: Wait) -> Status {
        let mut operation = op.operation.borrow_mut();
        let went = operation.wait(wait, op.part.node());
        bytes.put(operation.bytes());
        if let Some(from) = operation.source() {
            source.put(from.into());
        }
        went.map(|()| Status::DONE)
    }

    /// Ends an operation, and with it the loan of the memory. The handle is freed then.
    fn pdbp_op_end(op: In<OpHandle>, wait: Wait) -> Status {
        op.operation.borrow_mut().end(wait, op.part.node())?;
        // SAFETY: `handle_of` has made it, and this is its end: the reference is not used any more.
        drop(unsafe { unboxed(std::ptr::NonNull::from(op)) });
        Ok(Status::DONE)
    }
}

named! {
    CudaHandle, "pdbp_cuda";
    OpHandle, "pdbp_op";
}
