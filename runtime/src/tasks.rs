//! Tasks of the async runtime.
//!
//! Must hold: what a task logs stands in the span of whoever began it, so that the work of a request
//! that goes on in other tasks is found under that request; what a task does for many stands in none.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::Instrument;

/// Runs `work` as a task of its own, in the span of its caller. It goes on when the handle is
/// dropped. Panics outside of an async runtime.
pub fn spawn<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    spawn_on(&Handle::current(), work)
}

/// The same in no span: for work that goes on for others than its caller.
pub fn spawn_for_all<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    tokio::spawn(work)
}

/// The same as [`spawn`] on another runtime than the caller's, or from a thread that has none.
pub fn spawn_on<F>(runtime: &Handle, work: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    runtime.spawn(work.in_current_span())
}
