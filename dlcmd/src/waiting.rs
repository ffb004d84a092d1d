//! What is said while no server answers: what is waited for, why, and for how much longer.
//!
//! Must hold: these are notes, so not shown with --quiet and never on stdout; a hitch that passes
//! in a moment is not worth one, and many requests that wait together say it once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dl_runtime::Clock;
use libdiesel::{OnRetry, Retry};

use crate::output::Notes;

/// What takes no longer than this is not worth a note.
const HITCH: Duration = Duration::from_secs(1);
/// Time between two notes.
const PAUSE: Duration = Duration::from_secs(5);

/// Tells `notes` of requests that are tried again.
pub(crate) fn told_to(notes: &Arc<Notes>, clock: &Arc<dyn Clock>) -> OnRetry {
    let (notes, clock) = (Arc::clone(notes), Arc::clone(clock));
    let silent_until = Mutex::new(Duration::ZERO);
    Arc::new(move |retry| {
        let now = clock.monotonic();
        let mut silent_until = silent_until.lock().unwrap_or_else(PoisonError::into_inner);
        if retry.waited >= HITCH && now >= *silent_until {
            *silent_until = now.saturating_add(PAUSE);
            let Retry { action, subject, reason, left, .. } = retry;
            let left = left.as_secs();
            notes.note(format_args!("{action} {subject}: {reason}; trying for {left} s more"));
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::time::UNIX_EPOCH;

    use dl_runtime::ManualClock;
    use indicatif::ProgressBar;

    use super::*;

    #[derive(Clone, Default)]
    struct Said(Arc<Mutex<Vec<u8>>>);

    impl Write for Said {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Of a request that is tried ten times a second for ten seconds.
    fn said_in_ten_seconds(quiet: bool) -> String {
        let said = Said::default();
        let notes = Arc::new(Notes::new(Box::new(said.clone()), quiet, ProgressBar::hidden()));
        let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
        let shared: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let on_retry = told_to(&notes, &shared);
        for _ in 0..100 {
            clock.advance(Duration::from_millis(100));
            let waited = clock.monotonic();
            on_retry(&Retry {
                action: "write",
                subject: "chunk c".to_owned(),
                reason: "node1: refused".to_owned(),
                waited,
                left: Duration::from_secs(60) - waited,
            });
        }
        let said = said.0.lock().unwrap();
        String::from_utf8(said.clone()).unwrap()
    }

    #[test]
    fn a_long_wait_is_told_every_few_seconds_and_a_short_one_is_not() {
        let wanted = [59, 54].map(|left| {
            format!("dlcmd: write chunk c: node1: refused; trying for {left} s more\n")
        });
        assert_eq!(said_in_ten_seconds(false), wanted.concat());
    }

    #[test]
    fn nothing_is_told_to_who_wants_it_quiet() {
        assert_eq!(said_in_ten_seconds(true), "");
    }
}
