//! Messages from the memory of a device to that of a device, by the blocks of two nodes, compared with a program that copies to the host, passes
//! the data on, and copies to the device.

use std::error::Error;
use std::rc::Rc;
use std::time::Instant;

use pdbp::{Cluster, Node, PartKind};
use pdbp_cuda::Buffer;
use pdbp_cuda::device::{Cuda, CudaMemory, Device};
use pdbp_cuda::flow::Copier;

use crate::arguments::{Arguments, PATIENCE};
use crate::copies;
use crate::host::{self, Host, Kind};
use crate::nodes::{Outcome, between, text};
use crate::runs::{Runs, rate};
use crate::table::{Output, Table, size};

pub(crate) fn measure(
    device: &Cuda,
    arguments: &Arguments,
    output: &mut Output,
) -> Result<(), Box<dyn Error>> {
    let columns = ["pdbp", "pageable", "pinned", "limit"];
    let title = "device memory to device memory: GB/s; limit: pinned copies both ways at once";
    let table = Table::new("device", title, &columns);
    let table = table.ratio("pdbp/pageable", 0, 1).ratio("pdbp/pinned", 0, 2).ratio("pdbp/limit", 0, 3);
    output.begin(&table, "Size")?;
    let cluster = arguments.cluster()?.start()?;
    for bytes in arguments.sizes() {
        let pdbp = messages(&cluster, device, arguments, bytes)?;
        let pageable = by_hand(device, arguments, Kind::Pageable, bytes)?;
        let pinned = by_hand(device, arguments, Kind::Pinned, bytes)?;
        let limit = copies::both(device, arguments, bytes)?;
        output.row(&table, &size(bytes), bytes, &[pdbp, pageable, pinned, limit])?;
    }
    Ok(())
}

/// Device to host, from there to other memory of the host, and to the device: each a call that returns when it is done.
fn by_hand(device: &Cuda, arguments: &Arguments, kind: Kind, bytes: usize) -> Result<Runs, Box<dyn Error>> {
    let [mut first, mut second] = [Host::new(device, kind, bytes)?, Host::new(device, kind, bytes)?];
    let [from, to] = [device.allocate(bytes)?, device.allocate(bytes)?];
    host::fill(first.bytes(), bytes);
    host::copy_in(device, first.bytes(), &from, 0)?;
    let count = arguments.count(bytes);
    let runs = Runs::measure(arguments.runs(), bytes * count, || {
        let started = Instant::now();
        for _ in 0..count {
            host::copy_out(device, &from, 0, first.bytes())?;
            second.bytes().copy_from_slice(first.bytes());
            host::copy_in(device, second.bytes(), &to, 0)?;
        }
        host::settle(device)?;
        Ok(started.elapsed())
    })?;
    check(device, &to, bytes)?;
    Ok(runs)
}

fn check(device: &Cuda, memory: &CudaMemory, bytes: usize) -> Result<(), Box<dyn Error>> {
    let mut arrived = vec![0; bytes];
    host::copy_out(device, memory, 0, &mut arrived)?;
    if host::is_filled(&arrived, bytes) {
        return Ok(());
    }
    Err(format!("what arrived is not the message of {bytes} bytes").into())
}

/// One message at a time, from the first node's part to the second's.
fn messages(
    cluster: &Cluster,
    device: &Cuda,
    arguments: &Arguments,
    bytes: usize,
) -> Result<Runs, Box<dyn Error>> {
    between(
        cluster,
        |node| send(node, device, arguments, bytes),
        |node| receive(node, device, arguments, bytes),
    )
}

/// Sends what the other node receives.
fn send(node: &Node, device: &Cuda, arguments: &Arguments, bytes: usize) -> Outcome<()> {
    let part = node.register("source", PartKind::Gpu).map_err(text)?;
    let to = part.find("sink", PATIENCE).map_err(text)?;
    let copier = Rc::new(Copier::new(device, arguments.in_flight));
    let (buffer, mut data) = (Buffer::new(device, bytes).map_err(text)?, vec![0; bytes]);
    host::fill(&mut data, bytes);
    host::copy_in(device, &data, buffer.memory(), 0).map_err(text)?;
    host::settle(device).map_err(text)?;
    let slice = buffer.into_slice();
    for _ in 0..=arguments.runs() {
        node.barrier(PATIENCE).map_err(text)?;
        for _ in 0..arguments.count(bytes) {
            let mut sending = part.send_device(&copier, slice.clone(), None, to).map_err(text)?;
            sending.wait(PATIENCE).map_err(text)?;
        }
    }
    node.barrier(PATIENCE).map_err(text)
}

/// The rates of all runs.
fn receive(node: &Node, device: &Cuda, arguments: &Arguments, bytes: usize) -> Outcome<Vec<f64>> {
    let part = node.register("sink", PartKind::Gpu).map_err(text)?;
    let copier = Rc::new(Copier::new(device, arguments.in_flight));
    let (mut buffer, mut rates) = (Buffer::new(device, bytes).map_err(text)?, Vec::new());
    let count = arguments.count(bytes);
    for _ in 0..=arguments.runs() {
        node.barrier(PATIENCE).map_err(text)?;
        let started = Instant::now();
        for _ in 0..count {
            let mut receiving = part.recv_into_device(&copier, buffer, None).map_err(text)?;
            receiving.wait(PATIENCE).map_err(text)?;
            buffer = receiving.take_buffer().ok_or("a copy is under way after the end")?;
        }
        rates.push(rate(bytes * count, started.elapsed()));
    }
    check(device, buffer.memory(), bytes).map_err(text)?;
    node.barrier(PATIENCE).map_err(text)?;
    Ok(rates)
}
