//! Requests with long answers, whose time counts from the last received bytes.
//!
//! Must hold: a slow answer is not given up. A request without new bytes ends within the usual
//! time.

use crate::error::{Error, Kind};
use crate::remote::connections::{Connection, Connections, Try};
use crate::remote::failure::Failure;

impl Connections {
    /// Like [`call`](Self::call), repeated while new bytes come. `moved` gives the time of the last
    /// new bytes, if there were any since the last call of `moved`.
    pub(crate) async fn call_while_moving<Attempt: Future<Output = Result<(), Failure>>>(
        &self,
        action: &'static str,
        subject: impl Fn() -> String,
        attempt: impl Fn(Connection, Try) -> Attempt,
        moved: impl Fn() -> Option<std::time::Duration>,
    ) -> Result<(), Error> {
        let (mut patience, mut before) = (self.usual(), None);
        loop {
            let error = match self.call(action, &subject, patience, &attempt).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let moved = moved().filter(|_| error.kind().is_retryable());
            let left = moved.and_then(|at| self.usual().left(self.now().saturating_sub(at)));
            match (left, before) {
                (Some(left), _) => (patience, before) = (left, Some(error)),
                // The error with the full time limit says more.
                (None, Some(before)) if error.kind() == Kind::TimedOut => return Err(before),
                (None, _) => return Err(error),
            }
        }
    }
}
