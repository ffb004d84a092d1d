//! Questions about paths. Those that threads ask at the same time share requests: a request costs
//! both ends far more than a path in it.
//!
//! Must hold: a question waits for others only while requests enough are under way, and never for
//! long; each is answered by a request that began after it was asked; whatever becomes of a
//! request, those who share it hear of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
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

/// Most paths of questions that share a request. A question of as many goes by itself.
const GATHERED: usize = 1_024;

/// Requests under way at a time: one that is answered while the next is asked.
const UNDER_WAY: usize = 2;

/// Requests under way at a time when there are paths enough for large ones: then each end and the
/// wire between them have something to do.
const LARGE_UNDER_WAY: usize = 4;

/// Paths for which a request is worth its costs.
const LARGE: usize = 512;

/// Questions that waited for so long are sent all the same: those before them may be at a server
/// that is silent.
const PATIENCE: Duration = Duration::from_millis(50);

/// Times that threads which are about to ask are let go first, at most.
const YIELDS: usize = 16;

/// The questions of one handle, in one process.
#[derive(Debug)]
pub(crate) struct Stats {
    gathering: Arc<Mutex<Gathering>>,
    patience: Duration,
}

impl Default for Stats {
    fn default() -> Self {
        Self { gathering: Arc::default(), patience: PATIENCE }
    }
}

#[derive(Debug, Default)]
struct Gathering {
    under_way: usize,
    /// Who came since.
    waiting: VecDeque<Question>,
    /// Their paths.
    paths: usize,
}

#[derive(Debug)]
struct Question {
    paths: Vec<FilePath>,
    asker: Arc<Asker>,
}

/// A thread that waits for its answer.
#[derive(Debug)]
struct Asker {
    thread: Thread,
    answer: Mutex<Option<Result<Vec<StatItem>, Error>>>,
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
            found.extend(if paths.len() < GATHERED {
                self.ask_together(session, dataset, paths)?
            } else {
                session.wait(stat(&session.connections, dataset, paths))?
            });
        }
        Ok(found)
    }

    fn ask_together(
        &self,
        session: &Session,
        dataset: &DatasetInfo,
        paths: &[FilePath],
    ) -> Result<Vec<StatItem>, Error> {
        let asker = Arc::new(Asker { thread: thread::current(), answer: Mutex::new(None) });
        let question = Question { paths: paths.to_vec(), asker: Arc::clone(&asker) };
        let mut begins = lock(&self.gathering).add(question);
        let clock = &session.process.clock;
        let mut since = clock.monotonic();
        loop {
            if begins {
                let turn = Turn { gathering: Arc::clone(&self.gathering), is_over: false };
                let connections = Arc::clone(&session.connections);
                dl_runtime::spawn_on(
                    session.process.runtime.handle(),
                    turn.run(connections, dataset.clone()),
                );
            }
            if let Some(answer) = lock(&asker.answer).take() {
                return answer;
            }
            thread::park_timeout(self.patience);
            let now = clock.monotonic();
            let is_over = now.saturating_sub(since) >= self.patience;
            begins = is_over && lock(&self.gathering).begin_for(&asker);
            if is_over {
                since = now;
            }
        }
    }
}

impl Gathering {
    /// Takes a question; whether a request is to begin for it.
    fn add(&mut self, question: Question) -> bool {
        self.paths += question.paths.len();
        self.waiting.push_back(question);
        let most = if self.paths < LARGE { UNDER_WAY } else { LARGE_UNDER_WAY };
        let begins = self.under_way < most;
        self.under_way += usize::from(begins);
        begins
    }

    /// Whether a request is to begin beside those under way, for a question that waited for long.
    fn begin_for(&mut self, asker: &Arc<Asker>) -> bool {
        let waits = self.waiting.iter().any(|question| Arc::ptr_eq(&question.asker, asker));
        self.under_way += usize::from(waits);
        waits
    }

    /// The questions that came first, as many as fit into one request.
    fn take(&mut self) -> Vec<Question> {
        let (mut taken, mut paths, mut bytes) = (Vec::new(), 0, 0);
        while let Some(question) = self.waiting.front() {
            paths += question.paths.len();
            bytes += question.paths.iter().map(|path| path.as_bytes().len()).sum::<usize>();
            if !taken.is_empty() && (paths > GATHERED || bytes > REQUEST_PATH_BYTES) {
                break;
            }
            self.paths -= question.paths.len();
            taken.extend(self.waiting.pop_front());
        }
        taken
    }
}

/// One of the requests under way, and those after it.
struct Turn {
    gathering: Arc<Mutex<Gathering>>,
    /// Whether it is not counted any more.
    is_over: bool,
}

impl Turn {
    /// Asks for those who wait until nobody does.
    async fn run(mut self, connections: Arc<Connections>, dataset: DatasetInfo) {
        while let Some(sharing) = self.next() {
            let paths: Vec<FilePath> = sharing.paths().cloned().collect();
            let answer = stat(&connections, &dataset, &paths).await;
            sharing.end(answer);
        }
    }

    fn next(&mut self) -> Option<Sharing> {
        // Those who were just answered ask their next question now, if they are let.
        let mut waiting = lock(&self.gathering).waiting.len();
        for _ in 0..YIELDS {
            thread::yield_now();
            let before = waiting;
            waiting = lock(&self.gathering).waiting.len();
            if waiting == before {
                break;
            }
        }
        let mut gathering = lock(&self.gathering);
        let questions = gathering.take();
        if questions.is_empty() {
            gathering.under_way -= 1;
            self.is_over = true;
            return None;
        }
        Some(Sharing(questions))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_over {
            lock(&self.gathering).under_way -= 1;
        }
    }
}

/// Those who share a request. However it ends, they hear of it.
struct Sharing(Vec<Question>);

impl Sharing {
    fn paths(&self) -> impl Iterator<Item = &FilePath> {
        self.0.iter().flat_map(|question| &question.paths)
    }

    fn end(mut self, answer: Result<Vec<StatItem>, Error>) {
        match answer {
            Ok(items) => {
                let mut items = items.into_iter();
                for question in std::mem::take(&mut self.0) {
                    let own = items.by_ref().take(question.paths.len()).collect();
                    question.asker.tell(Ok(own));
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &Error) {
        for question in std::mem::take(&mut self.0) {
            question.asker.tell(Err(error.clone()));
        }
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            let why = Failure::new(Kind::Internal, "the request was given up");
            self.fail(&Error::new(Kind::Internal, "look up", "paths", why));
        }
    }
}

impl Asker {
    fn tell(&self, answer: Result<Vec<StatItem>, Error>) {
        *lock(&self.answer) = Some(answer);
        self.thread.unpark();
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
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
