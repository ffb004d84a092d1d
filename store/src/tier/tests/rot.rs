//! Copies that are not what was written: when that is found, and what it costs.

use super::super::marks::TRUSTED;
use super::*;

impl Rig {
    /// Flips a bit of the copy of an object, of the byte at `at`.
    async fn rot(&self, key: &Key, at: usize) {
        let name = copy::name(key).unwrap();
        let mut rotten = self.fast.read_all(&name).await.unwrap().to_vec();
        rotten[at] ^= 1;
        self.replace(key, rotten.into()).await;
    }

    /// Puts other bytes where the copy of an object lies.
    async fn replace(&self, key: &Key, copy: Bytes) {
        let name = copy::name(key).unwrap();
        self.fast.delete(&name).await.unwrap();
        self.fast.create(&name, copy).await.unwrap();
    }

    /// A copy of an object of ones, at which nobody has looked yet.
    async fn copied(&self) -> Key {
        let [key] = keys(["a"]);
        self.create(std::slice::from_ref(&key)).await;
        self.read(&key).await.unwrap();
        key
    }

    /// Reads what is [copied](Self::copied), and wants it right. Damaged copies found by then.
    async fn rotten(&self, key: &Key) -> u64 {
        assert_eq!(self.read(key).await.unwrap(), vec![1; 10]);
        self.tier.counts().rotten
    }
}

#[tokio::test]
async fn a_rotten_copy_is_never_given_out_and_is_replaced() {
    let rig = rig(1000).await;
    let key = rig.copied().await;
    rig.rot(&key, 15).await;
    assert_eq!(rig.rotten(&key).await, 1, "found at once, and read from the slow store");
    assert_eq!(rig.tier.counts().failures, 0);
    rig.read(&key).await.unwrap();
    let before = rig.tier.counts();
    assert_eq!(rig.rotten(&key).await, 1);
    assert_eq!(rig.tier.counts().hits, before.hits + 1, "the copy is a good one again");
    rig.clock.advance(TRUSTED);
    // A checksum that is damaged says as little of the page as the other way round.
    rig.rot(&key, 101).await;
    assert_eq!(rig.rotten(&key).await, 2);
    // Cut off by a crash of the fast store's machine.
    rig.read(&key).await.unwrap();
    let name = copy::name(&key).unwrap();
    let whole = rig.fast.read_all(&name).await.unwrap();
    rig.replace(&key, whole.slice(..50)).await;
    assert_eq!(rig.rotten(&key).await, 3);
}

#[tokio::test]
async fn a_page_found_whole_is_read_without_its_sum_for_a_while() {
    let (fast, counters) = CountStore::new(memory());
    let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
    let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    let tier = TierStore::new(memory(), Arc::new(fast), 1 << 20, time);
    let [key] = keys(["a"]);
    tier.create(&key, (0..10_000).map(|n| n as u8).collect::<Vec<_>>().into()).await.unwrap();
    tier.quiet().await;
    let mut reads = Vec::new();
    let half = TRUSTED.as_secs() / 2;
    let waits = [0, 0, 0, half - 1, half + 1, 0].map(Duration::from_secs);
    for (wait, (start, end)) in waits.into_iter().zip([(10, 20), (10, 20), (90, 190)].repeat(2)) {
        clock.advance(wait);
        let before = counters.counts().ranges;
        let read = tier.read_one(&key, ByteRange::exact(start, end).unwrap()).await.unwrap();
        assert_eq!(read, (start..end).map(|n| n as u8).collect::<Vec<_>>());
        tier.quiet().await;
        reads.push(counters.counts().ranges - before);
    }
    assert_eq!(reads, [0, 2, 1, 1, 2, 1], "brought, checked, trusted twice, checked, trusted");
}

#[tokio::test]
async fn damage_of_a_copy_that_was_found_whole_is_found_after_a_while() {
    let rig = rig(1000).await;
    let key = rig.copied().await;
    assert_eq!(rig.rotten(&key).await, 0, "found whole");
    rig.rot(&key, 15).await;
    rig.clock.advance(TRUSTED);
    assert_eq!(rig.rotten(&key).await, 1);
}

#[tokio::test]
async fn damage_of_a_copy_that_is_doubted_is_found_at_once() {
    let rig = rig(1000).await;
    let key = rig.copied().await;
    assert_eq!(rig.rotten(&key).await, 0, "found whole");
    rig.rot(&key, 15).await;
    assert_ne!(rig.read(&key).await.unwrap(), vec![1; 10], "it is not looked at again by itself");
    rig.tier.doubt(&key);
    assert_eq!(rig.rotten(&key).await, 1);
    let [other] = keys(["b"]);
    rig.tier.doubt(&other);
    assert_eq!(rig.rotten(&key).await, 1);
}

#[tokio::test]
async fn a_copy_that_was_made_anew_and_one_of_a_store_that_failed_are_checked_anew() {
    let rig = rig(1000).await;
    let key = rig.copied().await;
    assert_eq!(rig.rotten(&key).await, 0, "found whole");
    rig.tier.delete(&key).await.unwrap();
    let key = rig.copied().await;
    rig.rot(&key, 15).await;
    assert_eq!(rig.rotten(&key).await, 1, "it is another copy");
    rig.read(&key).await.unwrap();
    assert_eq!(rig.rotten(&key).await, 1, "found whole");
    rig.faults.script("read", [Some(Fault::Before(Kind::Unavailable))]);
    rig.read(&key).await.unwrap();
    rig.rot(&key, 15).await;
    rig.rest();
    assert_eq!(rig.rotten(&key).await, 2, "the store may be another one");
}

#[tokio::test]
async fn a_copy_that_an_earlier_process_left_cut_off_is_replaced() {
    let first = rig(1000).await;
    let key = first.copied().await;
    // So many bytes as the copy of a shorter object has.
    first.replace(&key, copy::of(&key, &[1; 15])).await;
    let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&first.clock);
    let (slow, fast) = (Arc::clone(&first.slow), Arc::clone(&first.fast));
    let second = Rig { tier: TierStore::new(slow, fast, 1000, time), ..first };
    second.tier.quiet().await;
    assert_eq!(second.rotten(&key).await, 1);
    assert_eq!(second.copies().await, []);
    second.read(&key).await.unwrap();
    assert_eq!((second.rotten(&key).await, second.tier.counts().hits), (1, 1));
}

#[tokio::test]
async fn a_copy_of_other_bytes_than_the_object_has_is_given_up_for_who_asks() {
    let rig = rig(1000).await;
    let key = rig.copied().await;
    // As of an object that was damaged then, and restored since.
    rig.replace(&key, copy::of(&key, &[7; 100])).await;
    rig.tier.doubt(&key);
    assert_eq!(rig.read(&key).await.unwrap(), vec![7; 10], "its checksums are right");
    rig.tier.forsake(&key);
    assert_eq!(rig.rotten(&key).await, 0);
    rig.tier.quiet().await;
    assert_eq!(rig.rotten(&key).await, 0);
    let before = rig.tier.counts();
    assert_eq!(rig.rotten(&key).await, 0);
    assert_eq!(rig.tier.counts().hits, before.hits + 1, "there is a copy again");
}
