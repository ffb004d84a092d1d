//! Stores that fail to list, never come to an end of it, or hold large objects.

use super::*;

/// A tier over two stores in memory, each behind faults of its own.
struct Faulty {
    clock: Arc<ManualClock>,
    slow: Faults<Kind>,
    tier: TierStore,
}

/// With these faults when the fast store is first listed.
fn faulty(first: impl IntoIterator<Item = Option<Fault<Kind>>>) -> Faulty {
    let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
    clock.advance(Duration::from_secs(1));
    let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    let faults = || Faults::new(Arc::new(SeededRandom::new(1)));
    let (slow, fast) = (faults(), faults());
    fast.script("list", first);
    let before = |faults: &Faults<Kind>| -> Arc<dyn Store> {
        let (time, faults) = (Arc::clone(&time), faults.clone());
        Arc::new(FaultStore::new(memory(), time, faults, CutPoint::new()))
    };
    let tier = TierStore::new(before(&slow), before(&fast), 1 << 30, Arc::clone(&time));
    Faulty { clock, slow, tier }
}

/// Lets everything go on that waits for no clock.
pub(super) async fn go_on() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_listing_that_fails_is_not_taken_for_all_there_is_to_keep() {
    let Faulty { slow, tier, .. } = faulty([]);
    tier.quiet().await;
    let (one, a) = (Key::new("a/1").unwrap(), Prefix::new("a").unwrap());
    tier.create(&one, vec![1; 100].into()).await.unwrap();
    slow.script("list", [Some(Fault::Before(Kind::Unavailable))]);
    assert_eq!(tier.copy_all(&a).await.unwrap_err().kind, Kind::Unavailable);
    assert_eq!(tier.copy_all(&a).await.unwrap(), Kept { bytes: 100, left_out: 0 });
}

#[tokio::test]
async fn a_fast_store_whose_listing_hangs_is_listed_again() {
    let Faulty { clock, tier, .. } = faulty([Some(Fault::Delay(Duration::from_secs(3600)))]);
    let ([key], range) = (keys(["a"]), ByteRange::exact(0, 1).unwrap());
    tier.create(&key, "body".into()).await.unwrap();
    for (wait, failures, made) in [
        (Duration::ZERO, 0, 0),
        (WRITE_TIMEOUT, 1, 0),
        (REST, 1, 0),
        (Duration::from_secs(1), 1, 1),
    ] {
        clock.advance(wait);
        go_on().await;
        tier.read_one(&key, range).await.unwrap();
        go_on().await;
        let counts = tier.counts();
        assert_eq!((counts.failures, counts.made), (failures, made), "after {wait:?}");
    }
}

#[tokio::test]
async fn two_usual_objects_or_one_large_object_are_in_memory() {
    for (length, least, most) in [(USUAL, 2, 2), (USUAL + 1, 6, 8)] {
        let Faulty { clock, slow, tier } = faulty([]);
        tier.quiet().await;
        let a = Prefix::new("a").unwrap();
        for key in keys(["a/1", "a/2", "a/3", "a/4"]) {
            tier.create(&key, vec![1; length as usize].into()).await.unwrap();
        }
        let second = Duration::from_secs(1);
        slow.script("read", [Some(Fault::Delay(second)); 8]);
        let mut brought = std::pin::pin!(tier.copy_all(&a));
        let (mut seconds, mut turns) = (0, 0);
        let kept = loop {
            if let std::task::Poll::Ready(kept) = futures::poll!(&mut brought) {
                break kept.unwrap();
            }
            // Each turn is one poll, and what runs beside it.
            turns += 1;
            tokio::task::yield_now().await;
            if turns % 200 == 0 {
                clock.advance(second);
                seconds += 1;
            }
            assert!(seconds < 100, "it never ends");
        };
        assert_eq!(kept, Kept { bytes: 4 * length, left_out: 0 });
        assert!((least..=most).contains(&seconds), "{seconds} s for objects of {length} bytes");
    }
}
