//! Times of the last transfer to and from a server.
//!
//! Must hold: sent bytes count when the connection takes them. Received bytes count for all
//! requests at the server, because answers share the connection.

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

/// The transfers of a try, and of all tries at its server; an extension of the request.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    clock: Arc<dyn Clock>,
    progress: Arc<Moment>,
    server: Arc<Moment>,
}

impl Flow {
    /// A try without transfers so far; `server` is the time of the server's last transfer.
    pub(crate) fn new(clock: Arc<dyn Clock>, server: Arc<Moment>) -> Self {
        Self { clock, progress: Arc::default(), server }
    }

    /// Notes progress: the connection took a piece of the request, or the server reported work.
    pub(crate) fn progressed(&self) {
        self.progress.set(self.clock.monotonic());
        self.transferred();
    }

    fn transferred(&self) {
        self.server.set(self.clock.monotonic());
    }

    pub(crate) fn last_progress(&self) -> Duration {
        self.progress.get()
    }

    /// The time of the last transfer to or from the server.
    pub(crate) fn last_transfer(&self) -> Duration {
        self.server.get()
    }

    /// A body whose frames count on arrival.
    pub(crate) fn watch(self, body: Body) -> Body {
        Body::new(body.map_frame(move |frame| {
            self.transferred();
            frame
        }))
    }
}
