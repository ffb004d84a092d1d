//! The request executor (paper, 4): turns the many small ranges that requests want into few large
//! reads of the chunk store.
//!
//! Must hold: wanted ranges of one chunk that lie close become one read; while a chunk is being
//! read, whoever wants more of it waits, and all who waited share the next read; each is answered
//! exactly once, also when another one that waits gives up.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dl_store::{ByteRange, Key, ObjectRange, Store};
use tokio::sync::oneshot;

/// Ranges of a chunk that lie at most this far apart are read as one: about what a local store
/// copies in the time of another request to it.
const GAP: u64 = 16 << 10;

/// When a chunk's ranges make up this part of what lies between the first and the last, all of
/// that is read at once.
const DENSE: u64 = 8;

/// Bytes `start..end` of an object; never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Why a range could not be read; shared by all who asked for it.
pub(crate) type Failure = Arc<dl_store::Error>;

type Answer = Vec<Result<Bytes, Failure>>;

/// Some ranges of one object that one caller waits for.
#[derive(Debug)]
struct Want {
    spans: Vec<Span>,
    answer: oneshot::Sender<Answer>,
}

/// Who waits for an object that is being read.
type Queues = HashMap<Key, Vec<Want>>;

/// Reads for all requests of a server.
#[derive(Debug, Clone)]
pub(crate) struct Executor {
    store: Arc<dyn Store>,
    busy: Arc<Mutex<Queues>>,
}

impl Executor {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, busy: Arc::default() }
    }

    /// Reads ranges of any objects; one result for each, in order. Callers bound the bytes.
    pub(crate) async fn read(&self, wanted: &[(Key, Span)]) -> Answer {
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_unstable_by(|a, b| wanted.get(*a).cmp(&wanted.get(*b)));

        let mut waiting: Vec<(Vec<usize>, oneshot::Receiver<Answer>)> = Vec::new();
        let mut lead: Vec<(Key, Vec<Want>)> = Vec::new();
        {
            let mut busy = self.lock();
            let same_object = |a: &usize, b: &usize| key_of(wanted, *a) == key_of(wanted, *b);
            for indexes in order.chunk_by(same_object) {
                let (answer, receiver) = oneshot::channel();
                let spans =
                    indexes.iter().filter_map(|index| Some(wanted.get(*index)?.1)).collect();
                waiting.push((indexes.to_vec(), receiver));
                let Some(key) = indexes.first().and_then(|index| key_of(wanted, *index)) else {
                    continue;
                };
                match busy.entry(key.clone()) {
                    Entry::Occupied(mut queue) => queue.get_mut().push(Want { spans, answer }),
                    Entry::Vacant(idle) => {
                        idle.insert(Vec::new());
                        lead.push((key.clone(), vec![Want { spans, answer }]));
                    }
                }
            }
        }
        if !lead.is_empty() {
            // A task of its own: a caller that goes away must not leave others waiting.
            tokio::spawn(self.clone().lead(lead));
        }

        let mut results: Vec<Option<Result<Bytes, Failure>>> = vec![None; wanted.len()];
        for (indexes, receiver) in waiting {
            let answers = receiver.await.unwrap_or_default();
            for (index, answer) in indexes.into_iter().zip(answers) {
                if let Some(slot) = results.get_mut(index) {
                    *slot = Some(answer);
                }
            }
        }
        let stopped = || {
            let kind = dl_store::Kind::Unavailable;
            Err(Arc::new(dl_store::Error::new(kind, "read", "chunks while the server stops")))
        };
        results.into_iter().map(|result| result.unwrap_or_else(stopped)).collect()
    }

    /// Reads for these wants, then for those that came meanwhile, until none are left.
    async fn lead(self, work: Vec<(Key, Vec<Want>)>) {
        let mut leading = Leading { executor: self, work };
        while !leading.work.is_empty() {
            let Leading { executor, work } = &mut leading;
            executor.serve(work.iter_mut()).await;
            let mut busy = executor.lock();
            work.retain_mut(|(key, wants)| match busy.entry(key.clone()) {
                Entry::Occupied(mut queue) if !queue.get().is_empty() => {
                    *wants = std::mem::take(queue.get_mut());
                    true
                }
                Entry::Occupied(idle) => {
                    idle.remove();
                    false
                }
                Entry::Vacant(_) => false,
            });
        }
    }

    /// One call to the store for all the reads that the wants need.
    async fn serve(&self, work: impl Iterator<Item = &mut (Key, Vec<Want>)>) {
        let mut ranges = Vec::new();
        let mut plans = Vec::new();
        for (key, wants) in work {
            let mut spans: Vec<Span> =
                wants.iter().flat_map(|want| want.spans.iter().copied()).collect();
            spans.sort_unstable();
            let reads = merge(&spans);
            let first = ranges.len();
            ranges.extend(reads.iter().filter_map(|span| {
                let range = ByteRange::exact(span.start, span.end).ok()?;
                Some(ObjectRange { key: key.clone(), range })
            }));
            plans.push((std::mem::take(wants), reads, first));
        }
        let bodies: Vec<Result<Bytes, Failure>> =
            self.store.read(&ranges).await.into_iter().map(|body| body.map_err(Arc::new)).collect();
        for (wants, reads, first) in plans {
            let bodies = bodies.get(first..).unwrap_or_default();
            for want in wants {
                let cut = want.spans.iter().map(|span| cut(*span, &reads, bodies)).collect();
                // Whoever asked may have gone.
                let _ = want.answer.send(cut);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The objects that a task reads for others. However the task ends, nobody queues behind it then.
struct Leading {
    executor: Executor,
    work: Vec<(Key, Vec<Want>)>,
}

impl Drop for Leading {
    fn drop(&mut self) {
        let mut busy = self.executor.lock();
        for (key, _) in &self.work {
            busy.remove(key);
        }
    }
}

fn key_of(wanted: &[(Key, Span)], index: usize) -> Option<&Key> {
    wanted.get(index).map(|(key, _)| key)
}

/// The reads that cover sorted spans.
fn merge(spans: &[Span]) -> Vec<Span> {
    let (Some(first), Some(end)) = (spans.first(), spans.iter().map(|span| span.end).max()) else {
        return Vec::new();
    };
    let whole = Span { start: first.start, end };
    let wanted: u64 = spans.iter().map(|span| span.end - span.start).sum();
    if wanted.saturating_mul(DENSE) >= whole.end - whole.start {
        return vec![whole];
    }
    let mut reads: Vec<Span> = Vec::new();
    for span in spans {
        match reads.last_mut() {
            Some(read) if span.start <= read.end.saturating_add(GAP) => {
                read.end = read.end.max(span.end);
            }
            _ => reads.push(*span),
        }
    }
    reads
}

/// The bytes of a span out of the read that covers it.
fn cut(span: Span, reads: &[Span], bodies: &[Result<Bytes, Failure>]) -> Result<Bytes, Failure> {
    let index = reads.partition_point(|read| read.end < span.end);
    let missing = || {
        let kind = dl_store::Kind::Unavailable;
        Arc::new(dl_store::Error::new(kind, "read", "a range the store did not answer"))
    };
    let read = reads.get(index).ok_or_else(missing)?;
    let body = bodies.get(index).ok_or_else(missing)?.clone()?;
    let start = usize::try_from(span.start - read.start).map_err(|_| missing())?;
    let end = usize::try_from(span.end - read.start).map_err(|_| missing())?;
    if start > end || end > body.len() {
        return Err(missing());
    }
    Ok(body.slice(start..end))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dl_runtime::SystemClock;
    use dl_store::{CountStore, Throttle, ThrottleStore};

    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    #[test]
    fn close_ranges_become_one_read_and_far_ones_stay_apart() {
        let far = 4 << 20;
        let near = merge(&[span(0, 100), span(5_000, 5_100)]);
        assert_eq!(near, [span(0, 5_100)]);
        let apart = merge(&[span(0, 100), span(far, far + 100)]);
        assert_eq!(apart, [span(0, 100), span(far, far + 100)]);
        let dense: Vec<_> = (0..100).map(|n| span(n * 30_000, n * 30_000 + 4_096)).collect();
        assert_eq!(merge(&dense), [span(0, 99 * 30_000 + 4_096)]);
        assert!(merge(&[]).is_empty());
    }

    async fn filled(keys: &[Key]) -> Arc<dyn Store> {
        let store = dl_store::memory();
        let body: Bytes = (0..1u32 << 20).map(|n| (n % 251) as u8).collect::<Vec<_>>().into();
        for key in keys {
            store.create(key, body.clone()).await.unwrap();
        }
        store
    }

    #[tokio::test]
    async fn many_files_of_one_chunk_cost_one_store_read() {
        let key = Key::new("chunk").unwrap();
        let (store, counters) = CountStore::new(filled(std::slice::from_ref(&key)).await);
        let executor = Executor::new(Arc::new(store));
        let wanted: Vec<_> =
            (0..256).rev().map(|n| (key.clone(), span(n * 4096, (n + 1) * 4096))).collect();
        let answers = executor.read(&wanted).await;
        for ((_, span), answer) in wanted.iter().zip(answers) {
            let expected: Vec<u8> = (span.start..span.end).map(|n| (n % 251) as u8).collect();
            assert_eq!(answer.unwrap(), expected);
        }
        assert_eq!(counters.counts().ranges, 1);
    }

    #[tokio::test]
    async fn requests_that_wait_for_a_chunk_share_the_next_read() {
        let key = Key::new("chunk").unwrap();
        let clock = Arc::new(SystemClock::new());
        let slow = Throttle { latency: Duration::from_millis(100), ..Throttle::default() };
        let inner = filled(std::slice::from_ref(&key)).await;
        let (store, _) = ThrottleStore::new(inner, clock, slow, 64);
        let (store, counters) = CountStore::new(Arc::new(store));
        let executor = Executor::new(Arc::new(store));
        let requests = (0..256u64).map(|n| {
            let wanted = [(key.clone(), span(n * 4096, n * 4096 + 100))];
            let executor = executor.clone();
            async move { executor.read(&wanted).await.remove(0).unwrap().len() }
        });
        let lengths = futures::future::join_all(requests).await;
        assert_eq!(lengths, vec![100; 256]);
        assert_eq!(counters.counts().ranges, 2, "the first one's, and one for all others");
        assert!(executor.lock().is_empty());
    }

    #[tokio::test]
    async fn a_caller_that_gives_up_leaves_nobody_waiting() {
        let key = Key::new("chunk").unwrap();
        let clock = Arc::new(SystemClock::new());
        let slow = Throttle { latency: Duration::from_millis(50), ..Throttle::default() };
        let inner = filled(std::slice::from_ref(&key)).await;
        let (store, _) = ThrottleStore::new(inner, clock, slow, 64);
        let executor = Executor::new(Arc::new(store));
        let wanted = [(key.clone(), span(0, 10))];
        let given_up = executor.read(&wanted);
        assert!(tokio::time::timeout(Duration::from_millis(5), given_up).await.is_err());
        assert_eq!(executor.read(&wanted).await.remove(0).unwrap().len(), 10);
    }

    #[tokio::test]
    async fn a_missing_object_fails_its_ranges_only() {
        let (there, gone) = (Key::new("a").unwrap(), Key::new("b").unwrap());
        let executor = Executor::new(filled(std::slice::from_ref(&there)).await);
        let answers = executor.read(&[(gone, span(0, 1)), (there, span(5, 8))]).await;
        assert_eq!(answers[0].as_ref().unwrap_err().kind, dl_store::Kind::Missing);
        assert_eq!(answers[1].as_ref().unwrap().as_ref(), [5, 6, 7]);
    }
}
