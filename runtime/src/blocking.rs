//! Work that blocks a thread: file calls, fsync, long computation.
//!
//! Must hold: at most [`AT_ONCE`] pieces of work run at a time in the process, and beside them at most
//! the limit of each [`ThreadLimit`], so that slow disks cost waiting callers and not threads. A piece that
//! has begun runs to its end, also when its future is dropped.

use std::sync::{Arc, LazyLock};

use tokio::sync::Semaphore;
use tokio::task::JoinError;

/// Pieces of blocking work that run at once in a process; further pieces wait. Far below tokio's limit of
/// 512 threads.
pub const AT_ONCE: usize = 64;

static ROOM: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(AT_ONCE)));

tokio::task_local! {
    /// The threads for the work of a task within a [`ThreadLimit`].
    static THREADS: Arc<Semaphore>;
}

/// Number of pieces that run at the moment, without the pieces within a [`ThreadLimit`].
pub fn running() -> usize {
    AT_ONCE - ROOM.available_permits()
}

/// Threads apart for work that may hang: at most so many threads hang, and other work has its own.
#[derive(Debug)]
pub struct ThreadLimit(Arc<Semaphore>);

impl ThreadLimit {
    /// At most `threads` at once.
    pub fn new(threads: usize) -> Self {
        Self(Arc::new(Semaphore::new(threads)))
    }

    /// Does `work`, whose blocking pieces count here. Pieces of tasks that `work` spawns do not.
    pub async fn within<T>(&self, work: impl Future<Output = T>) -> T {
        THREADS.scope(Arc::clone(&self.0), work).await
    }
}

/// The runtime shut down before the work could run.
#[derive(Debug, thiserror::Error)]
#[error("run blocking work: the runtime is shutting down")]
pub struct Stopped(#[source] JoinError);

/// Runs `work` on a thread where it may block, and gives its result. The thread counts for the
/// [`ThreadLimit`] of the task, if any.
///
/// Never wait inside `work` for other blocking work: all threads may be taken by waiting work. A panic in
/// `work` goes on in the caller.
///
/// # Errors
/// [`Stopped`] when the runtime shuts down before `work` began. Then `work` has not run.
///
/// # Panics
/// When `work` panics, and outside a tokio runtime.
pub async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stopped> {
    let threads = THREADS.try_with(Arc::clone).unwrap_or_else(|_| Arc::clone(&ROOM));
    let thread = threads.acquire_owned().await.expect("the semaphore is never closed");
    #[expect(clippy::disallowed_methods, reason = "the place that bounds blocking work")]
    let running = tokio::task::spawn_blocking(move || {
        // Held by the thread: a dropped future frees no running thread.
        let _thread = thread;
        work()
    });
    running.await.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(cancelled) => Stopped(cancelled),
    })
}

#[cfg(test)]
mod tests {
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

    #[tokio::test]
    async fn work_that_hangs_within_a_limit_takes_no_other_threads() {
        let (leave, left) = std::sync::mpsc::channel::<()>();
        let (limit, left) = (ThreadLimit::new(2), Arc::new(std::sync::Mutex::new(left)));
        let begun = Arc::new(AtomicUsize::new(0));
        let clock = crate::ManualClock::jumping(std::time::UNIX_EPOCH);
        for _ in 0..AT_ONCE + 1 {
            let (begun, left) = (Arc::clone(&begun), Arc::clone(&left));
            let hung = limit.within(run(move || {
                begun.fetch_add(1, Ordering::SeqCst);
                // Until the other end is gone.
                left.lock().unwrap().recv().unwrap_err();
            }));
            let patience = crate::Deadline::after(&clock, Duration::from_secs(1));
            patience.bound(&clock, hung).await.unwrap_err();
        }
        assert_eq!(run(|| 7).await.unwrap(), 7);
        drop(leave);
        assert_eq!(limit.within(run(|| 7)).await.unwrap(), 7);
        assert!(begun.load(Ordering::SeqCst) <= 2, "work without a thread never began");
    }
}
