//! Async calls of parts and streams: a call that finds nothing registers a waker, which is woken when something arrives.

use std::future::poll_fn;
use std::task::{Context, Poll};

use pdbp_core::id::NodeId;

use super::inbox::Source;
use super::readiness::Interest;
use super::sending::{Long, Patience};
use super::{Batch, HoldsPart, Message, Part, Ready, Segment, Share, StreamReader, StreamWriter, Target};
use crate::config::Progress;
use crate::error::{RecvError, SendError};
use crate::node::{Awaited, Room};

/// The error when a task would wait with nobody to wake it.
trait NobodyPolls {
    const ERROR: Self;
}

impl NobodyPolls for RecvError {
    const ERROR: Self = Self::NobodyPolls;
}

impl NobodyPolls for SendError {
    const ERROR: Self = Self::NobodyPolls;
}

/// What wakes a waiting task to look again.
#[derive(Clone, Copy)]
struct WakeOn {
    awaited: Awaited,
    /// An arrival in the part's pipe.
    arrival: bool,
    /// Anything that happens at the node.
    progress: bool,
    /// Room in the row to this node, if that is full.
    row: Option<NodeId>,
}

impl WakeOn {
    const fn arrival(awaited: Awaited) -> Self {
        Self { awaited, arrival: true, progress: false, row: None }
    }

    const fn room(node: NodeId) -> Self {
        Self { row: Some(node), ..Self::progress(Awaited::Room) }
    }

    const fn progress(awaited: Awaited) -> Self {
        Self { awaited, arrival: false, progress: true, row: None }
    }
}

/// Retries until there is a result or the task has to wait for one. `attempt` gets `true` on the last try before waiting.
fn poll_until<T, S: Share, R, E: NobodyPolls>(
    waits: &mut T,
    part: fn(&T) -> &Part<S>,
    until: WakeOn,
    cx: &mut Context<'_>,
    attempt: impl FnMut(&mut T, bool) -> Result<Option<R>, E>,
) -> Poll<Result<R, E>> {
    let polled = poll_or_wait(waits, part, until, cx, attempt);
    if polled.is_ready() && part(waits).polls_since.take().is_some() {
        part(waits).resign();
    }
    polled
}

fn poll_or_wait<T, S: Share, R, E: NobodyPolls>(
    waits: &mut T,
    part: fn(&T) -> &Part<S>,
    until: WakeOn,
    cx: &mut Context<'_>,
    mut attempt: impl FnMut(&mut T, bool) -> Result<Option<R>, E>,
) -> Poll<Result<R, E>> {
    part(waits).shared().tasks.wake();
    if let Some(done) = attempt(waits, false).transpose() {
        return Poll::Ready(done);
    }
    let this = part(waits);
    let is_inline = this.shared().settings.progress == Progress::Inline;
    let is_led = !is_inline && this.is_led();
    if !is_led {
        this.advance_node();
        if let Some(done) = attempt(waits, false).transpose() {
            return Poll::Ready(done);
        }
        if is_inline {
            return Poll::Ready(Err(E::ERROR));
        }
        if part(waits).keeps_polling(cx.waker()) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        part(waits).resign();
    }
    let this = part(waits);
    let pipe = this.pipe().ok().filter(|_| until.arrival);
    let full = until.row.filter(|node| this.finds_full(*node));
    let room = match until.progress {
        false => Room::None,
        true if full.is_some() => Room::InRow,
        true => Room::Any,
    };
    this.shared().register_waker((pipe, room), (this.id, until.awaited), cx.waker(), is_led);
    if let Some(node) = full
        && this.finds_full(node)
    {
        this.share_blocks(node);
        return Poll::Pending;
    }
    match attempt(waits, true).transpose() {
        Some(done) => Poll::Ready(done),
        None => Poll::Pending,
    }
}

/// Async calls, for any executor: they use nothing but [`std::task`]. Each does what the call without `poll_` or `_async` does, on the calling
/// thread; only the waiting is left to the executor. If two tasks wait for the same event of a part, only the last one is woken. A call that has
/// to wait first flushes what the part has packed.
///
/// A part that moves between threads must be [`Shared`](super::Shared). The futures borrow it exclusively, so that they can move to another
/// thread too. To receive and send concurrently, use two parts, or the `poll_` calls, which take the part by shared reference.
///
/// Tasks are woken by the thread that polls the node: with [`Progress::Thread`] its progress thread, with [`Progress::Host`] the program's loop,
/// which must keep running while tasks wait. With [`Progress::Inline`] there is no such thread, and a call that would have to wait returns the
/// error `NobodyPolls`. Starting a cluster, registering, look-ups, dropping a part, barriers, collective operations and device operations block:
/// call them before there are tasks, or on a thread that may block.
///
/// ```
/// use pdbp::{Cluster, PartKind};
///
/// let cluster = Cluster::local(2)?;
/// let part = |n| cluster.node(n).unwrap().register_shared("part", PartKind::Cpu).unwrap();
/// let (mut client, mut server) = (part(0), part(1));
/// let to = server.id();
/// let serving = async move {
///     let request = server.recv_async().await?;
///     server.send_async(request.source(), &request.to_ascii_uppercase()).await.unwrap();
///     server.flush(); // as usual when no waiting call follows
///     Ok::<_, pdbp::RecvError>(())
/// };
/// let asking = async move {
///     client.send_async(to, b"a request").await.unwrap();
///     assert_eq!(*client.recv_async().await?, *b"A REQUEST");
///     Ok::<_, pdbp::RecvError>(())
/// };
/// tokio::runtime::Runtime::new()?.block_on(async {
///     let serving = tokio::spawn(serving);
///     asking.await?;
///     serving.await??;
///     Ok::<_, Box<dyn std::error::Error>>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<S: Share> Part<S> {
    /// Returns the next message, as [`recv`](Self::recv). More messages may be taken with [`try_recv`](Self::try_recv) before the next call; the
    /// task is woken only after this has returned `Pending`. Dropping a waiting task loses no message: the next call returns it.
    ///
    /// # Errors
    /// [`RecvError::NobodyLeft`], [`RecvError::NoPipe`] and [`RecvError::NobodyPolls`].
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Message<S>, RecvError>> {
        if let Some(message) = self.train.next().or_else(|| self.train.next_train()) {
            return Poll::Ready(Ok(message));
        }
        self.poll_arrival(Awaited::Message, cx, Self::next_message)
    }

    /// The next message, as [`poll_recv`](Self::poll_recv).
    ///
    /// # Errors
    /// As there.
    pub async fn recv_async(&mut self) -> Result<Message<S>, RecvError> {
        let part = self;
        poll_fn(move |cx| part.poll_recv(cx)).await
    }

    /// The messages of one length from one sender that arrived together, as [`recv_batch`](Self::recv_batch).
    ///
    /// # Errors
    /// As [`poll_recv`](Self::poll_recv).
    pub fn poll_recv_batch(&self, cx: &mut Context<'_>) -> Poll<Result<Batch<S>, RecvError>> {
        poll_until(
            &mut &*self,
            |part| part,
            WakeOn::arrival(Awaited::Message),
            cx,
            |part, last| {
                part.pipe()?;
                let look = || Ok(part.next_batch());
                if last { part.unless_alone(look) } else { look() }
            },
        )
    }

    /// Whether something can be received, or a short message sent, as [`wait`](Self::wait).
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`RecvError::NobodyPolls`].
    pub fn poll_ready(&self, interest: Interest, cx: &mut Context<'_>) -> Poll<Result<Ready, RecvError>> {
        let until = WakeOn {
            awaited: Awaited::Ready,
            arrival: interest.wants_recv(),
            progress: interest.target().is_some(),
            row: None,
        };
        poll_until(
            &mut &*self,
            |part| part,
            until,
            cx,
            |part, last| {
                let look = || Ok(Some(part.look(interest)?).filter(Ready::any));
                if last && interest == Interest::Recv { part.unless_alone(look) } else { look() }
            },
        )
    }

    /// Whether something can be received, or a short message sent, as [`poll_ready`](Self::poll_ready).
    ///
    /// # Errors
    /// As there.
    pub async fn ready_async(&mut self, interest: Interest) -> Result<Ready, RecvError> {
        let part = self;
        poll_fn(move |cx| part.poll_ready(interest, cx)).await
    }

    /// Sends a message that fits in a block as soon as there is room, as [`try_send`](Self::try_send).
    ///
    /// # Errors
    /// See [`SendError`]; [`SendError::NeedsWaiting`] for a longer message, which [`send_async`](Self::send_async) sends.
    pub fn poll_send(&self, to: Target, message: &[u8], cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        if self.lanes.push_next(to, message) {
            return Poll::Ready(Ok(()));
        }
        poll_until(
            &mut &*self,
            |part| part,
            WakeOn::room(to.node()),
            cx,
            |part, last| {
                if last {
                    part.retry_now(to.node());
                }
                unless_full(part.try_send(to, message))
            },
        )
    }

    /// Sends a message of any length, as [`send`](Self::send) but without a timeout. If the task is dropped while it waits, a message that fits
    /// in a block has not been sent; a longer one is given up, and its receiver discards the segments that have arrived.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send_async(&mut self, to: Target, message: &[u8]) -> Result<(), SendError> {
        if message.len() <= self.longest() {
            let part = self;
            return poll_fn(move |cx| part.poll_send(to, message, cx)).await;
        }
        let mut part = self;
        {
            let part = &mut part;
            let until = WakeOn::progress(Awaited::Room);
            poll_fn(move |cx| {
                poll_until(part, |part| part, until, cx, |part, _| unless_full(part.check_target(to)))
            })
            .await?;
        }
        let mut long = Long::begin(part, to, message)?;
        poll_fn(move |cx| {
            poll_until(&mut long, Long::part, WakeOn::progress(Awaited::Room), cx, |long, last| {
                if last {
                    long.part().retry_now(to.node());
                }
                unless_full(long.advance(Patience::None, None))
            })
        })
        .await
    }

    /// Returns the next stream opened to this part, as [`accept_stream`](Self::accept_stream).
    ///
    /// # Errors
    /// As [`poll_recv`](Self::poll_recv).
    pub fn poll_stream(&self, cx: &mut Context<'_>) -> Poll<Result<StreamReader<&Self>, RecvError>> {
        StreamReader::poll_accept(&mut Some(self), cx)
    }

    /// Returns the next stream opened to this part, as [`accept_stream`](Self::accept_stream). The reader may move to another thread if
    /// the part may.
    ///
    /// # Errors
    /// As [`poll_stream`](Self::poll_stream).
    pub async fn accept_async(&mut self) -> Result<StreamReader<&mut Self>, RecvError> {
        let mut part = Some(self);
        poll_fn(move |cx| StreamReader::poll_accept(&mut part, cx)).await
    }

    /// Polls `take` until it finds something in the streams to this part.
    pub(super) fn poll_streams<R>(
        &self,
        cx: &mut Context<'_>,
        take: impl Fn(&Self) -> Option<R>,
    ) -> Poll<Result<R, RecvError>> {
        self.poll_arrival(Awaited::Stream, cx, take)
    }

    /// What `take` finds of what has arrived, or that nobody is left who could send it.
    #[inline]
    fn poll_arrival<R>(
        &self,
        awaited: Awaited,
        cx: &mut Context<'_>,
        take: impl Fn(&Self) -> Option<R>,
    ) -> Poll<Result<R, RecvError>> {
        poll_until(
            &mut &*self,
            |part| part,
            WakeOn::arrival(awaited),
            cx,
            |part, last| {
                part.pipe()?;
                let look = || Ok(take(part));
                if last { part.unless_alone(look) } else { look() }
            },
        )
    }
}

/// `None` if the task has to wait for room.
fn unless_full<R>(sent: Result<R, SendError>) -> Result<Option<R>, SendError> {
    match sent {
        Err(SendError::WouldBlock) => Ok(None),
        sent => sent.map(Some),
    }
}

impl<P: HoldsPart> StreamReader<P> {
    /// The next stream to a part; takes `holder` once there is one.
    fn poll_accept(holder: &mut Option<P>, cx: &mut Context<'_>) -> Poll<Result<Self, RecvError>> {
        let Some(held) = holder else { return Poll::Ready(Err(RecvError::NoPipe)) };
        let until = WakeOn::arrival(Awaited::Stream);
        let accepted = poll_until(held, P::part, until, cx, |held, last| {
            let part = held.part();
            part.pipe()?;
            let look = || Ok(part.inbox().accept(&mut Source(part)));
            if last { part.unless_alone(look) } else { look() }
        });
        accepted.map(|stream| {
            let stream = stream?;
            let held = holder.take();
            held.map(|holder| Self::of(holder, stream)).ok_or(RecvError::NoPipe)
        })
    }

    /// The next segment, as [`next_segment`](Self::next_segment).
    ///
    /// # Errors
    /// [`RecvError::StreamBroken`], [`RecvError::NoPipe`] and [`RecvError::NobodyPolls`].
    pub fn poll_segment(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Segment<P::Share>>, RecvError>> {
        if let Some(rest) = self.rest() {
            return Poll::Ready(Ok(Some(rest)));
        }
        let key = Awaited::Segment(self.key.source(), self.key.number());
        poll_until(
            self,
            |reader| reader.part.part(),
            WakeOn::arrival(key),
            cx,
            |reader, _| Ok(reader.take()?.map(|found| found.map(Segment::whole))),
        )
    }

    /// The next segment, as [`poll_segment`](Self::poll_segment).
    ///
    /// # Errors
    /// As there.
    pub async fn segment_async(&mut self) -> Result<Option<Segment<P::Share>>, RecvError> {
        poll_fn(move |cx| self.poll_segment(cx)).await
    }
}

impl<P: HoldsPart> StreamWriter<P> {
    /// Writes as many of the bytes as a segment has room for, at least one, as [`write_some`](Self::write_some).
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn poll_write(&mut self, data: &[u8], cx: &mut Context<'_>) -> Poll<Result<usize, SendError>> {
        let until = WakeOn::progress(Awaited::Writer(self.number()));
        poll_until(
            self,
            |writer| writer.part.part(),
            until,
            cx,
            |writer, _| unless_full(writer.without_waiting(|writer| writer.write_some(data))),
        )
    }

    /// Sends what has been written so far, as [`flush_segment`](Self::flush_segment).
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let until = WakeOn::progress(Awaited::Writer(self.number()));
        poll_until(
            self,
            |writer| writer.part.part(),
            until,
            cx,
            |writer, _| unless_full(writer.without_waiting(Self::flush_segment)),
        )
    }

    /// Writes all of the bytes. If the task is dropped meanwhile, only a prefix may have been written.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn write_async(&mut self, mut data: &[u8]) -> Result<(), SendError> {
        while !data.is_empty() {
            let written = poll_fn(|cx| self.poll_write(data, cx)).await?;
            data = data.get(written..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// Sends the rest and ends the stream, as [`finish`](Self::finish): `Ready` once the relay, if there is one, has accepted it.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let until = WakeOn::progress(Awaited::Writer(self.number()));
        poll_until(
            self,
            |writer| writer.part.part(),
            until,
            cx,
            |writer, _| {
                if !writer.is_over()
                    && let None = unless_full(writer.without_waiting(|writer| writer.send_last()))?
                {
                    return Ok(None);
                }
                writer.taken(&mut writer.part.part().shared().engine()).transpose()
            },
        )
    }

    /// Sends the rest and ends the stream, as [`finish`](Self::finish).
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn finish_async(mut self) -> Result<(), SendError> {
        poll_fn(move |cx| self.poll_finish(cx)).await
    }
}
