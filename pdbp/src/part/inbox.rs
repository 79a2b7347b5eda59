//! What the inbox of a part reads from: its private pipe, whose deliveries are shared by reference counts.

use pdbp_core::Delivery;
use pdbp_core::id::{NodeId, PartId};
use pdbp_core::inbox::{Arrival, Arrivals, InboxStorage};

use super::message::{Buffer, Run};
use super::share::sealed;
use super::{Part, Share};
use crate::config::Settings;
use crate::node::Pipe;
use crate::sync::Counted;

/// What has been taken out of a part's pipe and not read.
pub(crate) type Inbox<S> = pdbp_core::inbox::Inbox<'static, Pointer<S>, Buffer>;

/// The hold of messages on their bytes.
pub(crate) type Pointer<S> = Counted<Run, Count<S>>;

/// How holders are counted.
pub(crate) type Count<S> = <S as sealed::Share>::Count;

/// Streams of an inbox beyond those that the stream pipes of a node allow: a reader may keep some that have ended.
const MORE_STREAMS: usize = 64;

/// An empty inbox. Its tables are allocated here, and never grow.
pub(crate) fn inbox<H>(settings: &Settings) -> pdbp_core::inbox::Inbox<'static, H, Buffer> {
    let streams = usize::from(settings.stream_pipes) * usize::from(settings.nodes).min(4) + MORE_STREAMS;
    pdbp_core::inbox::Inbox::new(InboxStorage::allocate(
        ENTRIES.max(2 * settings.pipe_depth),
        settings.parts.max(1),
        streams,
    ))
}

/// Minimum capacity for sorted, unread deliveries: more than a pipe holds, so that a stream is found behind messages.
const ENTRIES: usize = 1024;

/// The pipe of a part, as its inbox sees it.
pub(crate) struct Source<'p, S: Share>(pub(crate) &'p Part<S>);

impl<S: Share> Source<'_, S> {
    fn pipe(&self) -> Option<&Pipe> {
        self.0.bound_pipe()
    }
}

impl<S: Share> Arrivals for Source<'_, S> {
    type Hold = Pointer<S>;
    type Buffer = Buffer;

    #[inline]
    #[expect(unsafe_code, reason = "the promise that nobody else reads the pipe")]
    fn pull_command(&mut self) -> Option<Delivery> {
        // SAFETY: only this part reads its pipe, and it is on one thread at a time.
        unsafe { self.pipe()?.pull_command() }
    }

    #[inline]
    #[expect(unsafe_code, reason = "the promise that nobody else reads the pipe")]
    fn pull(&mut self) -> Option<Arrival> {
        // SAFETY: as above.
        unsafe { self.pipe()?.pull() }
    }

    #[inline(always)]
    fn hold(&mut self, delivery: Delivery) -> Pointer<S> {
        let mut run = self.0.runs.take();
        run.hold(delivery, self.0.shared());
        run.share()
    }

    #[inline(always)]
    fn share(&mut self, hold: &Pointer<S>) -> Pointer<S> {
        hold.clone()
    }

    fn release(&mut self, hold: Pointer<S>) {
        drop(hold);
    }

    #[inline]
    fn delivery<'h>(&'h self, hold: &'h Pointer<S>) -> Option<&'h Delivery> {
        hold.delivery()
    }

    fn begin(&mut self, source: PartId, message: u32, total: u32) -> Option<Buffer> {
        Buffer::begin(self.0, source, message, total)
    }

    fn append(&mut self, buffer: &mut Buffer, hold: &Pointer<S>, start: usize, end: usize) {
        buffer.append(hold.bytes().get(start..end).unwrap_or(&[]));
    }

    fn finish(&mut self, buffer: Buffer) -> Pointer<S> {
        Counted::new(Run::assembled(buffer))
    }

    fn discard(&mut self, buffer: Buffer) {
        drop(buffer);
    }

    fn lost(&mut self, node: NodeId) {
        self.0.shared().engine_without_wakes().lose_rooms(self.0.id(), node);
    }
}
