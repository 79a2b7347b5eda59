//! The course of one exchange: a message of one of the desk's parts, and the reply.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use super::envelope::CONTENT;
use super::exchange::{Outcome, Reply};
use super::fault::{Code, Fault, Reason};
use super::remote::is_returned;
use crate::error::{RecvError, SendError};
use crate::part::{Part, Shared, Target};

/// What an exchange waits for when its message has been sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    Nothing,
    /// The reply of a part of this cluster.
    Reply,
    /// That of a part of another cluster, which may give the message back instead.
    RemoteReply,
}

/// What an exchange and its run tell each other.
#[derive(Default)]
pub(super) struct Signs {
    /// All of the message has been sent.
    pub(super) sent: AtomicBool,
    /// The run is to end, and return its part.
    pub(super) given_up: AtomicBool,
}

/// Sends a message, and waits for the reply if there is to be one, unless the exchange is given up before.
pub(super) async fn run(
    part: &mut Part<Shared>,
    to: Target,
    content: Vec<u8>,
    awaited: Awaited,
    signs: &Signs,
) -> Outcome {
    unless(&signs.given_up, carry_out(part, to, content, awaited, &signs.sent)).await
}

/// Runs an exchange to its end, or until it is given up.
async fn unless(given_up: &AtomicBool, run: impl Future<Output = Outcome>) -> Outcome {
    let mut run = pin!(run);
    poll_fn(move |context| {
        if given_up.load(Ordering::Relaxed) {
            return Poll::Ready(Err(Fault::receiver(Reason::Failed, "the exchange was given up")));
        }
        run.as_mut().poll(context)
    })
    .await
}

async fn carry_out(
    part: &mut Part<Shared>,
    to: Target,
    content: Vec<u8>,
    awaited: Awaited,
    sent: &AtomicBool,
) -> Outcome {
    part.send_async(to, &content).await.map_err(|error| not_sent(&error))?;
    let length = content.len();
    drop(content);
    sent.store(true, Ordering::Relaxed);
    if awaited == Awaited::Nothing {
        part.flush();
        return Ok(Reply::Sent);
    }
    loop {
        let message = part.recv_async().await.map_err(|error| no_answer(&error))?;
        if message.source() != to {
            continue;
        }
        if awaited == Awaited::RemoteReply && is_returned(&message) {
            let why = format!(
                "the message came back undelivered: the part does not read, it or the trunk to its cluster has gone, or that cluster takes no \
                 message of {length} bytes"
            );
            return Err(Fault::receiver(Reason::Failed, why));
        }
        if message.len() > CONTENT {
            let why = format!("the answer has {} bytes; the maximum is {CONTENT}", message.len());
            return Err(Fault::receiver(Reason::TooLong, why));
        }
        return Ok(Reply::Called(message.to_vec()));
    }
}

fn not_sent(error: &SendError) -> Fault {
    match error {
        SendError::NoSuchPart(_) | SendError::NoSuchNode(_) => {
            Fault::new(Code::Sender, Reason::NoSuchPart, error.to_string())
        }
        SendError::PeerFailed(_) | SendError::RelayFailed { .. } => {
            Fault::receiver(Reason::PartGone, format!("nothing was sent: {error}"))
        }
        SendError::TooLong { .. } => Fault::new(Code::Sender, Reason::TooLong, error.to_string()),
        _ => Fault::receiver(Reason::Failed, format!("nothing was sent: {error}")),
    }
}

fn no_answer(error: &RecvError) -> Fault {
    let reason = if *error == RecvError::NobodyLeft { Reason::PartGone } else { Reason::Failed };
    Fault::receiver(reason, format!("the message was sent, but no answer can arrive: {error}"))
}
