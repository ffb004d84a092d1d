//! When bytes last went to a server or came from it.
//!
//! Must hold: what is sent counts when the connection takes it, not when it is ready; what a server
//! sends counts for all that it is asked, as it comes in turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dl_runtime::Clock;
use http_body_util::BodyExt;
use tonic::body::Body;

/// A point of monotonic time, in milliseconds; 0 for never.
#[derive(Debug, Default)]
pub(crate) struct Moment(AtomicU64);

impl Moment {
    pub(crate) fn set(&self, time: Duration) {
        self.0.store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// What moves for one try of a request, and for all that its server is asked; among the extensions
/// of the request.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    clock: Arc<dyn Clock>,
    got_on: Arc<Moment>,
    server: Arc<Moment>,
}

impl Flow {
    /// Nothing of the try has moved yet; `server` is told of what does.
    pub(crate) fn new(clock: Arc<dyn Clock>, server: Arc<Moment>) -> Self {
        Self { clock, got_on: Arc::default(), server }
    }

    /// A piece of the request was taken, or the server told that it works on it.
    pub(crate) fn goes(&self) {
        self.got_on.set(self.clock.monotonic());
        self.comes();
    }

    fn comes(&self) {
        self.server.set(self.clock.monotonic());
    }

    /// When that was last.
    pub(crate) fn got_on(&self) -> Duration {
        self.got_on.get()
    }

    /// When anything went to the server or came from it.
    pub(crate) fn moved(&self) -> Duration {
        self.server.get()
    }

    /// An answer that counts as it comes.
    pub(crate) fn watch(self, body: Body) -> Body {
        Body::new(body.map_frame(move |frame| {
            self.comes();
            frame
        }))
    }
}
