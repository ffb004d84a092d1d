//! Streamed answers: from the task that works on a request to its connection.
//!
//! Must hold: the end of the work comes last, so that a client never takes an answer that broke off for
//! a whole answer; the stream of an answer, and its pieces in the connection, hold the memory of the
//! request; the work for a client that takes nothing ends.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dl_proto::Kind;
use futures::{Stream, StreamExt, stream};
use tokio::sync::mpsc;
use tonic::{Response, Status};

use crate::answers::reservation::Reservation;
use crate::error::Error;
use crate::shared::context::ServerContext;

/// Most time that an answer waits for its first message, to be sent together with the message.
const BATCH_DELAY: Duration = Duration::from_millis(2);

/// Most findings of long work in a message, and about how many bytes of them. A message has room for
/// more, but not for all possible findings of a dataset.
pub(crate) const TOLD_TOGETHER: usize = 1_000;
const TOLD_BYTES: usize = 1 << 20;

/// Bytes of a piece in a message beside its content.
const PIECE_OVERHEAD: usize = 64;

/// Messages of an answer.
pub(crate) type Replies<W> = Pin<Box<dyn Stream<Item = Result<W, Status>> + Send>>;

/// A message on its way to the connection.
#[derive(Debug)]
pub(crate) enum Reply<T> {
    /// More may come.
    More(T),
    /// The last message of a complete answer, whose end is sent together with the message.
    Last(T),
}

/// Hands a message to the connection.
///
/// # Errors
/// [`Kind::Cancelled`] when the client is gone, [`Kind::TimedOut`] when the client took nothing for too
/// long.
pub(crate) async fn hand_over<T>(
    context: &ServerContext,
    replies: &mpsc::Sender<Reply<T>>,
    reply: Reply<T>,
) -> Result<(), Error> {
    let patience = context.limits.patience;
    tokio::select! {
        biased;
        sent = replies.send(reply) => sent.map_err(|_| {
            Error::new(Kind::Cancelled, "send", "an answer", "the client is gone")
        }),
        () = context.clock.sleep(patience) => {
            let why = format!("the client took nothing for {patience:?}; ask again for the rest");
            Err(Error::new(Kind::TimedOut, "send", "an answer", why))
        }
    }
}

/// Hands several messages to the connection; with `are_last` they end the answer.
///
/// # Errors
/// As [`hand_over`].
pub(crate) async fn hand_over_all<T>(
    context: &ServerContext,
    replies: &mpsc::Sender<Reply<T>>,
    messages: Vec<T>,
    are_last: bool,
) -> Result<(), Error> {
    let mut messages = messages.into_iter().peekable();
    while let Some(message) = messages.next() {
        let is_last = are_last && messages.peek().is_none();
        let reply = if is_last { Reply::Last(message) } else { Reply::More(message) };
        hand_over(context, replies, reply).await?;
    }
    Ok(())
}

/// Pieces in messages of about `message_bytes` each. `bytes` is the size of the content of a piece.
pub(crate) fn in_messages<P>(
    pieces: Vec<P>,
    bytes: impl Fn(&P) -> usize,
    message_bytes: usize,
) -> Vec<Vec<P>> {
    let mut messages = Vec::new();
    let (mut message, mut sum) = (Vec::new(), 0);
    for piece in pieces {
        let more = bytes(&piece).saturating_add(PIECE_OVERHEAD);
        if sum + more > message_bytes + message_bytes / 4 && !message.is_empty() {
            messages.push(std::mem::take(&mut message));
            sum = 0;
        }
        sum += more;
        message.push(piece);
    }
    if !message.is_empty() {
        messages.push(message);
    }
    messages
}

/// The number of first findings that fit into a message, at least 1; `bytes` is the size of a finding.
pub(crate) fn told_together<T>(found: &[T], bytes: impl Fn(&T) -> usize) -> usize {
    let mut sum = 0usize;
    for (count, one) in found.iter().enumerate() {
        sum = sum.saturating_add(bytes(one));
        if count > 0 && (count >= TOLD_TOGETHER || sum > TOLD_BYTES) {
            return count;
        }
    }
    found.len()
}

/// Answers with the messages of `work`, which is a separate task.
pub(crate) async fn answer<T: Send + 'static, W: Send + 'static>(
    context: &ServerContext,
    work: impl Future<Output = Result<(), Error>> + Send + 'static,
    replies: mpsc::Receiver<Reply<T>>,
    to_wire: impl Fn(T) -> W + Send + 'static,
) -> Result<Response<Replies<W>>, Status> {
    let messages = stream::unfold(Some((dl_runtime::spawn(work), replies)), |state| async move {
        let (work, mut replies) = state?;
        let failure = match replies.recv().await {
            Some(Reply::More(message)) => return Some((Ok(message), Some((work, replies)))),
            Some(Reply::Last(message)) => return Some((Ok(message), None)),
            None => match work.await {
                Ok(ended) => ended.err()?,
                Err(error) => Error::new(Kind::Internal, "answer", "the request", error),
            },
        };
        Some((Err(Status::from(failure)), None))
    });
    let mut messages = Box::pin(messages.map(move |message| message.map(&to_wire)));
    let first = tokio::select! {
        biased;
        first = messages.next() => first,
        () = context.clock.sleep(BATCH_DELAY) => return Ok(Response::new(messages)),
    };
    match first {
        Some(Ok(first)) => {
            Ok(Response::new(Box::pin(stream::once(ready(Ok(first))).chain(messages))))
        }
        Some(Err(status)) => Err(status),
        None => Ok(Response::new(Box::pin(stream::empty()))),
    }
}

/// The same for work with reserved memory, until the whole answer is sent.
pub(crate) async fn answer_with<T: Send + 'static, W: Send + 'static>(
    context: &ServerContext,
    memory: Arc<Reservation>,
    work: impl Future<Output = Result<(), Error>> + Send + 'static,
    replies: mpsc::Receiver<Reply<T>>,
    to_wire: impl Fn(T) -> W + Send + 'static,
) -> Result<Response<Replies<W>>, Status> {
    let held = Arc::clone(&memory);
    // With its messages, and the bytes that they were made from.
    let to_wire = move |message| {
        let _held = &held;
        to_wire(message)
    };
    let mut response = answer(context, work, replies, to_wire).await?;
    response.extensions_mut().insert(memory);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_limit_findings_and_their_bytes() {
        let told = |length: usize, count: usize| {
            told_together(&vec!["x".repeat(length); count], String::len)
        };
        assert_eq!((told(1, 0), told(1, 1), told(1, 5_000)), (0, 1, TOLD_TOGETHER));
        // Paths are long, at the most.
        assert_eq!((told(8 << 10, 128), told(8 << 10, 5_000)), (128, 128));
        assert_eq!(told(2 * TOLD_BYTES, 3), 1, "one that is longer than all of it");
    }
}
