//! The async runtime of a process, and the source of its chunk ids.
//!
//! Must hold: a child of a fork has its own runtime and ids. No two chunks get the same id.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dl_format::{ChunkId, ChunkIdMaker};
use dl_runtime::{Clock, OsRandom, Random, SystemClock, locked};
use tokio::runtime::Runtime;

use crate::error::{Error, Kind};
use crate::process::PerProcess;

/// Processors per thread of the runtime, which only moves bytes between connections and callers.
/// More threads cost more wakeups.
const PROCESSORS_PER_THREAD: usize = 4;

/// The lead of ids over the clock after the clock was set back, at most. Servers refuse ids more
/// than 15 minutes off their clock.
const AHEAD_MAX: Duration = Duration::from_secs(60);

/// The runtime, clock, randomness and ids of a process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) runtime: Runtime,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    ids: Mutex<ChunkIdMaker>,
}

static PROCESS: PerProcess<Process> = PerProcess::new();

impl Process {
    /// The value of the current process.
    pub(crate) fn current() -> Result<&'static Self, Error> {
        PROCESS.get_or_make(|| {
            Self::start(Arc::new(SystemClock::new())).map_err(|why| {
                Error::new(Kind::Local, "start", "the threads of the client library", why)
            })
        })
    }

    /// Starts with a clock, which also dates the ids.
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

    pub(crate) fn next_id(&self) -> ChunkId {
        next_id(&mut locked(&self.ids), &*self.clock, &*self.random)
    }
}

fn ids(random: &dyn Random) -> ChunkIdMaker {
    let mut origin = [0; 9];
    random.fill(&mut origin);
    ChunkIdMaker::new(origin)
}

/// The next id. After a clock far ahead has been set right, ids get a new origin and the right time.
/// Servers would refuse ids from the future.
fn next_id(maker: &mut ChunkIdMaker, clock: &dyn Clock, random: &dyn Random) -> ChunkId {
    let now = clock.now();
    if maker.is_ahead(now, AHEAD_MAX) {
        *maker = ids(random);
    }
    maker.next(now)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use dl_runtime::{ManualClock, SeededRandom};

    use super::*;

    #[test]
    fn ids_follow_a_clock_back_from_far_ahead() {
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
