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
/// Time between two notes, at first; each that says nothing new doubles it.
const PAUSE: Duration = Duration::from_secs(5);
/// Most time between two notes.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What was told last.
#[derive(Debug, Default)]
struct Told {
    /// Of what, and why.
    words: String,
    pause: Duration,
    silent_until: Duration,
}

/// Tells `notes` of requests that are tried again.
pub(crate) fn told_to(notes: &Arc<Notes>, clock: &Arc<dyn Clock>) -> OnRetry {
    let (notes, clock) = (Arc::clone(notes), Arc::clone(clock));
    let told = Mutex::<Told>::default();
    Arc::new(move |retry| {
        let now = clock.monotonic();
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if retry.waited < HITCH || now < told.silent_until {
            return;
        }
        let Retry { action, subject, reason, left, .. } = retry;
        let left = left.as_secs();
        // That a server is silent, for how long, or after what it said before, is nothing new.
        let words = format!("{action} {subject}: {reason}");
        let words: String = words.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        let is_known = words.starts_with(&told.words) || told.words.starts_with(&words);
        if is_known && !told.words.is_empty() {
            told.pause = told.pause.saturating_mul(2).min(PAUSE_MAX);
            notes.note(format_args!("{action} {subject}: still so; trying for {left} s more"));
        } else {
            (told.words, told.pause) = (words, PAUSE);
            notes.note(format_args!("{action} {subject}: {reason}; trying for {left} s more"));
        }
        told.silent_until = now.saturating_add(told.pause);
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

    /// Of a request that is tried ten times a second for forty seconds.
    fn said_in_forty_seconds(quiet: bool) -> String {
        let said = Said::default();
        let notes = Arc::new(Notes::new(Box::new(said.clone()), quiet, ProgressBar::hidden()));
        let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
        let shared: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let on_retry = told_to(&notes, &shared);
        for _ in 0..400 {
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
    fn a_long_wait_is_told_once_in_full_then_shortly_and_a_short_one_is_not() {
        let wanted = [("node1: refused", 59), ("still so", 54), ("still so", 44), ("still so", 24)];
        let wanted = wanted
            .map(|(why, left)| format!("dlcmd: write chunk c: {why}; trying for {left} s more\n"));
        assert_eq!(said_in_forty_seconds(false), wanted.concat());
    }

    #[test]
    fn nothing_is_told_to_who_wants_it_quiet() {
        assert_eq!(said_in_forty_seconds(true), "");
    }
}
