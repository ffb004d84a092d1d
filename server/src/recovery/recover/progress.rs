//! Progress reports of the recovery of a dataset.
//!
//! Must hold: each problem is sent once, and the last report says that the dataset is done.

use std::fmt::Display;

use dl_proto::RecoverProgress;

use crate::answers::listener::Listener;
use crate::error::Error;

/// The progress is sent after so many objects.
const SEND_EVERY: u64 = 64;

#[derive(Debug)]
pub(super) struct Progress<'a> {
    pub(super) state: RecoverProgress,
    to: &'a Listener<'a, RecoverProgress>,
}

impl<'a> Progress<'a> {
    pub(super) fn of(name: &impl Display, to: &'a Listener<'a, RecoverProgress>) -> Self {
        let state = RecoverProgress {
            dataset: name.to_string(),
            listed: 0,
            checked: 0,
            adopted: 0,
            files: 0,
            problems: Vec::new(),
            done: false,
        };
        Self { state, to }
    }

    /// Nothing can be done for the dataset now.
    pub(super) async fn fail(self, error: &Error) {
        self.report(error.chain()).await;
    }

    /// The same, for another reason.
    pub(super) async fn report(mut self, problem: String) {
        self.state.problems.push(problem);
        self.end().await;
    }

    pub(super) async fn end(mut self) {
        self.state.done = true;
        self.send().await;
    }

    async fn send(&mut self) {
        let mut problems = std::mem::take(&mut self.state.problems);
        let state = &self.state;
        let message = |problems, is_last| RecoverProgress {
            problems,
            done: state.done && is_last,
            ..state.clone()
        };
        self.to.tell_found(&mut problems, message).await;
        self.state.problems = problems;
    }

    /// Sends the progress where there are problems; numbers alone now and then.
    pub(super) async fn send_now_and_then(&mut self) {
        if !self.state.problems.is_empty() {
            self.send().await;
        } else if self.state.checked.is_multiple_of(SEND_EVERY) {
            self.to.mention(self.state.clone());
        }
    }
}
