//! Streamed answers: from the task that works on a request to its connection.
//!
//! Must hold: how the work ended comes last, so that a client never takes an answer that broke off
//! for all there is; an answer holds the lease of its request until its stream is dropped, and
//! what is handed to the connection holds it as well; the work for a client that takes nothing ends.

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dl_proto::Kind;
use futures::{Stream, StreamExt, stream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::{Response, Status};
use tracing::Instrument;

use crate::error::Error;
use crate::lease::Lease;
use crate::parts::Parts;

/// How long an answer waits for its first message, to be sent together with it: the other end
/// wakes up once.
const TOGETHER: Duration = Duration::from_millis(2);

/// Messages of an answer.
pub(crate) type Replies<W> = Pin<Box<dyn Stream<Item = Result<W, Status>> + Send>>;

/// A message on its way to the connection.
#[derive(Debug)]
pub(crate) enum Reply<T> {
    /// More may come.
    More(T),
    /// The last one of an answer that is complete, so that its end is sent together with it.
    Last(T),
}

/// Hands a message to the connection.
///
/// # Errors
/// [`Kind::Cancelled`] when the client is gone, [`Kind::TimedOut`] when it takes nothing for so
/// long that it must not keep the work waiting.
pub(crate) async fn hand_over<T>(
    parts: &Parts,
    replies: &mpsc::Sender<Reply<T>>,
    reply: Reply<T>,
) -> Result<(), Error> {
    let patience = parts.limits.patience;
    tokio::select! {
        biased;
        sent = replies.send(reply) => sent.map_err(|_| {
            Error::new(Kind::Cancelled, "send", "an answer", "the client is gone")
        }),
        () = parts.clock.sleep(patience) => {
            let why = format!("the client took nothing for {patience:?}; ask again for the rest");
            Err(Error::new(Kind::TimedOut, "send", "an answer", why))
        }
    }
}

/// Answers as messages come from `work`, which is a task of its own.
pub(crate) async fn answer<T: Send + 'static, W: Send + 'static>(
    parts: &Parts,
    work: impl Future<Output = Result<(), Error>> + Send + 'static,
    replies: mpsc::Receiver<Reply<T>>,
    to_wire: impl Fn(T) -> W + Send + 'static,
) -> Result<Response<Replies<W>>, Status> {
    let state = Answer { work: Some(tokio::spawn(work.in_current_span())), replies };
    let messages = stream::unfold(state, |mut state| async move {
        let message = state.next().await?;
        Some((message, state))
    });
    let mut messages = Box::pin(messages.map(move |message| message.map(&to_wire)));
    let first = tokio::select! {
        biased;
        first = messages.next() => first,
        () = parts.clock.sleep(TOGETHER) => return Ok(Response::new(messages)),
    };
    match first {
        Some(Ok(first)) => {
            Ok(Response::new(Box::pin(stream::once(ready(Ok(first))).chain(messages))))
        }
        Some(Err(status)) => Err(status),
        None => Ok(Response::new(Box::pin(stream::empty()))),
    }
}

/// The same for work whose memory is in `lease`, until all of the answer is sent.
pub(crate) async fn answer_with<T: Send + 'static, W: Send + 'static>(
    parts: &Parts,
    lease: Arc<Lease>,
    work: impl Future<Output = Result<(), Error>> + Send + 'static,
    replies: mpsc::Receiver<Reply<T>>,
    to_wire: impl Fn(T) -> W + Send + 'static,
) -> Result<Response<Replies<W>>, Status> {
    let held = Arc::clone(&lease);
    // With its messages, and what they were made from.
    let to_wire = move |message| {
        let _held = &held;
        to_wire(message)
    };
    let mut response = answer(parts, work, replies, to_wire).await?;
    response.extensions_mut().insert(lease);
    Ok(response)
}

struct Answer<T> {
    /// None when the answer has ended.
    work: Option<JoinHandle<Result<(), Error>>>,
    replies: mpsc::Receiver<Reply<T>>,
}

impl<T> Answer<T> {
    async fn next(&mut self) -> Option<Result<T, Status>> {
        let work = self.work.as_mut()?;
        let failure = match self.replies.recv().await {
            Some(Reply::More(message)) => return Some(Ok(message)),
            Some(Reply::Last(message)) => {
                self.work = None;
                return Some(Ok(message));
            }
            None => match work.await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error),
                Err(error) => Some(Error::new(Kind::Internal, "answer", "the request", error)),
            },
        };
        self.work = None;
        failure.map(|error| Err(error.into()))
    }
}
