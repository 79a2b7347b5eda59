//! Small messages from anywhere in the memory of a device to that of a device: gathered and scattered by a kernel, compared with one copy and one
//! message each.

use std::error::Error;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Instant;

use cudarc::driver::sys;
use pdbp::{Cluster, Node, Part, PartKind, Target};
use pdbp_cuda::device::{Cuda, CudaMemory, CudaQueue, Device};
use pdbp_cuda::flow::Copier;
use pdbp_cuda::{Buffer, Slice};

use crate::arguments::{Arguments, PATIENCE};
use crate::host::{self, Host, Kind};
use crate::nodes::{Outcome, between, text};
use crate::runs::Runs;
use crate::table::{Output, Table, size};

/// How the messages come to and from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// By a kernel, as many as fit a block at a time.
    Gathered,
    /// The same, of messages that lie in no order.
    Shuffled,
    /// A copy each, which the program waits for.
    Each,
    /// A copy each, all of which the program asks for and then waits for the last.
    Queued,
    /// One copy of all, whose distances are equal, as rows of a picture (`cuMemcpy2D`); and one copy of all that have arrived.
    Rows,
}

/// Messages of equal length.
#[derive(Clone, Copy, Debug)]
struct Load<'l> {
    bytes: usize,
    count: usize,
    /// Which place each has.
    order: &'l [usize],
}

impl Load<'_> {
    /// Where a message lies before it is sent: places are as far from each other as they are long.
    fn source(self, message: usize) -> Range<usize> {
        let at = 2 * self.order[message] * self.bytes;
        at..at + self.bytes
    }

    /// Where it lies afterwards.
    fn slot(self, message: usize) -> Range<usize> {
        let at = message * self.bytes;
        at..at + self.bytes
    }

    fn room(self) -> usize {
        2 * self.count * self.bytes
    }
}

pub(crate) fn measure(
    device: &Cuda,
    arguments: &Arguments,
    output: &mut Output,
) -> Result<(), Box<dyn Error>> {
    let title = "small messages, device memory to device memory: million messages/s";
    let table = Table::new("pieces", title, &["gathered", "shuffled", "each", "queued", "rows"]);
    let table =
        table.ratio("gathered/each", 0, 2).ratio("gathered/queued", 0, 3).ratio("gathered/rows", 0, 4);
    output.begin(&table, "Size")?;
    let cluster = arguments.cluster()?.start()?;
    for bytes in [64, 256, 1 << 10, 4 << 10, 16 << 10] {
        let count = arguments.messages(bytes);
        let (in_order, mut shuffled): (Vec<_>, Vec<_>) = (0..count).map(|place| (place, place)).unzip();
        // By a hash, in which neighbours are nowhere near each other.
        shuffled.sort_by_key(|place| {
            place.wrapping_mul(*place).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        });
        let methods = [Method::Gathered, Method::Shuffled, Method::Each, Method::Queued, Method::Rows];
        let cells = methods.map(|method| {
            let order = if method == Method::Shuffled { &shuffled } else { &in_order };
            rates(&cluster, device, arguments, method, Load { bytes, count, order })
        });
        let cells: Vec<Runs> = cells.into_iter().collect::<Result<_, _>>()?;
        output.row(&table, &size(bytes), bytes, &cells)?;
    }
    Ok(())
}

fn rates(
    cluster: &Cluster,
    device: &Cuda,
    arguments: &Arguments,
    method: Method,
    load: Load<'_>,
) -> Result<Runs, Box<dyn Error>> {
    between(
        cluster,
        |node| send(node, device, arguments, method, load),
        |node| receive(node, device, arguments, method, load),
    )
}

fn send(node: &Node, device: &Cuda, arguments: &Arguments, method: Method, load: Load<'_>) -> Outcome<()> {
    let part = node.register("source", PartKind::Gpu).map_err(text)?;
    let to = part.find("sink", PATIENCE).map_err(text)?;
    let buffer = Buffer::new(device, load.room()).map_err(text)?;
    let mut data = vec![0; load.room()];
    host::fill(&mut data, load.bytes);
    host::copy_in(device, &data, buffer.memory(), 0).map_err(text)?;
    host::settle(device).map_err(text)?;
    if matches!(method, Method::Gathered | Method::Shuffled) {
        let copier = Rc::new(Copier::new(device, arguments.in_flight));
        let slice = buffer.into_slice();
        return rounds(node, arguments, || gather(&part, &copier, &slice, load, to));
    }
    let (queue, mut host) = (device.queue().map_err(text)?, pinned(device, load.count * load.bytes)?);
    rounds(node, arguments, || match method {
        Method::Each => send_each(&part, device, buffer.memory(), &mut host, load, to),
        Method::Rows => send_rows(&part, device, &queue, buffer.memory(), &mut host, load, to),
        _ => send_queued(&part, device, &queue, buffer.memory(), &mut host, load, to),
    })
}

/// As often as the receiver receives.
fn rounds(node: &Node, arguments: &Arguments, mut round: impl FnMut() -> Outcome<()>) -> Outcome<()> {
    for _ in 0..=arguments.runs() {
        node.barrier(PATIENCE).map_err(text)?;
        round()?;
    }
    node.barrier(PATIENCE).map_err(text)
}

fn pinned(device: &Cuda, bytes: usize) -> Outcome<Host> {
    Host::new(device, Kind::Pinned, bytes).map_err(text)
}

fn gather(
    part: &Part,
    copier: &Rc<Copier<Cuda>>,
    slice: &Slice<Cuda>,
    load: Load<'_>,
    to: Target,
) -> Outcome<()> {
    let pieces = (0..load.count).map(|message| load.source(message));
    let mut sending = part.send_device_each(copier, slice.clone(), pieces, None, to).map_err(text)?;
    sending.wait(PATIENCE).map_err(text)
}

fn send_each(
    part: &Part,
    device: &Cuda,
    from: &CudaMemory,
    host: &mut Host,
    load: Load<'_>,
    to: Target,
) -> Outcome<()> {
    for message in 0..load.count {
        let bytes = &mut host.bytes()[..load.bytes];
        host::copy_out(device, from, load.source(message).start, bytes).map_err(text)?;
        part.send(to, bytes).map_err(text)?;
    }
    part.flush();
    Ok(())
}

fn send_queued(
    part: &Part,
    device: &Cuda,
    queue: &CudaQueue,
    from: &CudaMemory,
    host: &mut Host,
    load: Load<'_>,
    to: Target,
) -> Outcome<()> {
    for (message, bytes) in host.bytes().chunks_mut(load.bytes).enumerate() {
        // SAFETY: both stay, and nobody touches them, until the device has nothing to do, below.
        let copy = unsafe { device.copy_out(queue, from, load.source(message).start, NonNull::from(bytes)) };
        copy.map(drop).or_else(|e| settled(device, text(e)))?;
    }
    send_copied(part, device, queue, host, load, to)
}

fn send_rows(
    part: &Part,
    device: &Cuda,
    queue: &CudaQueue,
    from: &CudaMemory,
    host: &mut Host,
    load: Load<'_>,
    to: Target,
) -> Outcome<()> {
    let rows = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: from.address() + load.source(0).start as u64,
        srcArray: std::ptr::null_mut(),
        srcPitch: load.source(1).start - load.source(0).start,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: host.place().cast().as_ptr(),
        dstDevice: 0,
        dstArray: std::ptr::null_mut(),
        dstPitch: load.bytes,
        WidthInBytes: load.bytes,
        Height: load.count,
    };
    // SAFETY: the rows lie in both memories, which stay, and nobody touches them, until the device has nothing to do, below.
    let copy = unsafe { sys::cuMemcpy2DAsync_v2(&raw const rows, queue.stream().cast()) };
    copy.result().or_else(|e| settled(device, text(e)))?;
    send_copied(part, device, queue, host, load, to)
}

/// Waits for the copies, and sends what they have brought.
fn send_copied(
    part: &Part,
    device: &Cuda,
    queue: &CudaQueue,
    host: &mut Host,
    load: Load<'_>,
    to: Target,
) -> Outcome<()> {
    let end = device.mark(queue).map_err(text)?;
    device.wait(&end).map_err(text)?;
    for bytes in host.bytes().chunks(load.bytes) {
        part.send(to, bytes).map_err(text)?;
    }
    part.flush();
    Ok(())
}

/// Nothing is under way when the error is returned.
fn settled(device: &Cuda, error: String) -> Outcome<()> {
    host::settle(device).map_err(text)?;
    Err(error)
}

/// Million messages per second, of all rounds.
fn receive(
    node: &Node,
    device: &Cuda,
    arguments: &Arguments,
    method: Method,
    load: Load<'_>,
) -> Outcome<Vec<f64>> {
    let part = node.register("sink", PartKind::Gpu).map_err(text)?;
    let copier = Rc::new(Copier::new(device, arguments.in_flight));
    let bytes = load.count * load.bytes;
    let mut buffer = Buffer::new(device, bytes).map_err(text)?;
    let (queue, mut host) = (device.queue().map_err(text)?, pinned(device, bytes)?);
    let mut rates = Vec::new();
    for _ in 0..=arguments.runs() {
        node.barrier(PATIENCE).map_err(text)?;
        let started = Instant::now();
        match method {
            Method::Gathered | Method::Shuffled => buffer = scatter(&part, &copier, buffer, load)?,
            Method::Each => receive_each(&part, device, buffer.memory(), load)?,
            Method::Queued => receive_queued(&part, device, &queue, buffer.memory(), &mut host, load)?,
            Method::Rows => receive_rows(&part, device, &queue, buffer.memory(), &mut host, load)?,
        }
        host::settle(device).map_err(text)?;
        rates.push(load.count as f64 / started.elapsed().as_secs_f64() / 1e6);
    }
    check(device, buffer.memory(), load)?;
    node.barrier(PATIENCE).map_err(text)?;
    Ok(rates)
}

fn scatter(
    part: &Part,
    copier: &Rc<Copier<Cuda>>,
    buffer: Buffer<Cuda>,
    load: Load<'_>,
) -> Outcome<Buffer<Cuda>> {
    let receiving = part.recv_each_into_device(copier, buffer, load.bytes, load.count, None);
    let mut receiving = receiving.map_err(text)?;
    receiving.wait(PATIENCE).map_err(text)?;
    receiving.take_buffer().ok_or_else(|| "a copy is under way after the end".into())
}

fn receive_each(part: &Part, device: &Cuda, to: &CudaMemory, load: Load<'_>) -> Outcome<()> {
    for message in 0..load.count {
        let bytes = part.recv().map_err(text)?;
        host::copy_in(device, &bytes, to, load.slot(message).start).map_err(text)?;
    }
    Ok(())
}

fn receive_queued(
    part: &Part,
    device: &Cuda,
    queue: &CudaQueue,
    to: &CudaMemory,
    host: &mut Host,
    load: Load<'_>,
) -> Outcome<()> {
    for (message, bytes) in host.bytes().chunks_mut(load.bytes).enumerate() {
        recv_at(part, bytes).or_else(|e| settled(device, e))?;
        // SAFETY: both stay, and nobody touches them, until the device has nothing to do, below.
        let copy = unsafe { device.copy_in(queue, NonNull::from(bytes), to, load.slot(message).start) };
        copy.map(drop).or_else(|e| settled(device, text(e)))?;
    }
    let end = device.mark(queue).map_err(text)?;
    device.wait(&end).map_err(text)
}

fn receive_rows(
    part: &Part,
    device: &Cuda,
    queue: &CudaQueue,
    to: &CudaMemory,
    host: &mut Host,
    load: Load<'_>,
) -> Outcome<()> {
    host.bytes().chunks_mut(load.bytes).try_for_each(|bytes| recv_at(part, bytes))?;
    // SAFETY: both stay, and nobody touches them, until the device has nothing to do, below.
    let copy = unsafe { device.copy_in(queue, host.place(), to, load.slot(0).start) };
    device.wait(&copy.map_err(text)?).map_err(text)
}

fn recv_at(part: &Part, bytes: &mut [u8]) -> Outcome<()> {
    let received = part.recv().map_err(text)?;
    let fits = received.len() == bytes.len();
    fits.then(|| bytes.copy_from_slice(&received)).ok_or_else(|| "a message of another length".into())
}

/// Whether each message is in its slot.
fn check(device: &Cuda, memory: &CudaMemory, load: Load<'_>) -> Outcome<()> {
    let (mut sent, mut arrived) = (vec![0; load.room()], vec![0; load.count * load.bytes]);
    host::fill(&mut sent, load.bytes);
    host::copy_out(device, memory, 0, &mut arrived).map_err(text)?;
    match (0..load.count).find(|&message| arrived[load.slot(message)] != sent[load.source(message)]) {
        Some(message) => Err(format!("message {message} of {} bytes is not what was sent", load.bytes)),
        None => Ok(()),
    }
}
