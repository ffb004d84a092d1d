//! The request to stop a process: finish running work within a grace period, then end.
//!
//! Must hold: all clones see the same request. A second request ends the grace period at once, so that a
//! second Ctrl-C works.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::Clock;

/// A request to stop. Clones are the same request.
#[derive(Debug, Clone)]
pub struct Shutdown {
    stop: CancellationToken,
    hurry: CancellationToken,
    grace: Duration,
}

impl Shutdown {
    /// Not requested yet, with a grace period of ten seconds.
    pub fn new() -> Self {
        Self {
            stop: CancellationToken::new(),
            hurry: CancellationToken::new(),
            grace: Duration::from_secs(10),
        }
    }

    /// The same, with another grace period.
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Asks to stop when the process gets SIGTERM or SIGINT.
    ///
    /// # Errors
    /// The kernel refuses the signal handlers.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn on_signals(self) -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let asked = self.clone();
        crate::spawn(async move {
            while !asked.hurry.is_cancelled() {
                tokio::select! {
                    _ = terminate.recv() => tracing::info!("stopping: SIGTERM"),
                    _ = interrupt.recv() => tracing::info!("stopping: SIGINT"),
                }
                asked.request();
            }
        });
        Ok(self)
    }

    /// Asks to stop. A second call ends the grace period.
    pub fn request(&self) {
        if self.stop.is_cancelled() {
            self.hurry.cancel();
        }
        self.stop.cancel();
    }

    /// Whether the stop was requested.
    pub fn is_requested(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Completes when the stop is requested: callers begin no new work.
    pub async fn requested(&self) {
        self.stop.cancelled().await;
    }

    /// Completes when the grace period after the request is over: drop what is in flight.
    pub async fn expired(&self, clock: &dyn Clock) {
        self.stop.cancelled().await;
        tokio::select! {
            () = clock.sleep(self.grace) => {}
            () = self.hurry.cancelled() => {}
        }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::ManualClock;

    #[tokio::test]
    async fn grace_begins_with_a_stop_and_a_second_stop_ends_it() {
        let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
        let shutdown = Shutdown::new().with_grace(Duration::from_secs(3));
        let (waiting, time) = (shutdown.clone(), Arc::clone(&clock));
        let expired = crate::spawn(async move { waiting.expired(&*time).await });
        clock.advance(Duration::from_secs(60));
        shutdown.request();
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(2));
        tokio::task::yield_now().await;
        assert!(!expired.is_finished());
        clock.advance(Duration::from_secs(1));
        expired.await.unwrap();
        let again = Shutdown::new();
        again.request();
        again.clone().request();
        again.expired(&*clock).await;
    }

    #[tokio::test]
    async fn a_termination_signal_is_a_request() {
        let shutdown = Shutdown::new().on_signals().unwrap();
        let process = std::process::id().to_string();
        let sent = std::process::Command::new("kill").args(["-TERM", &process]).status();
        assert!(sent.unwrap().success());
        shutdown.requested().await;
    }
}
