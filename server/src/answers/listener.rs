//! The client of long work, which hears of the progress.
//!
//! Must hold: the work goes on without a client, unless it asks for the client, and never waits for long
//! for a client that takes nothing: once for the patience of a request, and not again before the client
//! takes a message. A message that was not taken does not count as delivered.

use std::sync::atomic::{AtomicBool, Ordering};

use dl_proto::Kind;
use tokio::sync::mpsc;

use crate::answers::answer::{Reply, hand_over, told_together};
use crate::error::Error;
use crate::shared::parts::Parts;

/// The other end of an answer.
#[derive(Debug)]
pub(crate) struct Listener<'a, T> {
    parts: &'a Parts,
    to: &'a mpsc::Sender<Reply<T>>,
    /// Whether the last message was not taken in time.
    is_deaf: AtomicBool,
}

impl<'a, T> Listener<'a, T> {
    pub(crate) fn new(parts: &'a Parts, to: &'a mpsc::Sender<Reply<T>>) -> Self {
        Self { parts, to, is_deaf: AtomicBool::new(false) }
    }

    /// Sends a message; false when it was not taken. For a client that is gone, every message was taken.
    pub(crate) async fn tell(&self, message: T) -> bool {
        let reply = Reply::More(message);
        let is_told = if self.is_deaf.load(Ordering::Relaxed) {
            !matches!(self.to.try_send(reply), Err(mpsc::error::TrySendError::Full(_)))
        } else {
            let told = hand_over(self.parts, self.to, reply).await;
            told.is_ok() || self.to.is_closed()
        };
        self.is_deaf.store(!is_told, Ordering::Relaxed);
        is_told
    }

    /// Sends findings in as many messages as needed, and at least in a single message. `message` makes a
    /// message of findings and of whether they are the last. Findings that were not taken stay in `found`.
    pub(crate) async fn tell_found(
        &self,
        found: &mut Vec<String>,
        message: impl Fn(Vec<String>, bool) -> T,
    ) {
        loop {
            let count = told_together(found, String::len);
            let mut rest = found.split_off(count);
            if !self.tell(message(found.clone(), rest.is_empty())).await {
                found.append(&mut rest);
                return;
            }
            *found = rest;
            if found.is_empty() {
                return;
            }
        }
    }

    /// Sends a message, if the client takes it at once; more messages will follow.
    pub(crate) fn mention(&self, message: T) {
        let _ = self.to.try_send(Reply::More(message));
    }

    /// Whether the client is gone.
    pub(crate) fn is_deserted(&self) -> bool {
        self.to.is_closed()
    }

    /// Ends the work. Fails when the client did not take the last messages, as the result is not whole.
    pub(crate) fn end(&self) -> Result<(), Error> {
        if !self.is_deaf.load(Ordering::Relaxed) {
            return Ok(());
        }
        let why = format!(
            "the work is done, but the client took nothing for {:?}; run it again",
            self.parts.limits.patience
        );
        Err(Error::new(Kind::TimedOut, "tell", "what was done", why))
    }
}

#[cfg(test)]
mod tests;
