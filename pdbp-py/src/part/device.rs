//! Memory of CUDA devices: messages from it and into it. `pypdbp/_devices.py` handles the array objects.

use std::rc::Rc;
use std::time::{Duration, Instant};

use pdbp::Node;
use pdbp::cuda::Buffer;
use pdbp::cuda::device::{Cuda, CudaEvent, CudaMemory, DeviceError, Lease};
use pdbp::cuda::flow::{Copier, FlowError};
use pyo3::prelude::*;

use super::held::Held;
use super::{Part, Target};
use crate::calls::Patience;
use crate::error::Failure;

/// The address of bytes on a device, and the stream whose queued work concerns them: a CUstream, or the numbers 1 and 2 of the default ones.
#[derive(Clone, Copy)]
struct Place {
    address: u64,
    bytes: usize,
    stream: Option<u64>,
}

/// Memory lent to a message.
struct Lent {
    copier: Rc<Copier<Cuda>>,
    buffer: Buffer<Cuda>,
    after: Option<CudaEvent>,
    lease: Lease,
}

impl Place {
    /// # Safety
    /// The memory belongs to the device, and stays valid until [`give_back`] returns true; until then, nothing else uses memory that is received
    /// into, and nobody writes memory that is sent. The stream is alive.
    #[expect(unsafe_code, reason = "the caller's promise for memory and stream")]
    unsafe fn lend(self, held: &mut Held) -> Result<Lent, DeviceError> {
        let copier = held.copier(self.address)?;
        let device = copier.device();
        // SAFETY: the caller's promise.
        let (memory, lease) = unsafe { CudaMemory::lend(device, self.address, self.bytes) }?;
        let stream = self.stream.map(|stream| std::ptr::without_provenance_mut(stream as usize));
        // SAFETY: the caller's promise.
        let after = stream.map(|stream| unsafe { device.end_of_raw(stream) }).transpose()?;
        Ok(Lent { copier, buffer: Buffer::of(memory), after, lease })
    }
}

/// Waits until no transfer uses lent memory, of which no operation is left. `false`: a transfer goes on for an unknown time.
fn give_back(copier: &Copier<Cuda>, lease: &Lease, node: &Node) -> bool {
    let began = Instant::now();
    loop {
        copier.settle();
        if lease.is_over() || began.elapsed() > node.settings().timeout {
            return lease.is_over();
        }
        node.poll();
        std::thread::yield_now();
    }
}

fn timeout(patience: Patience, node: &Node) -> Duration {
    patience.or(node.settings().timeout)
}

impl<E: Into<Failure> + std::fmt::Display> From<FlowError<E>> for Failure {
    fn from(e: FlowError<E>) -> Self {
        match e {
            FlowError::Device(e) => e.into(),
            FlowError::Link(e) => e.into(),
            FlowError::TooLong { .. } => Self::new("TooLong", e),
            e => Self::new("PdbpError", e),
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(e: DeviceError) -> Self {
        Self::new("DeviceError", e)
    }
}

/// Makes a call that lends memory of `owner`. It sets its second argument as long as something may use the memory; if that is so at its end, however it
/// ends, the owner is never freed.
fn lending<R: Send>(
    py: Python<'_>,
    part: &Part,
    owner: &Bound<'_, PyAny>,
    call: impl FnOnce(&mut Held, &mut bool) -> Result<R, Failure> + Send,
) -> PyResult<R> {
    let mut is_lent = false;
    let result = part.cell.wait(py, |held| call(held, &mut is_lent));
    if is_lent {
        std::mem::forget(owner.clone());
    }
    result
}

/// Sends bytes of a device, owned by `owner`, as one message.
#[pyfunction]
#[pyo3(signature = (part, to, owner, address, bytes, stream, timeout_s))]
#[expect(unsafe_code, reason = "the owner's promise for memory and stream")]
#[expect(clippy::too_many_arguments, reason = "of Python, by one caller")]
pub(crate) fn _send_device(
    py: Python<'_>,
    part: PyRef<'_, Part>,
    to: Target,
    owner: &Bound<'_, PyAny>,
    address: u64,
    bytes: usize,
    stream: Option<u64>,
    timeout_s: Option<f64>,
) -> PyResult<()> {
    let (patience, to, place) = (Patience::of(timeout_s)?, to.0, Place { address, bytes, stream });
    lending(py, &part, owner, |held, is_lent| {
        held.check(to)?;
        // SAFETY: the interface of `owner` guarantees it, and `owner` lives until the call ends, or for ever.
        let lent = unsafe { place.lend(held) }?;
        *is_lent = true;
        let (node, part) = (held.part().node(), held.part());
        let sending = part.send_device(&lent.copier, lent.buffer.into_slice(), lent.after.as_ref(), to);
        let sent = match sending {
            Ok(mut sending) => sending.wait(timeout(patience, node)).map_err(Failure::from),
            Err(refused) => Err(refused.error.into()),
        };
        *is_lent = !give_back(&lent.copier, &lent.lease, node);
        sent
    })
}

/// Receives a message into memory of a device, owned by `owner`. Returns its sender, and its bytes.
#[pyfunction]
#[pyo3(signature = (part, owner, address, bytes, stream, timeout_s))]
#[expect(unsafe_code, reason = "the owner's promise for memory and stream")]
pub(crate) fn _recv_device(
    py: Python<'_>,
    part: PyRef<'_, Part>,
    owner: &Bound<'_, PyAny>,
    address: u64,
    bytes: usize,
    stream: Option<u64>,
    timeout_s: Option<f64>,
) -> PyResult<(Option<Target>, usize)> {
    let (patience, place) = (Patience::of(timeout_s)?, Place { address, bytes, stream });
    lending(py, &part, owner, |held, is_lent| {
        // SAFETY: as in `_send_device`.
        let lent = unsafe { place.lend(held) }?;
        *is_lent = true;
        let (node, part) = (held.part().node(), held.part());
        let received = match part.recv_into_device(&lent.copier, lent.buffer, lent.after.as_ref()) {
            Ok(mut receiving) => {
                let went = receiving.wait(timeout(patience, node)).map_err(Failure::from);
                went.map(|()| (receiving.source().map(Target), receiving.received()))
            }
            Err(refused) => Err(refused.error.into()),
        };
        *is_lent = !give_back(&lent.copier, &lent.lease, node);
        received
    })
}
