//! Streams with the traits of the crate `futures-io`: for smol and others, and through an adaptor (`tokio_util::compat`) for tokio.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

use super::segment::data_of;
use super::{HoldsPart, StreamReader, StreamWriter};

impl<P: HoldsPart + Unpin> AsyncBufRead for StreamReader<P> {
    /// The unread bytes of one segment, in place; empty at the end of the stream.
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let reader = self.get_mut();
        while reader.unread().is_empty() {
            // The last segment of a stream may be empty.
            (reader.current, reader.at) = (None, 0);
            match ready!(reader.poll_segment(cx)) {
                Ok(Some(segment)) => {
                    reader.at = segment.start as usize;
                    reader.current = Some(segment.run);
                }
                Ok(None) => return Poll::Ready(Ok(&[])),
                Err(e) => return Poll::Ready(Err(e.into())),
            }
        }
        Poll::Ready(Ok(reader.unread()))
    }

    fn consume(self: Pin<&mut Self>, bytes: usize) {
        let reader = self.get_mut();
        reader.at += bytes.min(reader.unread().len());
        if reader.unread().is_empty() {
            // Returns its block.
            (reader.current, reader.at) = (None, 0);
        }
    }
}

impl<P: HoldsPart> StreamReader<P> {
    /// The unread rest of the current segment.
    fn unread(&self) -> &[u8] {
        self.current.as_ref().and_then(|run| data_of(run).get(self.at..)).unwrap_or(&[])
    }
}

impl<P: HoldsPart + Unpin> AsyncRead for StreamReader<P> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut [u8]) -> Poll<io::Result<usize>> {
        if to.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let from = ready!(self.as_mut().poll_fill_buf(cx))?;
        let taken = from.len().min(to.len());
        to.split_at_mut(taken).0.copy_from_slice(from.split_at(taken).0);
        self.consume(taken);
        Poll::Ready(Ok(taken))
    }
}

impl<P: HoldsPart + Unpin> AsyncWrite for StreamWriter<P> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write(data, cx).map_err(io::Error::from)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flush(cx).map_err(io::Error::from)
    }

    /// Ends the stream, as [`finish`](StreamWriter::finish).
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_finish(cx).map_err(io::Error::from)
    }
}
