//! Reads ranges of chunks for many requests at once (paper, section 4).
//!
//! Must hold: close ranges of a chunk become one read, and callers that come during the read of a chunk share
//! the next read. Each caller is answered once, and fails only by its own bytes, up to [`FAILURES`]. An
//! answer keeps at most twice the bytes of [`cost`]; bytes between the ranges of different callers are
//! bounded for all together.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dl_store::{ByteRange, Key, ObjectRange, Store};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream;
use tokio::sync::{Semaphore, oneshot};

/// Most bytes between ranges of a read: what a local store copies in the time of another request.
const GAP: u64 = 16 << 10;

/// Bytes of a read for waiting callers: a chunk of the usual size.
const ROUND_BYTES: u64 = 4 << 20;

/// Bytes between ranges of different callers that are in memory at once.
const GAPS_BYTES: u32 = 16 << 20;

/// Ranges of a failed read that are read again at once, each by itself.
const APART_AT_ONCE: usize = 64;

/// Failures after which no more ranges are read again: a disk that is gone is not asked for each file.
const FAILURES: usize = 256;

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

/// Whether a range is read together with a read up to `end`: the gap is small, or at most the range.
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

/// What is read with one call for some who waited.
#[derive(Debug, Default)]
struct Round {
    /// Those of an object next to each other.
    wants: Vec<(Key, Want)>,
    /// Bytes that are read.
    bytes: u64,
    /// How many of these none of them has room for.
    gaps: u64,
}

/// Who waits for an object that is being read.
type Queues = HashMap<Key, Vec<Want>>;

/// Reads for all requests of a server.
#[derive(Debug, Clone)]
pub(crate) struct Executor {
    store: Arc<dyn Store>,
    busy: Arc<Mutex<Queues>>,
    counts: Arc<ReadCounts>,
    /// In bytes, for what lies between ranges of different callers.
    gaps: Arc<Semaphore>,
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
        let gaps = Arc::new(Semaphore::new(GAPS_BYTES as usize));
        Self { store, busy: Arc::default(), counts: Arc::default(), gaps }
    }

    /// What it did so far.
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
            // Nobody else waits for what is wrong with these.
            leading.pass_on();
            return self.settled(wanted, fetched).await.0;
        }
        let mut results: Answer = vec![Err(unanswered()); wanted.len()];
        let own: Vec<_> = led
            .iter()
            .flat_map(|run| wanted.get(run.clone()).unwrap_or_default())
            .cloned()
            .collect();
        let fetched = self.fetch(&own).await;
        // Before the wait: what others lead may wait for what is led here.
        leading.pass_on();
        let (answers, _) = self.settled(&own, fetched).await;
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
        results
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
            let rounds = stream::iter(rounds(work));
            rounds.for_each_concurrent(None, |round| self.answer(round)).await;
            work = leading.release();
        }
    }

    /// Reads for some who waited.
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
                // By itself, as it may be at fault, or another one: who is not waits for nobody.
                dl_runtime::spawn(self.clone().answer_alone(key, want));
                continue;
            }
            set_apart(&mut answer, read);
            // Whoever asked may have gone.
            let _ = want.answer.send(answer);
        }
    }

    /// Reads for one of those who waited.
    async fn answer_alone(self, key: Key, want: Want) {
        let wanted: Vec<_> = want.spans.iter().map(|span| (key.clone(), *span)).collect();
        let fetched = self.fetch(&wanted).await;
        let (mut answer, read) = self.settled(&wanted, fetched).await;
        set_apart(&mut answer, read);
        // Whoever asked may have gone.
        let _ = want.answer.send(answer);
    }

    /// What was read, and again apart what failed together. Also gives the bytes of all reads that
    /// became of them: each range may keep all of these in memory.
    async fn settled(&self, wanted: &[(Key, Span)], fetched: (Answer, u64)) -> (Answer, u64) {
        let failed = failed_together(&fetched.0);
        if failed.is_empty() {
            return fetched;
        }
        Box::pin(self.apart(wanted, fetched, failed)).await
    }

    /// Reads again range by range: a damaged place, or a range that ends past its object, fails no other.
    async fn apart(
        &self,
        wanted: &[(Key, Span)],
        (mut answers, mut read): (Answer, u64),
        mut failed: Vec<usize>,
    ) -> (Answer, u64) {
        // The lowest first, as an object that is cut short is whole before the cut.
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

    /// One call to the store for all ranges. Also gives the bytes that each range may keep in memory.
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

/// The ranges of each object.
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

/// Adds the reads that cover ranges of an object, sorted.
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

/// The reads that cover ranges of an object, and their bytes.
fn merged(spans: Vec<Span>) -> (Vec<Span>, u64) {
    let mut reads = Vec::new();
    merge(spans, &mut reads);
    let bytes = reads.iter().map(|read| read.length()).sum();
    (reads, bytes)
}

/// What is read at once for those who waited: objects together up to [`ROUND_BYTES`], and of an
/// object as much as is not more than that. Only what one of them wants by itself may be.
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
                // Two parts of an object would become one read.
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

/// Whether a failure may be that of some bytes of a read only.
fn is_of_a_place(why: &Failure) -> bool {
    why.kind == dl_store::Kind::Corrupt || why.is_of_disk()
}

/// The ranges whose read failed for several ranges, and may be good for some of them.
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
