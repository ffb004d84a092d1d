//! Messages of the library for programs with logs of their own.
//!
//! Must hold: a program hears of a server that is away long before a call fails, and not at each try.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dl_runtime::since_boot;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::remote::{OnRetry, Retry};

/// Shorter retries get no message.
const HITCH: Duration = Duration::from_secs(1);
/// Interval between the first two messages about retries; each message doubles the interval.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Gives the messages of this library to `take`, from any thread, unless the program has a subscriber
/// of `tracing` already.
pub fn pass_to(take: impl Fn(Level, String) + Send + Sync + 'static) {
    let _ = tracing::subscriber::set_global_default(Passing(take));
}

/// Logs requests that a client tries again: [`ConnectOptions::on_retry`](crate::ConnectOptions).
pub fn of_retries() -> OnRetry {
    // The end of the silence after a report, and the pause after the next report.
    let silence = Mutex::new((Duration::ZERO, PAUSE));
    Arc::new(move |retry| {
        let now = since_boot();
        // A fork may leave the lock locked in the child.
        let Ok(mut silence) = silence.try_lock() else { return };
        let (until, pause) = *silence;
        if retry.waited < HITCH || now < until {
            return;
        }
        // A later outage starts over.
        let pause = if now > until.saturating_add(PAUSE_MAX) { PAUSE } else { pause };
        *silence = (now.saturating_add(pause), pause.saturating_mul(2).min(PAUSE_MAX));
        let Retry { action, subject, reason, left, .. } = retry;
        let left = left.as_secs();
        tracing::warn!("{action} {subject}: {reason}; trying for {left} s more");
    })
}

struct Passing<T>(T);

/// The text of a message, and its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl<T: Fn(Level, String) + Send + Sync + 'static> Subscriber for Passing<T> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
            && ["libdiesel", "dl_"].iter().any(|own| metadata.target().starts_with(own))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        (self.0)(*event.metadata().level(), text.message + &text.fields);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            let _ = write!(self.fields, " {field}={value}");
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            let _ = write!(self.fields, " {field}={value:?}");
        }
    }
}
