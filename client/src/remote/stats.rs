//! Stat requests. Concurrent questions of several threads share a request, because a request costs
//! far more than a path.
//!
//! Must hold: a question waits only while enough requests are in flight, and never for long. The
//! request of a question begins after the question. Every end of a request reaches all its
//! questions.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::Duration;

use dl_format::FilePath;
use dl_proto::{
    Dataset as DatasetInfo, REQUEST_PATH_BYTES, STAT_PATHS_MAX, StatItem, StatRequest, pb,
};
use dl_runtime::locked;

use crate::error::{Error, Kind};
use crate::remote::connections::Connections;
use crate::remote::failure::Failure;
use crate::remote::session::Session;
use crate::remote::split;

/// Paths in a request, at most.
const STAT_BATCH: usize = 8_192;
const _: () = assert!(STAT_BATCH <= STAT_PATHS_MAX);

/// Paths in a request shared by several questions, at most. A longer question gets its own request.
const SHARED_MAX: usize = 1_024;

/// Requests in flight: one at the server while the client prepares the next.
const IN_FLIGHT: usize = 2;

/// Requests in flight with paths enough for large requests, to keep client, server and network
/// busy.
const LARGE_IN_FLIGHT: usize = 4;

/// Paths that justify a request of their own.
const LARGE: usize = 512;

/// The longest wait of a question. A request in flight may be at a silent server.
const TIMEOUT: Duration = Duration::from_millis(50);

/// Yields to threads that are about to ask, at most.
const YIELDS: usize = 16;

/// The questions of a handle in one process.
#[derive(Debug)]
pub(crate) struct Stats {
    queue: Arc<Mutex<Queue>>,
    patience: Duration,
}

impl Default for Stats {
    fn default() -> Self {
        Self { queue: Arc::default(), patience: TIMEOUT }
    }
}

#[derive(Debug, Default)]
struct Queue {
    in_flight: usize,
    /// Questions without a request.
    waiting: VecDeque<Question>,
    /// The paths of these questions.
    paths: usize,
}

#[derive(Debug)]
struct Question {
    paths: Vec<FilePath>,
    asker: Arc<Asker>,
}

/// A thread in wait for its answer.
#[derive(Debug)]
struct Asker {
    thread: Thread,
    answer: Mutex<Option<Result<Vec<StatItem>, Error>>>,
}

impl Stats {
    /// The entries at the paths, in the order of the paths.
    pub(crate) fn ask(
        &self,
        session: &Session,
        dataset: &DatasetInfo,
        paths: &[FilePath],
    ) -> Result<Vec<StatItem>, Error> {
        let mut found = Vec::with_capacity(paths.len());
        for paths in split::by_path(paths, STAT_BATCH, |path| path) {
            found.extend(if paths.len() < SHARED_MAX {
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
        let mut begins = locked(&self.queue).add(question);
        let clock = &session.process.clock;
        let mut since = clock.monotonic();
        loop {
            if begins {
                let slot = RequestSlot { queue: Arc::clone(&self.queue), is_over: false };
                let connections = Arc::clone(&session.connections);
                dl_runtime::spawn_on(
                    session.process.runtime.handle(),
                    slot.run(connections, dataset.clone()),
                );
            }
            if let Some(answer) = locked(&asker.answer).take() {
                return answer;
            }
            thread::park_timeout(self.patience);
            let now = clock.monotonic();
            let is_over = now.saturating_sub(since) >= self.patience;
            begins = is_over && locked(&self.queue).begin_for(&asker);
            if is_over {
                since = now;
            }
        }
    }
}

impl Queue {
    /// Adds a question; whether a new request is due.
    fn add(&mut self, question: Question) -> bool {
        self.paths += question.paths.len();
        self.waiting.push_back(question);
        let most = if self.paths < LARGE { IN_FLIGHT } else { LARGE_IN_FLIGHT };
        let begins = self.in_flight < most;
        self.in_flight += usize::from(begins);
        begins
    }

    /// Whether a new request is due for a question after a long wait.
    fn begin_for(&mut self, asker: &Arc<Asker>) -> bool {
        let waits = self.waiting.iter().any(|question| Arc::ptr_eq(&question.asker, asker));
        self.in_flight += usize::from(waits);
        waits
    }

    /// The oldest questions, as many as fit into a request.
    fn take(&mut self) -> Vec<Question> {
        let (mut taken, mut paths, mut bytes) = (Vec::new(), 0, 0);
        while let Some(question) = self.waiting.front() {
            paths += question.paths.len();
            bytes += question.paths.iter().map(|path| path.as_bytes().len()).sum::<usize>();
            if !taken.is_empty() && (paths > SHARED_MAX || bytes > REQUEST_PATH_BYTES) {
                break;
            }
            self.paths -= question.paths.len();
            taken.extend(self.waiting.pop_front());
        }
        taken
    }
}

/// A request in flight, followed by requests for later questions.
struct RequestSlot {
    queue: Arc<Mutex<Queue>>,
    /// Whether the request no longer counts as in flight.
    is_over: bool,
}

impl RequestSlot {
    /// Sends requests until no question waits.
    async fn run(mut self, connections: Arc<Connections>, dataset: DatasetInfo) {
        while let Some(batch) = self.next() {
            let paths =
                batch.0.iter().flat_map(|question| question.paths.clone()).collect::<Vec<_>>();
            let answer = stat(&connections, &dataset, &paths).await;
            batch.end(answer);
        }
    }

    fn next(&mut self) -> Option<Batch> {
        // Lets threads with a fresh answer ask their next question first.
        let mut waiting = locked(&self.queue).waiting.len();
        for _ in 0..YIELDS {
            thread::yield_now();
            let before = waiting;
            waiting = locked(&self.queue).waiting.len();
            if waiting == before {
                break;
            }
        }
        let mut queue = locked(&self.queue);
        let questions = queue.take();
        if questions.is_empty() {
            queue.in_flight -= 1;
            self.is_over = true;
            return None;
        }
        Some(Batch(questions))
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        if !self.is_over {
            locked(&self.queue).in_flight -= 1;
        }
    }
}

/// The questions of a request. Each of them gets an answer, whatever the end of the request.
struct Batch(Vec<Question>);

impl Batch {
    fn end(mut self, answer: Result<Vec<StatItem>, Error>) {
        match answer {
            Ok(items) => {
                let mut items = items.into_iter();
                for question in std::mem::take(&mut self.0) {
                    let own = items.by_ref().take(question.paths.len()).collect();
                    question.asker.answer(Ok(own));
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &Error) {
        for question in std::mem::take(&mut self.0) {
            question.asker.answer(Err(error.clone()));
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            let why = "the request was given up";
            self.fail(&Error::new(Kind::Internal, "look up", "paths", why));
        }
    }
}

impl Asker {
    fn answer(&self, answer: Result<Vec<StatItem>, Error>) {
        *locked(&self.answer) = Some(answer);
        self.thread.unpark();
    }
}

/// The entries at the paths, at most [`STAT_PATHS_MAX`], by a request of their own.
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
                    let problem =
                        "the answer makes no sense: the numbers of items and paths differ";
                    return Err(Failure::new(Kind::Internal, problem));
                }
                Ok(items.into_iter().map(StatItem::try_from).collect::<Result<_, _>>()?)
            }
        })
        .await
}

#[cfg(test)]
mod tests;
