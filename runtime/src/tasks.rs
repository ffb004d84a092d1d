//! Tasks of the async runtime.
//!
//! Must hold: a task logs in the span of its creator, so that all work of a request is found under the
//! request. A task that works for many requests logs in no span.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::Instrument;

/// Runs `work` as a task in the span of the caller. The task goes on when the handle is dropped. Panics
/// outside of an async runtime.
pub fn spawn<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    spawn_on(&Handle::current(), work)
}

/// The same in no span, for work for many requests.
pub fn spawn_for_all<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "the place that spawns tasks")]
    tokio::spawn(work)
}

/// The same as [`spawn`] on another runtime than the caller's, or from a thread without a runtime.
pub fn spawn_on<F>(runtime: &Handle, work: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "the place that spawns tasks")]
    runtime.spawn(work.in_current_span())
}
