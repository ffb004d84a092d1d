//! What belongs to one process and must not survive a fork: the async runtime, the origin of
//! chunk ids, connections, unsent writes.
//!
//! Must hold: a child of a fork never uses, locks or drops what its parent made. No lock is held
//! while such a thing is made, so that a fork in between can't leave one locked.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use dl_format::{ChunkId, ChunkIdMaker};
use dl_runtime::{Clock, OsRandom, Random, SystemClock};
use tokio::runtime::Runtime;

use crate::error::{Error, Kind};

/// One thread of the runtime for so many processors: it only moves bytes between connections and
/// the threads that call, and each more is one more to wake.
const PROCESSORS_PER_THREAD: usize = 4;

/// How far the ids may be ahead of the clock after it was set back. Servers refuse those that are a
/// quarter of an hour off theirs.
const AHEAD_MAX: Duration = Duration::from_secs(60);

/// A value of which every process has its own, made when it first asks.
///
/// A chain, one link for each process in the line of forks that asked: the last link is the
/// newest process.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(OnceLock<Box<Link<T>>>);

#[derive(Debug)]
struct Link<T> {
    value: Owned<T>,
    next: PerProcess<T>,
}

/// What one process made: a child of it neither uses nor drops it.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    pid: u32,
    /// Always there, until the drop.
    value: Option<T>,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// This process's value; `make` makes the first one. Two threads that ask first at the same
    /// time may both make one: one of the two is dropped.
    pub(crate) fn get_or_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        self.get_or_make_as(std::process::id(), make)
    }

    /// This process's value, if it has asked for one.
    pub(crate) fn get(&self) -> Option<&T> {
        self.last()?.value.get_as(std::process::id())
    }

    fn get_or_make_as<E>(&self, pid: u32, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let end = match self.last() {
            Some(link) if link.value.pid == pid => return Ok(link.value.made()),
            Some(link) => &link.next,
            None => self,
        };
        let value = Owned { pid, value: Some(make()?) };
        let made = Box::new(Link { value, next: Self::new() });
        // When another thread was faster, its value holds.
        drop(end.0.set(made));
        Ok(end.0.get().expect("it was set by this thread or by a faster one").value.made())
    }

    fn last(&self) -> Option<&Link<T>> {
        let mut link = self.0.get()?;
        while let Some(next) = link.next.0.get() {
            link = next;
        }
        Some(link)
    }
}

impl<T> Owned<T> {
    /// Of the process that runs now.
    pub(crate) fn new(value: T) -> Self {
        Self { pid: std::process::id(), value: Some(value) }
    }

    /// None in a child of the process that made it.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.value.as_mut().filter(|_| self.pid == std::process::id())
    }

    fn get_as(&self, pid: u32) -> Option<&T> {
        self.value.as_ref().filter(|_| self.pid == pid)
    }

    /// In any process.
    fn made(&self) -> &T {
        self.value.as_ref().expect("taken only by the drop")
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // Its threads are in the parent, and so may be the holders of its locks.
            std::mem::forget(self.value.take());
        }
    }
}

/// The doors of one process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) runtime: Runtime,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    ids: Mutex<ChunkIdMaker>,
}

static PROCESS: PerProcess<Process> = PerProcess::new();

impl Process {
    /// This process's own.
    pub(crate) fn current() -> Result<&'static Self, Error> {
        PROCESS.get_or_make(|| {
            Self::start(Arc::new(SystemClock::new())).map_err(|why| {
                Error::new(Kind::Local, "start", "the threads of the client library", why)
            })
        })
    }

    /// By this clock; its waits and ids are of that time.
    pub(crate) fn start(clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = processors.div_ceil(PROCESSORS_PER_THREAD);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("libdiesel")
            .enable_all()
            .build()?;
        let random = Arc::new(OsRandom);
        let ids = Mutex::new(ids(&*random));
        Ok(Self { runtime, clock, random, ids })
    }

    /// An id that no other chunk has.
    pub(crate) fn next_id(&self) -> ChunkId {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        next_id(&mut ids, &*self.clock, &*self.random)
    }
}

fn ids(random: &dyn Random) -> ChunkIdMaker {
    let mut origin = [0; 9];
    random.fill(&mut origin);
    ChunkIdMaker::new(origin)
}

/// The next id; of a new origin once a clock that was far ahead is right again, as no server takes one
/// of that time.
fn next_id(maker: &mut ChunkIdMaker, clock: &dyn Clock, random: &dyn Random) -> ChunkId {
    let now = clock.now();
    if maker.is_ahead(now, AHEAD_MAX) {
        *maker = ids(random);
    }
    maker.next(now)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::UNIX_EPOCH;

    use dl_runtime::{ManualClock, SeededRandom};

    use super::*;

    fn value_of(values: &PerProcess<u32>, pid: u32, made: u32) -> u32 {
        *values.get_or_make_as(pid, || Ok::<_, Infallible>(made)).unwrap()
    }

    #[test]
    fn a_child_gets_its_own_value_and_the_parent_keeps_its() {
        let values = PerProcess::new();
        assert_eq!(value_of(&values, 10, 1), 1);
        assert_eq!(value_of(&values, 10, 2), 1);
        assert_eq!(value_of(&values, 11, 3), 3);
        assert_eq!(value_of(&values, 11, 4), 3);
    }

    #[test]
    fn a_grandchild_that_got_the_pid_of_a_dead_ancestor_gets_its_own_value() {
        let values = PerProcess::new();
        value_of(&values, 10, 1);
        value_of(&values, 11, 2);
        assert_eq!(value_of(&values, 10, 3), 3);
    }

    #[test]
    fn a_failure_is_not_remembered() {
        let values = PerProcess::new();
        assert_eq!(values.get_or_make_as(10, || Err("no")), Err("no"));
        assert_eq!(value_of(&values, 10, 2), 2);
    }

    #[test]
    fn only_the_process_that_made_a_value_drops_it() {
        static DROPPED: AtomicUsize = AtomicUsize::new(0);
        struct Counted;
        impl Drop for Counted {
            fn drop(&mut self) {
                DROPPED.fetch_add(1, Ordering::SeqCst);
            }
        }
        let values = PerProcess::new();
        let parent = std::process::id() ^ 1;
        assert!(values.get_or_make_as(parent, || Ok::<_, Infallible>(Counted)).is_ok());
        assert!(values.get_or_make(|| Ok::<_, Infallible>(Counted)).is_ok());
        drop(values);
        assert_eq!(DROPPED.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn ids_follow_a_clock_that_was_far_ahead_back() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        let (clock, random) = (ManualClock::new(now), SeededRandom::new(1));
        let mut maker = ids(&random);
        let right = next_id(&mut maker, &clock, &random);
        clock.set(now + Duration::from_secs(24 * 60 * 60));
        let ahead = next_id(&mut maker, &clock, &random);
        clock.set(now);
        let again = next_id(&mut maker, &clock, &random);
        assert!(ahead > right && again.seconds() == right.seconds());
        assert_ne!(again, right, "another origin");
    }

    #[test]
    fn ids_of_one_process_never_repeat() {
        let process = Process::current().unwrap();
        let ids: Vec<_> = (0..1000).map(|_| process.next_id()).collect();
        assert!(ids.is_sorted_by(|a, b| a < b));
    }
}
