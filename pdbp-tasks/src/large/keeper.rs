//! The part that slots ask for large values. It has its own thread, which may wait for the disk.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pdbp::{Message, Node, PartKind};

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
    let unfinished = served.pool().most_unfinished();
    keep_with(node, unfinished, &is_over, &|| store.settle(), &|request| answer(served, store, request))
}

/// Answers requests with `answer` until all is over. Those that have not arrived to their end may have `unfinished` bytes together; a node that is
/// refused for that stays so until it is lost. Calls `check` now and then.
pub(crate) fn keep_with(
    node: &Node,
    unfinished: usize,
    is_over: &dyn Fn() -> bool,
    check: &dyn Fn(),
    answer: &dyn Fn(LargeRequest) -> io::Result<LargeAnswer>,
) -> Result<(), Error> {
    let mut losses = Losses::new(node);
    let part = node.register(NAME, PartKind::Cpu)?;
    let mut keeper = Keeper { peers: Peers::new(&part, unfinished), refused: HashSet::new() };
    while !is_over() {
        let mut message = keeper.peers.wait(IDLE)?;
        check();
        let mut count = 0;
        while let Some(next) = message {
            // An empty message only checks that the part exists.
            if !next.is_empty() {
                keeper.receive(&next, answer);
            }
            count += 1;
            message = if count < AT_ONCE { part.try_recv() } else { None };
        }
        // As in `serve`.
        while let Ok(Some(_)) = part.try_returned() {}
        losses.take().into_iter().for_each(|node| keeper.lose_node(node));
        keeper.peers.send();
    }
    Ok(())
}

struct Keeper<'a> {
    peers: Peers<'a>,
    /// Nodes whose unfinished requests were too much. Nothing more is kept of theirs, nor said to them.
    refused: HashSet<u16>,
}

impl Keeper<'_> {
    fn receive(&mut self, piece: &Message, answer: &dyn Fn(LargeRequest) -> io::Result<LargeAnswer>) {
        let Self { peers, refused } = self;
        match peers.receive(piece, |from| refused.contains(&from.node)) {
            // A peer that keeps asking without reading gets no more answers until it reads.
            Received::Message(from, Up::Large { id, request }) if peers.unread(from) <= UNREAD => {
                let answer = answer(request).unwrap_or_else(|error| LargeAnswer::No(error.to_string()));
                peers.queue(from, &Down::Large { id, answer });
            }
            Received::TooMuch(parts, _) => refused.extend(parts.iter().map(|part| part.node)),
            _ => {}
        }
    }

    fn lose_node(&mut self, node: u16) {
        self.peers.lose_node(node);
        self.refused.remove(&node);
    }
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

#[cfg(test)]
mod tests {
    use pdbp::Builder;

    use super::*;
    use crate::slot;
    use crate::wire::{self, pieces};

    const SOON: Duration = Duration::from_secs(60);

    /// Each time that it had sent too much again, each of its parts was told so again.
    #[test]
    fn a_node_whose_requests_never_end_is_told_once_and_nothing_more_of_it_is_kept_until_it_is_lost() {
        const MOST: usize = 1 << 20;
        let cluster = Builder::new().nodes(3).start().unwrap();
        let [store, honest, hostile] = cluster.nodes() else { panic!("three nodes") };
        let part = store.register(NAME, PartKind::Cpu).unwrap();
        let mut keeper = Keeper { peers: Peers::new(&part, MOST), refused: HashSet::new() };
        let wrote = |_| Ok(LargeAnswer::Wrote(7));
        let parts: Vec<_> = (0..4).map(|_| hostile.attach().unwrap()).collect();
        let piece = [&[1][..], &[7; 1000]].concat();
        for _ in 0..4 * MOST / 1000 / parts.len() {
            for from in &parts {
                from.send(part.id(), &piece).unwrap();
                from.flush();
                keeper.receive(&part.recv_timeout(SOON).unwrap(), &wrote);
            }
        }
        let request = LargeRequest::Read { number: 1, from: 0 };
        let (asks, up) = (honest.attach().unwrap(), Up::Large { id: 1, request });
        let ask = |asks: &pdbp::Part, keeper: &mut Keeper<'_>| {
            slot::send(asks, part.id(), &up).unwrap();
            keeper.receive(&part.recv_timeout(SOON).unwrap(), &wrote);
            while !keeper.peers.is_idle() {
                assert!(keeper.peers.send().is_empty());
            }
        };
        let answer = |from: &pdbp::Part| {
            let piece = from.recv_timeout(SOON).unwrap();
            let whole = pieces::Joined::default().add(&piece, |whole| wire::decode::<Down>(whole));
            whole.unwrap().unwrap().unwrap()
        };
        let is_answer = |down| matches!(down, Down::Large { id: 1, answer: LargeAnswer::Wrote(7) });
        ask(&asks, &mut keeper);
        assert!(is_answer(answer(&asks)));
        for told in &parts {
            assert!(matches!(answer(told), Down::Ignored { .. }));
        }
        keeper.lose_node(parts[0].id().node().index() as u16);
        for from in &parts {
            // The next message is this answer.
            ask(from, &mut keeper);
            assert!(is_answer(answer(from)));
        }
    }
}
