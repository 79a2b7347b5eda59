//! All streams to a part, read together.

use std::fmt;
use std::future::poll_fn;
use std::hash::{Hash, Hasher};
use std::task::{Context, Poll};
use std::time::Duration;

use pdbp_core::id::StreamNo;
use pdbp_core::inbox::{Segment as Next, StreamKey};

use super::Segment;
#[cfg(feature = "mpi")]
use super::announced;
use super::reader::give_up;
use crate::error::RecvError;
use crate::part::inbox::Source;
use crate::part::{HoldsPart, Local, Part, Share, Target};

/// Identifies a stream among those that [`Streams`] reads: no other stream has the same identity, even after its end.
#[derive(Clone, Copy, Debug)]
pub struct StreamId {
    key: StreamKey,
    source: Target,
}

impl StreamId {
    /// The part that writes it.
    pub fn source(&self) -> Target {
        self.source
    }

    /// Its number at its source node (`Sno`), as [`StreamWriter::number`](super::StreamWriter::number) there.
    pub fn number(&self) -> StreamNo {
        self.key.number()
    }
}

impl PartialEq for StreamId {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for StreamId {}

impl Hash for StreamId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

/// The next piece of a stream.
pub enum Piece<S: Share = Local> {
    /// A segment, whole and in place. The last one may be empty.
    Data(Segment<S>),
    /// The end. Nothing more comes from the stream.
    End,
    /// The stream ended before its last segment: its writer gave it up, or failed. Nothing more comes from it.
    Broken,
}

/// Reads all streams that are opened to a part, on one thread: each call returns the next piece of any of them, and streams that have
/// something take turns, and new ones are met in the order in which their first segments have arrived. Streams that [`accept_stream`](Part::accept_stream) has returned are left to their readers. Dropping it gives
/// up the streams that it has begun to read.
///
/// ```
/// use pdbp::{Cluster, PartKind, Piece};
/// use std::collections::HashMap;
/// use std::io::Write;
/// use std::time::Duration;
///
/// let cluster = Cluster::local(2)?;
/// cluster.run(|node| {
///     let part = node.register("part", PartKind::Cpu).unwrap();
///     if node.name() == "node0" {
///         let to = part.find("part@node1", Duration::from_secs(5)).unwrap();
///         let mut streams: Vec<_> = (0..3).map(|_| part.open_stream(to).unwrap()).collect();
///         for round in 0..10u8 {
///             for stream in &mut streams {
///                 stream.write_all(&[round; 1000]).unwrap();
///                 stream.flush_segment().unwrap();
///             }
///         }
///         streams.into_iter().for_each(|stream| stream.finish().unwrap());
///     } else {
///         let (mut streams, mut bytes, mut ended) = (part.streams(), HashMap::new(), 0);
///         while ended < 3 {
///             match streams.next(Duration::from_secs(5)).unwrap() {
///                 (id, Piece::Data(segment)) => *bytes.entry(id).or_insert(0) += segment.len(),
///                 (id, Piece::End) => {
///                     assert_eq!(bytes.remove(&id), Some(10_000));
///                     ended += 1;
///                 }
///                 (id, Piece::Broken) => panic!("{} has given up its stream", id.source()),
///             }
///         }
///     }
/// });
/// # Ok::<(), pdbp::StartError>(())
/// ```
pub struct Streams<P: HoldsPart> {
    pub(in crate::part) part: P,
}

/// A stream and its next piece.
type Found<P> = (StreamId, Piece<<P as HoldsPart>::Share>);

impl<S: Share> Part<S> {
    /// Reads all streams that are opened to this part together. In a task that may move to another thread, use
    /// [`Streams::of(&mut part)`](Streams::of).
    pub fn streams(&self) -> Streams<&Self> {
        Streams::of(self)
    }
}

impl<P: HoldsPart> Streams<P> {
    /// As [`Part::streams`], for one that holds its part by `Rc` or `&mut`.
    pub fn of(holder: P) -> Self {
        Self { part: holder }
    }

    /// Waits up to `timeout` for the next piece of any stream. First flushes what the part has packed.
    ///
    /// # Errors
    /// As [`Part::recv_timeout`].
    pub fn next(&mut self, timeout: Duration) -> Result<Found<P>, RecvError> {
        let part = self.part.part();
        part.pipe()?;
        part.receive_by(timeout, "written to a stream to this part", |part| Ok(take(part)))
    }

    /// The next piece of any stream, if one has arrived. Does not wait, but lets the node make progress.
    ///
    /// # Errors
    /// [`RecvError::NoPipe`].
    pub fn try_next(&mut self) -> Result<Option<Found<P>>, RecvError> {
        let part = self.part.part();
        part.pipe()?;
        Ok(take(part).or_else(|| (part.poll() > 0).then(|| take(part)).flatten()))
    }

    /// The next piece of any stream, as [`next`](Self::next).
    ///
    /// # Errors
    /// As [`Part::poll_recv`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Found<P>, RecvError>> {
        self.part.part().poll_streams(cx, take)
    }

    /// The next piece of any stream, as [`poll_next`](Self::poll_next).
    ///
    /// # Errors
    /// As there.
    pub async fn next_async(&mut self) -> Result<Found<P>, RecvError> {
        poll_fn(move |cx| self.poll_next(cx)).await
    }

    /// Gives up a stream before its end: what has arrived of it is discarded, and the rest as it arrives.
    pub fn give_up(&mut self, stream: StreamId) {
        give_up(self.part.part(), stream.key);
    }
}

impl<P: HoldsPart> Drop for Streams<P> {
    fn drop(&mut self) {
        let part = self.part.part();
        // The borrow ends with this expression: giving up takes its own.
        while let Some(key) = { part.inbox().read_together() } {
            give_up(part, key);
        }
    }
}

impl<P: HoldsPart> fmt::Debug for Streams<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Streams(to {})", self.part.part().id())
    }
}

impl<S: Share> fmt::Debug for Piece<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(segment) => write!(f, "Data({} bytes)", segment.len()),
            Self::End => f.write_str("End"),
            Self::Broken => f.write_str("Broken"),
        }
    }
}

#[cfg_attr(not(feature = "mpi"), expect(clippy::never_loop, reason = "what MPI announces is passed over"))]
fn take<S: Share>(part: &Part<S>) -> Option<(StreamId, Piece<S>)> {
    loop {
        let (stream, next) = part.inbox().next_of_streams(&mut Source(part))?;
        let piece = match next {
            Next::Data(run) => {
                #[cfg(feature = "mpi")]
                if let Some(announced) = announced::announcement(&run) {
                    // The data that MPI would carry then comes in blocks.
                    announced::refuse(part.shared(), stream.key.source(), announced);
                    continue;
                }
                Piece::Data(Segment::whole(run))
            }
            Next::End => Piece::End,
            Next::Broken => Piece::Broken,
            // Never: only streams that have something take turns.
            Next::Nothing | Next::Unknown => return None,
        };
        let source = part.shared().resolve(stream.source.address());
        return Some((StreamId { key: stream.key, source }, piece));
    }
}
