//! Polls for tasks of asyncio, used by `pypdbp/_asyncio.py`. Each call returns whether the part's descriptor was readable until now, which other
//! tasks may wait for, and what is available. If nothing is, the descriptor becomes readable when it is time to check again.

use std::task::{Context, Poll};

use pyo3::prelude::*;

use super::held::Held;
use super::{Batch, Message, Part, Piece, Target};
use crate::buffer::with_bytes;
use crate::error::Failure;
use crate::events::Cleared;

fn poll<R, E: Into<Failure>>(
    part: &Part,
    py: Python<'_>,
    look: impl FnOnce(&mut Held, &mut Context<'_>) -> Poll<Result<R, E>>,
) -> PyResult<(bool, Option<R>)> {
    let wakes = part.cell.wakes()?;
    Ok(part.cell.with(py, |held| {
        let cleared = Cleared::new(wakes);
        let found = match look(held, &mut wakes.context()) {
            Poll::Ready(found) => Some(found.map_err(Into::into)?),
            Poll::Pending => None,
        };
        Ok((cleared.was_rung(), found))
    })?)
}

/// The next message.
#[pyfunction]
pub(crate) fn _poll_recv(py: Python<'_>, part: PyRef<'_, Part>) -> PyResult<(bool, Option<Message>)> {
    let (rung, message) = poll(&part, py, |held, context| held.part().poll_recv(context))?;
    Ok((rung, message.map(|message| Message::new(&part.cell, message))))
}

/// The next messages that arrived together.
#[pyfunction]
pub(crate) fn _poll_batch(py: Python<'_>, part: PyRef<'_, Part>) -> PyResult<(bool, Option<Batch>)> {
    let (rung, batch) = poll(&part, py, |held, context| held.part().poll_recv_batch(context))?;
    Ok((rung, batch.map(|batch| Batch::new(&part.cell, batch))))
}

/// The next piece of any stream.
#[pyfunction]
pub(crate) fn _poll_piece(py: Python<'_>, part: PyRef<'_, Part>) -> PyResult<(bool, Option<Piece>)> {
    let (rung, piece) = poll(&part, py, |held, context| held.together().poll_next(context))?;
    Ok((rung, piece.map(|piece| Piece::new(&part.cell, piece))))
}

/// Sends a message of a block or less; `Some` when it is sent.
#[pyfunction]
pub(crate) fn _poll_send(
    py: Python<'_>,
    part: PyRef<'_, Part>,
    to: Target,
    data: &Bound<'_, PyAny>,
) -> PyResult<(bool, Option<bool>)> {
    let (rung, sent) = with_bytes(data, |bytes| {
        poll(&part, py, |held, context| match held.check(to.0) {
            Ok(to) => held.part().poll_send(to, bytes, context).map_err(Failure::from),
            Err(failure) => Poll::Ready(Err(failure)),
        })
    })?;
    Ok((rung, sent.map(|()| true)))
}
