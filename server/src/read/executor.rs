//! Reads ranges of chunks for many requests at once (paper, section 4).
//!
//! Must hold: close ranges of a chunk become one read; callers that come during a read of the chunk share the
//! next read. Each caller gets one answer, and fails only by its own bytes, up to [`FAILURES`]. An answer keeps
//! at most twice the bytes of [`cost`]. [`GAPS_BYTES`] bounds bytes between ranges of different callers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use dl_runtime::locked;
use dl_store::{ByteRange, Key, ObjectRange, Store};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream;
use tokio::sync::{Semaphore, oneshot};

/// Most bytes between two ranges of a read: a local store copies as many in the time of another request.
const GAP: u64 = 16 << 10;

/// Bytes of a read for waiting callers: a chunk of the usual size.
const ROUND_BYTES: u64 = 4 << 20;

/// Most bytes between ranges of different callers in memory.
const GAPS_BYTES: u32 = 16 << 20;

/// Ranges of a failed read retried at once, each alone.
const APART_AT_ONCE: usize = 64;

/// Failures that end the retries of single ranges: a broken disk gets no read for each file.
const FAILURES: usize = 256;

/// Bytes `start..end` of an object; never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Bytes that a range adds to reads of its object up to `end`, with the gap if both become a read. Ranges come
/// by start.
pub(crate) fn cost(end: Option<u64>, span: Span) -> u64 {
    let gap = end.filter(|end| joins(*end, span)).map_or(0, |end| span.start.saturating_sub(end));
    span.length().saturating_add(gap)
}

/// Whether a range joins a read up to `end`: the gap has at most [`GAP`] bytes, or the range's length.
fn joins(end: u64, span: Span) -> bool {
    span.start <= end.saturating_add(GAP.max(span.length()))
}

impl Span {
    fn length(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Error of a read, shared by all its callers.
pub(crate) type Failure = Arc<dl_store::Error>;

type Answer = Vec<Result<Bytes, Failure>>;

#[derive(Debug)]
struct Want {
    spans: Vec<Span>,
    answer: oneshot::Sender<Answer>,
}

/// Reads of a single store call, for waiting callers.
#[derive(Debug, Default)]
struct Round {
    /// Callers of an object stand next to each other.
    wants: Vec<(Key, Want)>,
    bytes: u64,
    /// Bytes of the reads in no caller's cost.
    gaps: u64,
}

/// Waiting callers of each object being read.
type Queues = HashMap<Key, Vec<Want>>;

/// Reads for all requests of a server.
#[derive(Debug, Clone)]
pub(crate) struct Executor {
    store: Arc<dyn Store>,
    busy: Arc<Mutex<Queues>>,
    counts: Arc<ReadCounts>,
    /// In bytes, for gaps between ranges of different callers.
    gaps: Arc<Semaphore>,
}

/// Counts of an [`Executor`] since its start.
#[derive(Debug, Default)]
pub(crate) struct ReadCounts {
    /// Ranges wanted by requests.
    pub(crate) wanted: AtomicU64,
    /// Reads of the store after merging.
    pub(crate) merged: AtomicU64,
    /// Times a request waited for another reader of a chunk.
    pub(crate) waits: AtomicU64,
}

impl Executor {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let gaps = Arc::new(Semaphore::new(GAPS_BYTES as usize));
        Self { store, busy: Arc::default(), counts: Arc::default(), gaps }
    }

    /// Its counts.
    pub(crate) fn counts(&self) -> &ReadCounts {
        &self.counts
    }

    /// Reads ranges, sorted by object; a result for each, in order. Callers bound the bytes.
    pub(crate) async fn read(&self, wanted: &[(Key, Span)]) -> Answer {
        let Claim { leading, led, waits } = self.claim(wanted);
        add(&self.counts.wanted, wanted.len());
        add(&self.counts.waits, waits.len());
        if waits.is_empty() {
            let fetched = self.fetch(wanted).await;
            // Errors of the reads concern no other caller.
            leading.pass_on();
            return self.retried(wanted, fetched).await.0;
        }
        let mut results: Answer = vec![Err(unanswered()); wanted.len()];
        let own: Vec<_> = led
            .iter()
            .flat_map(|run| wanted.get(run.clone()).unwrap_or_default())
            .cloned()
            .collect();
        let fetched = self.fetch(&own).await;
        // Before the wait: leaders of the awaited objects may wait for the led objects.
        leading.pass_on();
        let (answers, _) = self.retried(&own, fetched).await;
        for (index, answer) in led.into_iter().flatten().zip(answers) {
            put(&mut results, index, answer);
        }
        for (run, receiver) in waits {
            let answers = match receiver.await {
                Ok(answers) => answers,
                // The leader gave up.
                Err(_) => Box::pin(self.read(wanted.get(run.clone()).unwrap_or_default())).await,
            };
            for (index, answer) in run.zip(answers) {
                put(&mut results, index, answer);
            }
        }
        results
    }

    /// Takes the lead for idle objects, and a place in the queues of the busy objects.
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

    /// Reads for waiting callers, and for callers that come meanwhile, until no caller is left.
    async fn follow(self, mut work: Vec<(Key, Vec<Want>)>) {
        while !work.is_empty() {
            let objects = work.iter().map(|(key, _)| key.clone()).collect();
            let leading = Leading { executor: self.clone(), objects };
            let rounds = stream::iter(rounds(work));
            rounds.for_each_concurrent(None, |round| self.answer(round)).await;
            work = leading.release();
        }
    }

    async fn answer(&self, round: Round) {
        let Round { wants, gaps, .. } = round;
        let gaps = u32::try_from(gaps).unwrap_or(GAPS_BYTES).min(GAPS_BYTES);
        let _room = self.gaps.acquire_many(gaps).await.expect("the semaphore is never closed");
        let spans = |(key, want): &(Key, Want)| {
            let key = key.clone();
            want.spans.clone().into_iter().map(move |span| (key.clone(), span))
        };
        let wanted: Vec<(Key, Span)> = wants.iter().flat_map(spans).collect();
        let (answers, read) = self.fetch(&wanted).await;
        let mut answers = answers.into_iter();
        let is_shared = wants.len() > 1;
        for (key, want) in wants {
            let mut answer: Answer = answers.by_ref().take(want.spans.len()).collect();
            let is_alone = !is_shared && want.spans.len() == 1;
            if !is_alone && answer.iter().any(|answer| answer.as_ref().is_err_and(is_of_a_place)) {
                // Alone, so that good ranges wait for no bad range of any caller.
                dl_runtime::spawn(self.clone().answer_alone(key, want));
                continue;
            }
            set_apart(&mut answer, read);
            // The caller may be gone.
            let _ = want.answer.send(answer);
        }
    }

    async fn answer_alone(self, key: Key, want: Want) {
        let wanted: Vec<_> = want.spans.iter().map(|span| (key.clone(), *span)).collect();
        let fetched = self.fetch(&wanted).await;
        let (mut answer, read) = self.retried(&wanted, fetched).await;
        set_apart(&mut answer, read);
        // The caller may be gone.
        let _ = want.answer.send(answer);
    }

    /// Retries ranges whose shared read failed. Gives also the bytes of all reads: a range may keep all.
    async fn retried(&self, wanted: &[(Key, Span)], fetched: (Answer, u64)) -> (Answer, u64) {
        let failed = failed_together(&fetched.0);
        if failed.is_empty() {
            return fetched;
        }
        Box::pin(self.apart(wanted, fetched, failed)).await
    }

    /// Reads range by range: a damaged place, or a range past the object's end, fails no other range.
    async fn apart(
        &self,
        wanted: &[(Key, Span)],
        (mut answers, mut read): (Answer, u64),
        mut failed: Vec<usize>,
    ) -> (Answer, u64) {
        // Lowest first: an object cut short is whole before the cut.
        failed.sort_by(|one, other| wanted.get(*one).cmp(&wanted.get(*other)));
        let mut failures = 0;
        for numbers in failed.chunks(APART_AT_ONCE) {
            if failures >= FAILURES {
                break;
            }
            let again = numbers.iter().map(|number| async move {
                let wanted = wanted.get(*number).map(std::slice::from_ref).unwrap_or_default();
                self.fetch(wanted).await
            });
            for (number, (again, bytes)) in numbers.iter().zip(join_all(again).await) {
                read = read.saturating_add(bytes);
                failures += usize::from(again.iter().any(Result::is_err));
                again.into_iter().for_each(|answer| put(&mut answers, *number, answer));
            }
        }
        (answers, read)
    }

    /// Reads all ranges by a single call. Gives also the bytes that each range may keep in memory.
    async fn fetch(&self, wanted: &[(Key, Span)]) -> (Answer, u64) {
        let mut ranges = Vec::with_capacity(wanted.len());
        let mut reads = Vec::with_capacity(wanted.len());
        let mut ends = Vec::with_capacity(wanted.len());
        for run in runs(wanted) {
            let Some((key, _)) = run.first() else { continue };
            self.store.will_read(key);
            let from = reads.len();
            match run {
                [(_, span)] => reads.push(*span),
                run => merge(run.iter().map(|(_, span)| *span).collect(), &mut reads),
            }
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
        locked(&self.busy)
    }
}

/// Ranges of a caller by their leader: led by the caller itself, or by another caller.
struct Claim {
    leading: Leading,
    led: Vec<Range<usize>>,
    waits: Vec<(Range<usize>, oneshot::Receiver<Answer>)>,
}

/// The objects read by a task. However the task ends, no caller then queues behind the objects.
struct Leading {
    executor: Executor,
    objects: Vec<Key>,
}

impl Leading {
    /// Frees objects without waiting callers; gives the waiting callers of the other objects.
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

    /// Leaves waiting callers to a new task, as the own caller has its bytes.
    fn pass_on(self) {
        let executor = self.executor.clone();
        let waiting = self.release();
        if !waiting.is_empty() {
            dl_runtime::spawn(executor.follow(waiting));
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

fn runs(wanted: &[(Key, Span)]) -> impl Iterator<Item = &[(Key, Span)]> {
    wanted.chunk_by(|(a, _), (b, _)| a == b)
}

fn put(results: &mut Answer, index: usize, answer: Result<Bytes, Failure>) {
    if let Some(slot) = results.get_mut(index) {
        *slot = answer;
    }
}

fn add(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

fn unanswered() -> Failure {
    let kind = dl_store::Kind::Unavailable;
    Arc::new(dl_store::Error::new(kind, "read", "a range the store did not answer"))
}

fn merge(mut spans: Vec<Span>, reads: &mut Vec<Span>) {
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

fn merged(spans: Vec<Span>) -> (Vec<Span>, u64) {
    let mut reads = Vec::new();
    merge(spans, &mut reads);
    let bytes = reads.iter().map(|read| read.length()).sum();
    (reads, bytes)
}

/// Rounds of at most [`ROUND_BYTES`] for waiting callers; larger only for a single caller's own ranges.
fn rounds(work: Vec<(Key, Vec<Want>)>) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    for (key, mut wants) in work {
        wants.sort_by_cached_key(|want| want.spans.iter().min().copied());
        let mut wants = wants.into_iter().peekable();
        let mut is_first = true;
        while let Some(first) = wants.next() {
            let (mut reads, mut bytes) = merged(first.spans.clone());
            let (mut paid, mut together) = (bytes, vec![(key.clone(), first)]);
            while let Some(want) = wants.peek() {
                let (own, own_bytes) = merged(want.spans.clone());
                let (all, all_bytes) = merged([&reads[..], &own].concat());
                if all_bytes > ROUND_BYTES {
                    break;
                }
                (reads, bytes, paid) = (all, all_bytes, paid.saturating_add(own_bytes));
                together.extend(wants.next().map(|want| (key.clone(), want)));
            }
            let gaps = bytes.saturating_sub(paid);
            match rounds.last_mut() {
                // Two parts of an object would become a single read.
                Some(round) if is_first && round.bytes.saturating_add(bytes) <= ROUND_BYTES => {
                    round.bytes = round.bytes.saturating_add(bytes);
                    round.gaps = round.gaps.saturating_add(gaps);
                    round.wants.append(&mut together);
                }
                _ => rounds.push(Round { wants: together, bytes, gaps }),
            }
            is_first = false;
        }
    }
    rounds
}

/// Copies a small answer out of its read, whose bytes would stay in memory as long as the answer.
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

/// Whether a failure may concern only some bytes of the read.
fn is_of_a_place(why: &Failure) -> bool {
    why.kind == dl_store::Kind::Corrupt || why.is_of_disk()
}

/// Ranges whose failed read covered several ranges, and which may be readable alone.
fn failed_together(answers: &[Result<Bytes, Failure>]) -> Vec<usize> {
    let failures = || {
        let failures = answers.iter().map(|answer| answer.as_ref().err());
        let failures = failures.enumerate().filter_map(|(number, why)| Some((number, why?)));
        failures.filter(|(_, why)| is_of_a_place(why))
    };
    let mut counts: HashMap<*const dl_store::Error, usize> = HashMap::new();
    failures().for_each(|(_, why)| *counts.entry(Arc::as_ptr(why)).or_default() += 1);
    let is_shared = |why: &Failure| counts.get(&Arc::as_ptr(why)).is_some_and(|count| *count > 1);
    failures().filter(|(_, why)| is_shared(why)).map(|(number, _)| number).collect()
}

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
