//! The one door for work that blocks a thread: file calls, fsync, long computation.
//!
//! Must hold: at most [`AT_ONCE`] pieces run at a time in the whole process, so that slow disks
//! cost waiting callers rather than threads. A piece that has begun runs to its end, also when
//! the future that asked for it is dropped.

use tokio::sync::Semaphore;
use tokio::task::JoinError;

/// Pieces of blocking work that run at once in one process; more wait their turn.
pub const AT_ONCE: usize = 64;

static ROOM: Semaphore = Semaphore::const_new(AT_ONCE);

/// How many pieces run at the moment.
pub fn running() -> usize {
    AT_ONCE - ROOM.available_permits()
}

/// The runtime shut down before the work could run.
#[derive(Debug, thiserror::Error)]
#[error("run blocking work: the runtime is shutting down")]
pub struct Stopped(#[source] JoinError);

/// Runs `work` on a thread where it may block, and gives its result.
///
/// Never wait inside `work` for other blocking work: the places may all be taken by those
/// who wait. A panic in `work` goes on in the caller.
///
/// # Errors
/// [`Stopped`] when the runtime shuts down before `work` began; it has then not run.
///
/// # Panics
/// When `work` does, and outside a tokio runtime.
pub async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stopped> {
    let place = ROOM.acquire().await.expect("the semaphore is never closed");
    #[expect(clippy::disallowed_methods, reason = "this is the door that bounds blocking work")]
    let running = tokio::task::spawn_blocking(move || {
        // Held by the thread, not by the future: a dropped future frees no running thread.
        let _place = place;
        work()
    });
    running.await.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(cancelled) => Stopped(cancelled),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn no_more_than_the_limit_runs_at_once() {
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let jobs: Vec<_> = (0..3 * AT_ONCE)
            .map(|_| {
                let (running, most) = (Arc::clone(&running), Arc::clone(&most));
                crate::spawn(run(move || {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(2));
                    running.fetch_sub(1, Ordering::SeqCst);
                }))
            })
            .collect();
        for job in jobs {
            job.await.unwrap().unwrap();
        }
        assert!((2..=AT_ONCE).contains(&most.load(Ordering::SeqCst)));
    }

    #[tokio::test]
    async fn a_panic_in_the_work_goes_on_in_the_caller() {
        let caller = crate::spawn(run(|| assert_eq!(1, 2, "on purpose")));
        assert!(caller.await.unwrap_err().is_panic());
    }

    #[tokio::test]
    async fn work_that_began_ends_also_when_its_caller_leaves() {
        let (began, begun) = std::sync::mpsc::channel();
        let (leave, left) = std::sync::mpsc::channel();
        let (end, ended) = tokio::sync::oneshot::channel();
        let caller = crate::spawn(run(move || {
            began.send(()).unwrap();
            left.recv().unwrap();
            end.send(()).unwrap();
        }));
        run(move || begun.recv().unwrap()).await.unwrap();
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        leave.send(()).unwrap();
        ended.await.unwrap();
    }
}
