//! Notes while no server answers: the waiting request, the reason, and the remaining time.
//!
//! Must hold: they are notes, so not shown with --quiet and never on stdout. A short interruption
//! gets no note, and many waiting requests get one note together.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dl_runtime::{Clock, locked};
use libdiesel::{OnRetry, Retry};

use crate::output::Notes;

/// Shorter waits get no note.
const HITCH: Duration = Duration::from_secs(1);
/// Interval between the first two notes; each repeated note doubles the interval.
const PAUSE: Duration = Duration::from_secs(5);
/// Maximum interval between two notes.
const PAUSE_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct LastNote {
    /// The text without digits, to recognise repetitions.
    words: String,
    pause: Duration,
    silent_until: Duration,
}

/// Reports retried requests to `notes`.
pub(crate) fn notes_to(notes: &Arc<Notes>, clock: &Arc<dyn Clock>) -> OnRetry {
    let (notes, clock) = (Arc::clone(notes), Arc::clone(clock));
    let last = Mutex::<LastNote>::default();
    Arc::new(move |retry| {
        let now = clock.monotonic();
        let mut last = locked(&last);
        if retry.waited < HITCH || now < last.silent_until {
            return;
        }
        let Retry { action, subject, reason, left, .. } = retry;
        let left = left.as_secs();
        // A note that differs only in its numbers, or by an added silence, is not new.
        let words = format!("{action} {subject}: {reason}");
        let words: String = words.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        let is_known = words.starts_with(&last.words) || last.words.starts_with(&words);
        if is_known && !last.words.is_empty() {
            last.pause = last.pause.saturating_mul(2).min(PAUSE_MAX);
            notes.note(format_args!("{action} {subject}: still so; trying for {left} s more"));
        } else {
            (last.words, last.pause) = (words, PAUSE);
            notes.note(format_args!("{action} {subject}: {reason}; trying for {left} s more"));
        }
        last.silent_until = now.saturating_add(last.pause);
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
    struct Recorded(Arc<Mutex<Vec<u8>>>);

    impl Write for Recorded {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The notes for a request retried ten times a second for forty seconds.
    fn notes_of_forty_seconds(quiet: bool) -> String {
        let written = Recorded::default();
        let notes = Arc::new(Notes::new(Box::new(written.clone()), quiet, ProgressBar::hidden()));
        let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
        let shared: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let on_retry = notes_to(&notes, &shared);
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
        let written = written.0.lock().unwrap();
        String::from_utf8(written.clone()).unwrap()
    }

    #[test]
    fn a_long_wait_is_noted_once_in_full_and_then_shortly() {
        let wanted = [("node1: refused", 59), ("still so", 54), ("still so", 44), ("still so", 24)];
        let wanted = wanted
            .map(|(why, left)| format!("dlcmd: write chunk c: {why}; trying for {left} s more\n"));
        assert_eq!(notes_of_forty_seconds(false), wanted.concat());
    }

    #[test]
    fn quiet_prints_no_notes() {
        assert_eq!(notes_of_forty_seconds(true), "");
    }
}
