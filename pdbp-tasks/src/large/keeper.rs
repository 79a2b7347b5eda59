//! The part that slots ask for large values. It has its own thread, which may wait for the disk.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pdbp::{Node, PartKind};

use super::spool::{Store, Writer};
use crate::error::Error;
use crate::losses::Losses;
use crate::peers::{Peers, Received, UNREAD};
use crate::serve::Served;
use crate::wire::{Down, LargeAnswer, LargeBy, LargeRequest, Up};

/// The part's name and address.
const NAME: &str = "tasks.store";
pub(crate) const ADDRESS: &str = "tasks.store@node0";

/// How long it waits when idle.
const IDLE: Duration = Duration::from_millis(50);
/// Messages received per round before answers are sent.
const AT_ONCE: usize = 32;

/// Serves large values until all is over.
pub(crate) fn keep(node: &Node, served: &Served, store: &Store) -> Result<(), Error> {
    let is_over = || served.over.load(Ordering::Acquire);
    keep_with(node, &is_over, &|| store.settle(), &|request| answer(served, store, request))
}

/// Answers requests with `answer` until all is over. Calls `look` now and then.
pub(crate) fn keep_with(
    node: &Node,
    is_over: &dyn Fn() -> bool,
    check: &dyn Fn(),
    answer: &dyn Fn(LargeRequest) -> io::Result<LargeAnswer>,
) -> Result<(), Error> {
    let mut losses = Losses::new(node);
    let part = node.register(NAME, PartKind::Cpu)?;
    let mut peers = Peers::new(&part);
    while !is_over() {
        let mut message = peers.wait(IDLE)?;
        check();
        let mut count = 0;
        while let Some(next) = message {
            // An empty message only checks that the part exists.
            if !next.is_empty()
                && let Received::Message(from, Up::Large { id, request }) = peers.receive(&next, |_| false)
                // A peer that keeps asking without reading gets no more answers until it reads.
                && peers.unread(from) <= UNREAD
            {
                let answer = answer(request).unwrap_or_else(|error| LargeAnswer::No(error.to_string()));
                peers.queue(from, &Down::Large { id, answer });
            }
            count += 1;
            message = if count < AT_ONCE { part.try_recv() } else { None };
        }
        // As in `serve`.
        while let Ok(Some(_)) = part.try_returned() {}
        losses.take().into_iter().for_each(|node| peers.lose_node(node));
        peers.send();
    }
    Ok(())
}

fn answer(served: &Served, store: &Store, request: LargeRequest) -> io::Result<LargeAnswer> {
    match request {
        LargeRequest::Read { number, from } => store.read(number, from).map(LargeAnswer::Piece),
        LargeRequest::Write { by: LargeBy::Attempt(task, attempt), number, from, bytes } => {
            let writer = || {
                let job = served.pool().job_of_running(task);
                let job = job.ok_or_else(|| io::Error::other("the task's result is no longer needed"))?;
                Ok(Writer::Task(job, task, attempt))
            };
            store.write(writer, number, from, &bytes).map(LargeAnswer::Wrote)
        }
        LargeRequest::Write { .. } | LargeRequest::Finish { .. } => Err(io::Error::other(
            "this pool has no journal; clients elsewhere and names are of those that have one",
        )),
    }
}
