//! Requests with long answers, whose time counts from the last bytes that came.
//!
//! Must hold: an answer that comes slowly is not given up; one that brings nothing new ends within the
//! usual time.

use crate::error::{Error, Kind};
use crate::remote::connections::{Connection, Connections, Try};
use crate::remote::failure::Failure;

impl Connections {
    /// Like [`call`](Self::call), again for as long as new bytes come. `moved` takes the time at which new
    /// bytes last came, if any came since the last call of `moved`.
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
                // What was said when there was time for an answer says more.
                (None, Some(before)) if error.kind() == Kind::TimedOut => return Err(before),
                (None, _) => return Err(error),
            }
        }
    }
}
