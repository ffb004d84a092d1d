//! The client of long work, with messages about progress.
//!
//! Must hold: the work continues without a client, unless it asks for the client. A client that takes nothing
//! delays the work once, for a request's patience, until its next message. Messages not taken are not
//! delivered.

use std::sync::atomic::{AtomicBool, Ordering};

use dl_proto::Kind;
use tokio::sync::mpsc;

use crate::answers::answer::{Reply, hand_over, told_together};
use crate::error::Error;
use crate::shared::context::ServerContext;

/// The receiver of an answer.
#[derive(Debug)]
pub(crate) struct Listener<'a, T> {
    context: &'a ServerContext,
    to: &'a mpsc::Sender<Reply<T>>,
    /// Whether the last message was not taken in time.
    is_deaf: AtomicBool,
}

impl<'a, T> Listener<'a, T> {
    pub(crate) fn new(context: &'a ServerContext, to: &'a mpsc::Sender<Reply<T>>) -> Self {
        Self { context, to, is_deaf: AtomicBool::new(false) }
    }

    /// Sends a message; false when the client did not take the message. A client that is gone takes all.
    pub(crate) async fn tell(&self, message: T) -> bool {
        let reply = Reply::More(message);
        let is_told = if self.is_deaf.load(Ordering::Relaxed) {
            !matches!(self.to.try_send(reply), Err(mpsc::error::TrySendError::Full(_)))
        } else {
            let told = hand_over(self.context, self.to, reply).await;
            told.is_ok() || self.to.is_closed()
        };
        self.is_deaf.store(!is_told, Ordering::Relaxed);
        is_told
    }

    /// Sends findings in one or more messages; findings not taken stay in `found`. `message` gets findings, and
    /// whether they are the last.
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

    /// Sends a message only if there is room at once.
    pub(crate) fn mention(&self, message: T) {
        let _ = self.to.try_send(Reply::More(message));
    }

    /// Whether the client is gone.
    pub(crate) fn is_deserted(&self) -> bool {
        self.to.is_closed()
    }

    /// Ends the work. Fails if the last message was not taken, as the result is incomplete.
    pub(crate) fn end(&self) -> Result<(), Error> {
        if !self.is_deaf.load(Ordering::Relaxed) {
            return Ok(());
        }
        let why = format!(
            "the work is done, but the client took nothing for {:?}; run it again",
            self.context.limits.patience
        );
        Err(Error::new(Kind::TimedOut, "tell", "what was done", why))
    }
}

#[cfg(test)]
mod tests;
