//! Whoever asked for long work and is told how far it is.
//!
//! Must hold: the work goes on when nobody listens, unless it asks for that, and never waits for long
//! for somebody who takes nothing: once for the patience of a request, and not again before that one
//! takes something. What was not told is not taken for told.

use std::sync::atomic::{AtomicBool, Ordering};

use dl_proto::Kind;
use tokio::sync::mpsc;

use crate::answer::{Reply, hand_over, told_together};
use crate::error::Error;
use crate::parts::Parts;

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

    /// Tells something; false when it was not taken. Who is gone is as good as told.
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

    /// Tells what was found, in as many messages as that takes, one at least: `message` makes them, of
    /// findings and of whether they are the last ones. What was not taken stays in `found`.
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

    /// Tells something of which more will follow, if that can be done at once.
    pub(crate) fn mention(&self, message: T) {
        let _ = self.to.try_send(Reply::More(message));
    }

    /// Whether nobody listens any more.
    pub(crate) fn is_deserted(&self) -> bool {
        self.to.is_closed()
    }

    /// To be called at the end: fails when the last messages were not taken, so that nobody takes
    /// what came before them for all there is.
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
