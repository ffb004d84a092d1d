//! A request over all of its tries: its time, its reports, and its error.
//!
//! Must hold: the time of a request moves on while bytes of the request move, within a last limit.
//! Time in which the process itself was stopped does not count.

use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dl_runtime::{Clock, Deadline, locked};

use super::attempt::{SILENCE, Try, attended};
use super::replies::Replies;
use super::server::Server;
use crate::error::{Error, Kind};
use crate::remote::failure::Failure;
use crate::remote::options::{OnRetry, Retry};

/// Factor for the time of requests that make the server work through a whole dataset.
const LONG: u32 = 60;
/// The minimum time of a try, if the time of the request allows a second try. A busy server refuses
/// after 10 s.
const TRY_AT_LEAST: Duration = Duration::from_secs(12);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Time of all tries together.
    pub(super) total: Duration,
    /// Time of a try; for a stream, the time until each next message.
    pub(super) attempt: Duration,
    reports_silence: bool,
}

impl Patience {
    /// Shares the time among the servers, so a silent server costs only a part.
    pub(super) fn among(servers: usize, total: Duration) -> Self {
        let servers = u32::try_from(servers).unwrap_or(u32::MAX);
        let attempt = total / servers.saturating_add(1);
        Self { total, attempt, reports_silence: true }
    }

    /// Makes tries long enough for the refusal of a busy server.
    pub(super) fn patient(self) -> Self {
        Self { attempt: self.attempt.max(TRY_AT_LEAST.min(self.total / 2)), ..self }
    }

    /// More time, for requests that make the server work through a whole dataset.
    pub(super) fn long(self) -> Self {
        let (total, attempt) = (self.total.saturating_mul(LONG), self.attempt.saturating_mul(LONG));
        Self { total, attempt, reports_silence: false }
    }

    /// The rest after some time of silence.
    pub(crate) fn less(self, waited: Duration) -> Self {
        Self { total: self.total.saturating_sub(waited), ..self }
    }

    /// The rest after some time of silence; none if no time is left.
    pub(crate) fn left(self, waited: Duration) -> Option<Self> {
        Some(self.less(waited)).filter(|left| !left.total.is_zero())
    }
}

pub(super) struct Call<'a, S> {
    clock: &'a dyn Clock,
    on_retry: Option<&'a OnRetry>,
    action: &'static str,
    subject: S,
    patience: Patience,
    began: Duration,
    limits: Mutex<Limits>,
    replies: Mutex<Replies>,
}

/// The end of a request's time, which progress moves on up to the last limit.
#[derive(Clone, Copy)]
struct Limits {
    deadline: Deadline,
    last: Deadline,
}

impl<'a, S: Fn() -> String> Call<'a, S> {
    pub(super) fn new(
        clock: &'a dyn Clock,
        on_retry: Option<&'a OnRetry>,
        action: &'static str,
        subject: S,
        patience: Patience,
    ) -> Self {
        let limits = Mutex::new(Limits {
            deadline: Deadline::after(clock, patience.total),
            last: Deadline::after(clock, patience.total.saturating_mul(LONG)),
        });
        let (began, replies) = (clock.monotonic(), Mutex::default());
        Self { clock, on_retry, action, subject, patience, began, limits, replies }
    }

    pub(super) fn deadline(&self) -> Deadline {
        locked(&self.limits).deadline
    }

    /// Reports the state of the request, unless no server has failed yet. `until` is the end of a
    /// stream's time, which may be later than the end of the request's time.
    pub(super) fn report(&self, until: Duration) {
        let Some(on_retry) = self.on_retry else { return };
        let Some(reason) = locked(&self.replies).text() else { return };
        let now = self.clock.monotonic();
        on_retry(&Retry {
            action: self.action,
            subject: (self.subject)(),
            reason,
            waited: now.saturating_sub(self.began),
            left: self.deadline().remaining(self.clock).max(until.saturating_sub(now)),
        });
    }

    /// Waits for the end of a try, with reports of silence, and keeps the reply of the server.
    pub(super) async fn attend<T>(
        &self,
        index: usize,
        server: &Server,
        this: Try,
        attempted: Pin<Box<impl Future<Output = Result<T, Failure>>>>,
    ) -> Result<T, Failure> {
        let ended = if self.patience.reports_silence {
            let report = |silent: Duration| {
                let failure = Failure::silent_for(silent).at(&server.address);
                locked(&self.replies).add(index, failure);
                self.report(this.awaited.until.get());
            };
            attended(self.clock, || this.last_sign(), attempted, report).await
        } else {
            attempted.await
        };
        let is_silent = ended.as_ref().is_err_and(|failure| failure.is_silence);
        server.needs_probe.store(is_silent, Ordering::Relaxed);
        let failure = match ended {
            Ok(done) => return Ok(done),
            Err(failure) => failure.at(&server.address),
        };
        if failure.kind.is_retryable() {
            server.avoid(self.clock.monotonic(), is_silent);
        }
        self.extend(&this);
        locked(&self.replies).add(index, failure.clone());
        Err(failure)
    }

    /// Gives the request more time, for a try with progress or for a stopped process.
    fn extend(&self, this: &Try) {
        let (began, progress) = (this.began, this.flow.last_progress());
        let limit = began.max(progress).saturating_add(self.patience.attempt);
        let lost = stopped_for(limit, self.clock.monotonic());
        let mut limits = locked(&self.limits);
        let last = limits.last.later(lost);
        let deadline = limits.deadline.later(progress.saturating_sub(began)).later(lost);
        *limits = Limits { deadline: deadline.min(last), last };
    }

    /// The error of the request after its last failure.
    pub(super) fn error(&self, last: Failure) -> Error {
        let subject = (self.subject)();
        if !last.kind.is_retryable() {
            return Error::new(last.kind, self.action, subject, last);
        }
        let replies = locked(&self.replies);
        let kind = if replies.are_unreachable() { Kind::Unreachable } else { last.kind };
        let reason = replies.text().unwrap_or_default();
        Error::new(kind, self.action, subject, Failure::new(kind, reason))
    }
}

/// The time for which the process itself was stopped, by the late end of a try: no server could
/// answer in time then.
fn stopped_for(limit: Duration, ended: Duration) -> Duration {
    let over = ended.saturating_sub(limit);
    if over > SILENCE { over } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_stopped_process_does_not_count() {
        let lost =
            |ended| stopped_for(Duration::from_secs(30), Duration::from_secs(ended)).as_secs();
        assert_eq!([20, 30, 34, 36, 100].map(lost), [0, 0, 0, 6, 70]);
    }

    #[test]
    fn a_try_outlasts_the_refusal_of_a_busy_server() {
        let tried_for = |servers| {
            let patience = Patience::among(servers, Duration::from_secs(60));
            (patience.attempt.as_secs(), patience.patient().attempt.as_secs())
        };
        assert_eq!([1, 2, 3, 100].map(tried_for), [(30, 30), (20, 20), (15, 15), (0, 12)]);
        let short = Patience::among(100, Duration::from_secs(2)).patient();
        assert_eq!(short.attempt, Duration::from_secs(1));
    }
}
