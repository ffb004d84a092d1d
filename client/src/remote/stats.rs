//! Questions about paths. Those that threads ask at the same time share requests: a request costs
//! both ends far more than a path in it.
//!
//! Must hold: a question waits for others only while requests enough are under way, and never for
//! long; each is answered by a request that began after it was asked; whatever becomes of the
//! thread that sends for others, they go on.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dl_format::FilePath;
use dl_proto::{
    Dataset as DatasetInfo, REQUEST_PATH_BYTES, STAT_PATHS_MAX, StatItem, StatRequest, pb,
};

use crate::error::{Error, Kind};
use crate::remote::connections::Connections;
use crate::remote::failure::Failure;
use crate::remote::session::Session;
use crate::remote::split;

/// Paths looked up in one request.
const STAT_BATCH: usize = 8_192;
const _: () = assert!(STAT_BATCH <= STAT_PATHS_MAX);

/// Paths after which questions gather for yet another request.
const GATHERED: usize = 2_048;

/// Requests of one handle under way at a time: one that is answered while the next is asked.
const UNDER_WAY: usize = 2;

/// Questions that waited for so long are sent all the same: those before them may be at a server
/// that is silent.
const PATIENCE: Duration = Duration::from_millis(50);

/// The questions of one handle, in one process.
#[derive(Debug)]
pub(crate) struct Stats {
    gathering: Mutex<Gathering>,
    patience: Duration,
}

impl Default for Stats {
    fn default() -> Self {
        Self { gathering: Mutex::default(), patience: PATIENCE }
    }
}

#[derive(Debug, Default)]
struct Gathering {
    under_way: usize,
    /// Who came while requests enough were under way.
    next: Vec<Arc<Batch>>,
}

/// Questions that are sent together by one of those who ask.
#[derive(Debug, Default)]
struct Batch {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    paths: Vec<FilePath>,
    /// Bytes of the paths.
    bytes: usize,
    stage: Stage,
}

#[derive(Debug, Default)]
enum Stage {
    /// More paths may join.
    #[default]
    Gathering,
    /// One of those who wait is to send it.
    Due,
    Sent,
    Answered(Result<Vec<StatItem>, Error>),
}

impl Stats {
    /// What stands at each of the paths, in their order.
    pub(crate) fn ask(
        &self,
        session: &Session,
        dataset: &DatasetInfo,
        paths: &[FilePath],
    ) -> Result<Vec<StatItem>, Error> {
        let mut found = Vec::with_capacity(paths.len());
        for paths in split::by_path(paths, STAT_BATCH, |path| path) {
            found.extend(self.ask_run(session, dataset, paths)?);
        }
        Ok(found)
    }

    fn ask_run(
        &self,
        session: &Session,
        dataset: &DatasetInfo,
        paths: &[FilePath],
    ) -> Result<Vec<StatItem>, Error> {
        let Some((batch, own)) = self.join(paths) else {
            let _turn = Turn(self);
            return session.wait(stat(&session.connections, dataset, paths));
        };
        let mut state = batch.lock();
        loop {
            match &mut state.stage {
                Stage::Answered(Ok(items)) => {
                    return Ok(items.get(own).unwrap_or_default().to_vec());
                }
                Stage::Answered(Err(error)) => return Err(error.clone()),
                Stage::Due => {
                    state.stage = Stage::Sent;
                    let paths = std::mem::take(&mut state.paths);
                    drop(state);
                    let turn = Turn(self);
                    let sending = Sending { batch: &batch, items: None };
                    let items = session.wait(stat(&session.connections, dataset, &paths));
                    drop(turn);
                    sending.end(items);
                    state = batch.lock();
                }
                Stage::Gathering => {
                    let waited = batch.changed.wait_timeout(state, self.patience);
                    let (after, elapsed) = waited.unwrap_or_else(PoisonError::into_inner);
                    state = after;
                    if elapsed.timed_out() && matches!(state.stage, Stage::Gathering) {
                        drop(state);
                        self.begin(&batch);
                        state = batch.lock();
                    }
                }
                Stage::Sent => {
                    state = batch.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// A place among those who wait; none when the caller is to send its paths itself.
    fn join(&self, paths: &[FilePath]) -> Option<(Arc<Batch>, Range<usize>)> {
        let mut gathering = self.lock();
        if gathering.under_way < UNDER_WAY {
            gathering.under_way += 1;
            return None;
        }
        if let Some(last) = gathering.next.last() {
            let mut state = last.lock();
            if let Some(own) = state.add(paths) {
                drop(state);
                return Some((Arc::clone(last), own));
            }
        }
        let batch = Arc::new(Batch::default());
        batch.lock().take(paths);
        gathering.next.push(Arc::clone(&batch));
        Some((batch, 0..paths.len()))
    }

    /// Lets a batch that waited for long go beside the requests that are under way.
    fn begin(&self, batch: &Arc<Batch>) {
        let mut gathering = self.lock();
        if let Some(place) = gathering.next.iter().position(|other| Arc::ptr_eq(other, batch)) {
            gathering.next.remove(place);
            gathering.under_way += 1;
            batch.lock().stage = Stage::Due;
        }
    }

    /// A request has ended: the next ones may begin.
    fn pass_on(&self) {
        let mut gathering = self.lock();
        if gathering.next.is_empty() || gathering.under_way > UNDER_WAY {
            gathering.under_way -= 1;
            return;
        }
        let batch = gathering.next.remove(0);
        drop(gathering);
        batch.lock().stage = Stage::Due;
        batch.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Gathering> {
        self.gathering.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Where so many more paths stand, when they fit.
    fn add(&mut self, paths: &[FilePath]) -> Option<Range<usize>> {
        let start = self.paths.len();
        let bytes: usize = paths.iter().map(|path| path.as_bytes().len()).sum();
        if start + paths.len() > GATHERED || self.bytes + bytes > REQUEST_PATH_BYTES {
            return None;
        }
        self.take(paths);
        Some(start..self.paths.len())
    }

    fn take(&mut self, paths: &[FilePath]) {
        self.bytes += paths.iter().map(|path| path.as_bytes().len()).sum::<usize>();
        self.paths.extend_from_slice(paths);
    }
}

impl Batch {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request under way. However it ends, the next one begins.
struct Turn<'a>(&'a Stats);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.pass_on();
    }
}

/// A batch under way. However that ends, those who wait for it hear of it.
struct Sending<'a> {
    batch: &'a Batch,
    items: Option<Result<Vec<StatItem>, Error>>,
}

impl Sending<'_> {
    fn end(mut self, items: Result<Vec<StatItem>, Error>) {
        self.items = Some(items);
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let items = self.items.take().unwrap_or_else(|| {
            let why = Failure::new(Kind::Internal, "the thread that asked for it ended");
            Err(Error::new(Kind::Internal, "look up", "paths", why))
        });
        self.batch.lock().stage = Stage::Answered(items);
        self.batch.changed.notify_all();
    }
}

/// What stands at each of the paths, at most [`STAT_PATHS_MAX`], by a request of their own.
pub(crate) async fn stat(
    connections: &Connections,
    dataset: &DatasetInfo,
    paths: &[FilePath],
) -> Result<Vec<StatItem>, Error> {
    let subject = || match paths {
        [path] => format!("dl://{}/{path}", dataset.name),
        paths => format!("{} paths of dl://{}", paths.len(), dataset.name),
    };
    connections
        .call("look up", subject, connections.usual(), |mut server, this| {
            let message = StatRequest { dataset: dataset.id, paths: paths.to_vec() };
            let request = this.request(pb::StatRequest::from(message));
            async move {
                let items = this.answer(server.stat(request)).await?.items;
                if items.len() != paths.len() {
                    let problem = "an answer that makes no sense: not one item for each path";
                    return Err(Failure::new(Kind::Internal, problem));
                }
                Ok(items.into_iter().map(StatItem::try_from).collect::<Result<_, _>>()?)
            }
        })
        .await
}

#[cfg(test)]
mod tests;
