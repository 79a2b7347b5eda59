//! Devices by the CUDA driver.

use std::cell::RefCell;
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use pdbp::cuda::Buffer;
use pdbp::cuda::device::{Cuda, CudaMemory, DeviceError, Lease};
use pdbp::cuda::flow::{Copier, FlowError, Step};
use pdbp::{DeviceRecv, DeviceSend, Node, Part, Shared, Target};

use crate::call::Wait;
use crate::part::PartHandle;
use crate::status::{Failure, Status};

/// `PDBP_NO_STREAM`: nothing is to be waited for.
const NO_STREAM: usize = usize::MAX;

/// A device that is open.
pub(crate) struct Device {
    /// No other has it in this process.
    number: usize,
    cuda: Cuda,
    copies: NonZeroUsize,
}

/// The copiers of a part, for each device that it was used with.
#[derive(Default)]
pub(crate) struct Copiers(RefCell<Vec<(usize, Rc<Copier<Cuda>>)>>);

/// A message on its way from or to device memory.
pub(crate) struct Operation {
    /// `None` when it was given up, and the loan of the memory is to end.
    flow: Option<Flow>,
    bytes: usize,
    source: Option<Target>,
    lease: Lease,
    copier: Rc<Copier<Cuda>>,
}

enum Flow {
    Send(DeviceSend<&'static Part<Shared>, Cuda>),
    Recv(DeviceRecv<&'static Part<Shared>, Cuda>),
}

impl Device {
    pub(crate) fn open(ordinal: u32, copies: u32) -> Result<Self, Failure> {
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let cuda = Cuda::open(ordinal as usize)?;
        // Three let a copy, the block before it and the one after overlap.
        let copies = NonZeroUsize::new(copies as usize).unwrap_or(const { NonZeroUsize::new(3).unwrap() });
        Ok(Self { number: OPENED.fetch_add(1, Ordering::Relaxed), cuda, copies })
    }
}

impl Copiers {
    fn of(&self, device: &Device) -> Rc<Copier<Cuda>> {
        let mut all = self.0.borrow_mut();
        if let Some((_, copier)) = all.iter().find(|(number, _)| *number == device.number) {
            return Rc::clone(copier);
        }
        let copier = Rc::new(Copier::new(&device.cuda, device.copies));
        all.push((device.number, Rc::clone(&copier)));
        copier
    }
}

impl Operation {
    /// # Safety
    /// It is dropped before the handle of the part. The memory is the device's, and stays until [`end`](Self::end) is done; nobody writes it
    /// meanwhile. The stream is alive.
    pub(crate) unsafe fn send(
        part: &PartHandle,
        device: &Device,
        memory: (u64, usize),
        after: *mut c_void,
        to: Target,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let (part, buffer, lease, after, copier) = unsafe { prepare(part, device, memory, after) }?;
        let flow =
            DeviceSend::new(part, &copier, buffer.into_slice(), after.as_ref(), to).map_err(|e| e.error)?;
        Ok(Self { flow: Some(Flow::Send(flow)), bytes: 0, source: None, lease, copier })
    }

    /// # Safety
    /// As [`send`](Self::send); nobody reads the memory meanwhile either.
    pub(crate) unsafe fn recv(
        part: &PartHandle,
        device: &Device,
        memory: (u64, usize),
        after: *mut c_void,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let (part, buffer, lease, after, copier) = unsafe { prepare(part, device, memory, after) }?;
        let flow = DeviceRecv::new(part, &copier, buffer, after.as_ref()).map_err(|e| e.error)?;
        Ok(Self { flow: Some(Flow::Recv(flow)), bytes: 0, source: None, lease, copier })
    }

    /// Goes on until all was sent or has arrived.
    pub(crate) fn wait(&mut self, wait: Wait, node: &Node) -> Result<(), Failure> {
        let went = match &mut self.flow {
            None => Err(given_up()),
            Some(flow) if wait.is_none() => flow.poll(),
            Some(Flow::Send(flow)) => flow.wait(wait.on(node)).map_err(Failure::from),
            Some(Flow::Recv(flow)) => flow.wait(wait.on(node)).map_err(Failure::from),
        };
        if let Some(flow) = &self.flow {
            (self.bytes, self.source) = match flow {
                Flow::Send(flow) => (flow.sent(), None),
                Flow::Recv(flow) => (flow.received(), flow.source()),
            };
        }
        went
    }

    /// Bytes that were sent, or have arrived, when it was last waited for.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Who sends what is received, if that is known.
    pub(crate) fn source(&self) -> Option<Target> {
        self.source
    }

    /// Gives up what is not over, and waits until the memory is the program's again.
    pub(crate) fn end(&mut self, wait: Wait, node: &Node) -> Result<(), Failure> {
        self.flow = None;
        let (began, timeout) = (Instant::now(), wait.on(node));
        loop {
            // For copies it waits as long as the device takes. What MPI transfers ends by itself, if it is asked for.
            self.copier.settle();
            if self.lease.is_over() {
                return Ok(());
            }
            if began.elapsed() >= timeout {
                let text =
                    "a copy or transfer still uses the memory, so it must not be freed; call this again";
                let status = if wait.is_none() { Status::WOULD_BLOCK } else { Status::TIMEOUT };
                return Err(Failure::new(status, text.to_owned()));
            }
            node.poll();
            std::thread::yield_now();
        }
    }
}

impl Flow {
    fn poll(&mut self) -> Result<(), Failure> {
        loop {
            let step = match self {
                Self::Send(flow) => flow.poll().map_err(Failure::from),
                Self::Recv(flow) => flow.poll().map_err(Failure::from),
            };
            match step? {
                Step::Done => return Ok(()),
                Step::Moved => {}
                Step::Idle => return Err(Failure::WOULD_BLOCK),
            }
        }
    }
}

#[cold]
fn given_up() -> Failure {
    Failure::new(
        Status::E_STREAM,
        "pdbp_op_end cancelled the operation; call it again until it returns PDBP_DONE".to_owned(),
    )
}

/// What an operation is made of.
type Prepared =
    (&'static Part<Shared>, Buffer<Cuda>, Lease, Option<pdbp::cuda::device::CudaEvent>, Rc<Copier<Cuda>>);

/// # Safety
/// As [`Operation::send`].
unsafe fn prepare(
    part: &PartHandle,
    device: &Device,
    (address, bytes): (u64, usize),
    after: *mut c_void,
) -> Result<Prepared, Failure> {
    // SAFETY: the caller's promise.
    let (memory, lease) = unsafe { CudaMemory::lend(&device.cuda, address, bytes) }?;
    let after = match after.addr() {
        NO_STREAM => None,
        // SAFETY: the caller's promise.
        _ => Some(unsafe { device.cuda.end_of_raw(after) }?),
    };
    let copier = part.copiers.of(device);
    // SAFETY: the caller's promise.
    Ok((unsafe { part.part() }, Buffer::of(memory), lease, after, copier))
}

impl From<DeviceError> for Failure {
    #[cold]
    fn from(error: DeviceError) -> Self {
        let status = if error == DeviceError::Empty { Status::E_ARGUMENT } else { Status::E_DEVICE };
        Self::new(status, error.to_string())
    }
}

impl<E: Into<Failure> + std::fmt::Display> From<FlowError<E>> for Failure {
    #[cold]
    fn from(error: FlowError<E>) -> Self {
        match error {
            FlowError::Device(error) => error.into(),
            FlowError::Link(error) => error.into(),
            FlowError::TooLong { .. } => Self::new(Status::E_TOO_LONG, error.to_string()),
            _ => Self::new(Status::E_STREAM, error.to_string()),
        }
    }
}
