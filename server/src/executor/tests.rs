//! What becomes of ranges that several callers want.

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
    let key = Key::new("chunk").unwrap();
    let merged = |spans: &[Span]| {
        let run: Vec<_> = spans.iter().map(|span| (key.clone(), *span)).collect();
        let mut reads = Vec::new();
        merge(&run, &mut reads);
        reads
    };
    assert_eq!(merged(&[span(5_000, 5_100), span(0, 100)]), [span(0, 5_100)]);
    let apart = [span(0, 100), span(far, far + 100)];
    assert_eq!(merged(&apart), apart);
    // A gap as large as what comes after it.
    let large: Vec<_> = (0..10).map(|n| span(n * 200_000, n * 200_000 + 100_000)).collect();
    assert_eq!(merged(&large), [span(0, 1_900_000)]);
    assert_eq!(merged(&[]), []);
}

#[test]
fn no_more_is_read_than_a_caller_was_told_that_its_ranges_cost() {
    let key = Key::new("chunk").unwrap();
    let mut state = 1u64;
    let mut dice = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for round in 0..500 {
        let sparse = 1 + dice(100_000);
        let mut spans: Vec<Span> = Vec::new();
        for _ in 0..dice(60) {
            let start = dice(sparse * 60);
            spans.push(span(start, start + 1 + dice(if round % 2 == 0 { 200 } else { 60_000 })));
        }
        spans.sort_unstable();
        let (mut told, mut end) = (0, None::<u64>);
        for span in &spans {
            told += cost(end, *span);
            end = Some(end.map_or(span.end, |end| end.max(span.end)));
        }
        let run: Vec<_> = spans.iter().map(|span| (key.clone(), *span)).collect();
        let mut reads = Vec::new();
        merge(&run, &mut reads);
        let read: u64 = reads.iter().map(|read| read.end - read.start).sum();
        assert!(read <= told, "{read} bytes are read for {told}: {spans:?}");
    }
}

#[test]
fn a_small_answer_keeps_no_large_read_in_memory() {
    let read = Bytes::from((0..100_000u32).map(|n| (n % 251) as u8).collect::<Vec<_>>());
    let cut = |from: usize, to| Ok(read.slice(from..to));
    let mut answer = vec![cut(0, 10), Err(unanswered()), cut(500, 40_000)];
    let expected = [read.slice(0..10).to_vec(), read.slice(500..40_000).to_vec()];
    set_apart(&mut answer, 100_000);
    let got: Vec<_> = answer.iter().flatten().map(|bytes| bytes.to_vec()).collect();
    assert_eq!(got, expected);
    assert!(answer[1].is_err() && read.is_unique());
    let mut answer = vec![Ok(read.slice(0..60_000))];
    set_apart(&mut answer, 100_000);
    assert!(!read.is_unique(), "most of it is not copied");
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
async fn callers_that_wait_for_each_other_and_for_themselves_are_answered() {
    let (a, b) = (Key::new("a").unwrap(), Key::new("b").unwrap());
    let clock = Arc::new(SystemClock::new());
    let slow = Throttle { latency: Duration::from_millis(5), ..Throttle::default() };
    let (store, _) = ThrottleStore::new(filled(&[a.clone(), b.clone()]).await, clock, slow, 64);
    let executor = Executor::new(Arc::new(store));
    let requests = (0..64u64).map(|n| {
        let (first, second) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        // The first object twice, not next to each other.
        let wanted: Vec<_> = [first, second, first].map(|key| (key.clone(), span(n, n + 1))).into();
        let executor = executor.clone();
        tokio::spawn(async move { executor.read(&wanted).await })
    });
    for (n, answers) in futures::future::join_all(requests).await.into_iter().enumerate() {
        let answers: Vec<_> = answers.unwrap().into_iter().map(Result::unwrap).collect();
        assert!(answers.len() == 3 && answers.iter().all(|answer| **answer == [(n % 251) as u8]));
    }
    assert!(executor.lock().is_empty());
}

#[tokio::test]
async fn a_missing_object_fails_its_ranges_only() {
    let (there, gone) = (Key::new("a").unwrap(), Key::new("b").unwrap());
    let executor = Executor::new(filled(std::slice::from_ref(&there)).await);
    let answers = executor.read(&[(gone, span(0, 1)), (there, span(5, 8))]).await;
    assert_eq!(answers[0].as_ref().unwrap_err().kind, dl_store::Kind::Missing);
    assert_eq!(answers[1].as_ref().unwrap().as_ref(), [5, 6, 7]);
}
