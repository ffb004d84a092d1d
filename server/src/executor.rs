//! The request executor (paper, 4): turns the many small ranges that requests want into few large
//! reads of the chunk store.
//!
//! Must hold: wanted ranges of one chunk that lie close become one read; while a chunk is being
//! read, whoever wants more of it waits, and all who waited share the next read; each is answered
//! exactly once, also when another one that waits gives up. A caller knows what a read of its ranges
//! takes before it asks ([`cost`]), and no answer keeps more than twice that in memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dl_store::{ByteRange, Key, ObjectRange, Store};
use tokio::sync::oneshot;

/// Ranges of a chunk that lie at most this far apart are read as one: about what a local store
/// copies in the time of another request to it.
const GAP: u64 = 16 << 10;

/// Bytes `start..end` of an object; never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Bytes that are read for a range, after others of the same object up to `end`: its own, and
/// those between when it is read with them. For ranges in the order of their starts.
pub(crate) fn cost(end: Option<u64>, span: Span) -> u64 {
    let gap = end.filter(|end| joins(*end, span)).map_or(0, |end| span.start.saturating_sub(end));
    span.length().saturating_add(gap)
}

/// Whether a range is read together with what ends at `end`: where the gap is small, or not larger
/// than the range.
fn joins(end: u64, span: Span) -> bool {
    span.start <= end.saturating_add(GAP.max(span.length()))
}

impl Span {
    fn length(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
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
    counts: Arc<ReadCounts>,
}

/// What an [`Executor`] did so far.
#[derive(Debug, Default)]
pub(crate) struct ReadCounts {
    /// Ranges that requests wanted.
    pub(crate) wanted: AtomicU64,
    /// Reads of the store that they became.
    pub(crate) merged: AtomicU64,
    /// Times that a request waited for a chunk which another one was reading.
    pub(crate) waits: AtomicU64,
}

impl Executor {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, busy: Arc::default(), counts: Arc::default() }
    }

    /// What it did so far.
    pub(crate) fn counts(&self) -> &ReadCounts {
        &self.counts
    }

    /// Reads ranges, those of an object next to each other; one result for each, in order.
    /// Callers bound the bytes.
    pub(crate) async fn read(&self, wanted: &[(Key, Span)]) -> Answer {
        let Claim { leading, led, waits } = self.claim(wanted);
        add(&self.counts.wanted, wanted.len());
        add(&self.counts.waits, waits.len());
        if waits.is_empty() {
            let (answers, _) = self.fetch(wanted).await;
            leading.pass_on();
            return answers;
        }
        let mut results: Vec<Option<Result<Bytes, Failure>>> = vec![None; wanted.len()];
        let own: Vec<_> = led
            .iter()
            .flat_map(|run| wanted.get(run.clone()).unwrap_or_default())
            .cloned()
            .collect();
        let (answers, _) = self.fetch(&own).await;
        // Before the wait: what others lead may wait for what is led here.
        leading.pass_on();
        for (index, answer) in led.into_iter().flatten().zip(answers) {
            put(&mut results, index, answer);
        }
        for (run, receiver) in waits {
            let answers = match receiver.await {
                Ok(answers) => answers,
                // Who read for this caller gave up.
                Err(_) => Box::pin(self.read(wanted.get(run.clone()).unwrap_or_default())).await,
            };
            for (index, answer) in run.zip(answers) {
                put(&mut results, index, answer);
            }
        }
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(unanswered()))).collect()
    }

    /// Takes the lead for objects that nobody reads, and a place in the queues of the others.
    fn claim(&self, wanted: &[(Key, Span)]) -> Claim {
        let leading = Leading { executor: self.clone(), objects: Vec::with_capacity(wanted.len()) };
        let mut claim = Claim { leading, led: Vec::new(), waits: Vec::new() };
        let mut busy = self.lock();
        let mut start = 0;
        for run in runs(wanted) {
            let indexes = start..start + run.len();
            start = indexes.end;
            let Some((key, _)) = run.first() else { continue };
            match busy.entry(key.clone()) {
                Entry::Vacant(idle) => {
                    idle.insert(Vec::new());
                    claim.leading.objects.push(key.clone());
                    claim.led.push(indexes);
                }
                Entry::Occupied(mut queue) => {
                    let (answer, receiver) = oneshot::channel();
                    let spans = run.iter().map(|(_, span)| *span).collect();
                    queue.get_mut().push(Want { spans, answer });
                    claim.waits.push((indexes, receiver));
                }
            }
        }
        claim
    }

    /// Reads for those who wait, then for those that came meanwhile, until none are left.
    async fn follow(self, mut work: Vec<(Key, Vec<Want>)>) {
        while !work.is_empty() {
            let objects = work.iter().map(|(key, _)| key.clone()).collect();
            let leading = Leading { executor: self.clone(), objects };
            let wanted: Vec<(Key, Span)> = work
                .iter()
                .flat_map(|(key, wants)| {
                    let spans = wants.iter().flat_map(|want| &want.spans);
                    spans.map(|span| (key.clone(), *span))
                })
                .collect();
            let (answers, read) = self.fetch(&wanted).await;
            let mut answers = answers.into_iter();
            for want in work.into_iter().flat_map(|(_, wants)| wants) {
                let mut answer: Answer = answers.by_ref().take(want.spans.len()).collect();
                set_apart(&mut answer, read);
                // Whoever asked may have gone.
                let _ = want.answer.send(answer);
            }
            work = leading.release();
        }
    }

    /// One call to the store for all the reads that the ranges need. Also gives the bytes of these:
    /// each range may keep all of them in memory.
    async fn fetch(&self, wanted: &[(Key, Span)]) -> (Answer, u64) {
        let mut ranges = Vec::with_capacity(wanted.len());
        let mut reads = Vec::with_capacity(wanted.len());
        let mut ends = Vec::with_capacity(wanted.len());
        for run in runs(wanted) {
            let Some((key, _)) = run.first() else { continue };
            let from = reads.len();
            merge(run, &mut reads);
            ranges.extend(reads.iter().skip(from).filter_map(|span| {
                let range = ByteRange::exact(span.start, span.end).ok()?;
                Some(ObjectRange { key: key.clone(), range })
            }));
            ends.push(reads.len());
        }
        add(&self.counts.merged, ranges.len());
        let bodies: Answer =
            self.store.read(&ranges).await.into_iter().map(|body| body.map_err(Arc::new)).collect();
        let mut answers = Vec::with_capacity(wanted.len());
        let mut from = 0;
        for (run, end) in runs(wanted).zip(ends) {
            let reads = reads.get(from..end).unwrap_or_default();
            let bodies = bodies.get(from..).unwrap_or_default();
            answers.extend(run.iter().map(|(_, span)| cut(*span, reads, bodies)));
            from = end;
        }
        (answers, bodies.iter().flatten().map(|body| body.len() as u64).sum())
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one caller reads itself, and what others read for it; by its ranges.
struct Claim {
    leading: Leading,
    led: Vec<Range<usize>>,
    waits: Vec<(Range<usize>, oneshot::Receiver<Answer>)>,
}

/// The objects that are read by one task. However the task ends, nobody queues behind it then.
struct Leading {
    executor: Executor,
    objects: Vec<Key>,
}

impl Leading {
    /// Lets go of the objects that nobody waits for; gives who waits for the others.
    fn release(mut self) -> Vec<(Key, Vec<Want>)> {
        let mut waiting = Vec::new();
        let mut busy = self.executor.lock();
        for key in self.objects.drain(..) {
            match busy.get_mut(&key) {
                Some(queue) if !queue.is_empty() => waiting.push((key, std::mem::take(queue))),
                Some(_) => drop(busy.remove(&key)),
                None => {}
            }
        }
        drop(busy);
        waiting
    }

    /// Leaves those who wait to a task of their own: the caller has its bytes.
    fn pass_on(self) {
        let executor = self.executor.clone();
        let waiting = self.release();
        if !waiting.is_empty() {
            tokio::spawn(executor.follow(waiting));
        }
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        if self.objects.is_empty() {
            return;
        }
        let mut busy = self.executor.lock();
        for key in &self.objects {
            busy.remove(key);
        }
    }
}

/// The ranges of each object.
fn runs(wanted: &[(Key, Span)]) -> impl Iterator<Item = &[(Key, Span)]> {
    wanted.chunk_by(|(a, _), (b, _)| a == b)
}

fn put(
    results: &mut [Option<Result<Bytes, Failure>>],
    index: usize,
    answer: Result<Bytes, Failure>,
) {
    if let Some(slot) = results.get_mut(index) {
        *slot = Some(answer);
    }
}

fn add(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

fn unanswered() -> Failure {
    let kind = dl_store::Kind::Unavailable;
    Arc::new(dl_store::Error::new(kind, "read", "a range the store did not answer"))
}

/// Adds the reads that cover the ranges of an object, sorted.
fn merge(run: &[(Key, Span)], reads: &mut Vec<Span>) {
    if let [(_, span)] = run {
        return reads.push(*span);
    }
    let mut spans: Vec<Span> = run.iter().map(|(_, span)| *span).collect();
    spans.sort_unstable();
    let from = reads.len();
    for span in spans {
        match reads.get_mut(from..).and_then(<[Span]>::last_mut) {
            Some(read) if joins(read.end, span) => {
                read.end = read.end.max(span.end);
            }
            _ => reads.push(span),
        }
    }
}

/// Copies an answer out of a read that it is a small part of, and that its caller would keep in
/// memory for as long as its own client takes.
fn set_apart(answer: &mut Answer, read: u64) {
    let own: usize = answer.iter().flatten().map(Bytes::len).sum();
    if (own as u64).saturating_mul(2) >= read {
        return;
    }
    let mut copy = Vec::with_capacity(own);
    answer.iter().flatten().for_each(|bytes| copy.extend_from_slice(bytes));
    let copy = Bytes::from(copy);
    let mut from = 0;
    for bytes in answer.iter_mut().flatten() {
        let end = from + bytes.len();
        *bytes = copy.slice(from..end);
        from = end;
    }
}

/// The bytes of a span out of the read that covers it.
fn cut(span: Span, reads: &[Span], bodies: &[Result<Bytes, Failure>]) -> Result<Bytes, Failure> {
    let index = reads.partition_point(|read| read.end < span.end);
    let read = reads.get(index).ok_or_else(unanswered)?;
    let body = bodies.get(index).ok_or_else(unanswered)?.clone()?;
    let start = usize::try_from(span.start - read.start).map_err(|_| unanswered())?;
    let end = usize::try_from(span.end - read.start).map_err(|_| unanswered())?;
    if start > end || end > body.len() {
        return Err(unanswered());
    }
    Ok(body.slice(start..end))
}

#[cfg(test)]
mod tests;
