//! Objects of one group, which are copied together.

use super::slow::go_on;
use super::*;

/// Groups are the folders below `of`.
fn group(key: &Key) -> Option<Prefix> {
    let (folder, _) = key.as_str().strip_prefix("of/")?.split_once('/')?;
    Prefix::new(format!("of/{folder}")).ok()
}

struct Grouped {
    clock: Arc<ManualClock>,
    slow: Faults<Kind>,
    tier: TierStore,
}

/// With room for copies of so many objects of 100 bytes.
async fn grouped(room: u64, keys: &[Key]) -> Grouped {
    let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
    clock.advance(Duration::from_secs(1));
    let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    let slow = Faults::new(Arc::new(SeededRandom::new(1)));
    let before = FaultStore::new(memory(), Arc::clone(&time), slow.clone(), CutPoint::new());
    let quota = room * 100;
    let tier = TierStore::with_groups(Arc::new(before), memory(), quota, time, group);
    tier.quiet().await;
    for key in keys {
        tier.create(key, vec![1; 100].into()).await.unwrap();
    }
    Grouped { clock, slow, tier }
}

/// Reads files of an object.
async fn read(tier: &TierStore, key: &Key) {
    tier.will_read(key);
    tier.read_one(key, ByteRange::exact(10, 20).unwrap()).await.unwrap();
    go_on().await;
}

fn is_there(tier: &TierStore, keys: &[Key]) -> Vec<bool> {
    keys.iter().map(|key| tier.tier.copies.index().has(key)).collect()
}

#[tokio::test]
async fn only_the_group_of_a_read_object_is_prefetched() {
    let keys = keys(["of/a/1", "of/a/2", "of/a/3", "of/b/1", "other/1", "other/2"]);
    let Grouped { clock, tier, .. } = grouped(100, &keys).await;
    read(&tier, &keys[4]).await;
    assert_eq!(is_there(&tier, &keys), [false, false, false, false, true, false]);
    read(&tier, &keys[1]).await;
    assert_eq!(is_there(&tier, &keys), [true, true, true, false, true, false]);
    assert_eq!(tier.counts().made, 4);
    // Later objects of the group are copied with the next listing.
    let [late, miss] = super::keys(["of/a/4", "of/a/5"]);
    for (wait, is_late_there) in [(0, false), (11 * 60, true)] {
        for key in [&late, &miss] {
            tier.delete(key).await.unwrap();
            tier.create(key, vec![1; 100].into()).await.unwrap();
        }
        clock.advance(Duration::from_secs(wait));
        read(&tier, &miss).await;
        assert_eq!(is_there(&tier, std::slice::from_ref(&late)), [is_late_there], "after {wait} s");
    }
}

#[tokio::test]
async fn prefetched_copies_take_free_room_only() {
    let keys = keys(["of/a/1", "of/a/2", "of/a/3", "of/b/1", "of/b/2"]);
    let Grouped { tier, .. } = grouped(4, &keys).await;
    read(&tier, &keys[0]).await;
    assert_eq!(is_there(&tier, &keys), [true, true, true, false, false]);
    read(&tier, &keys[4]).await;
    assert_eq!(is_there(&tier, &keys), [true, true, true, false, true]);
    // A copy that was prefetched and never read goes first.
    read(&tier, &keys[3]).await;
    let there = is_there(&tier, &keys);
    assert!(there[0] && there[3] && there[4] && there[1] != there[2], "{there:?}");
    // A read of a header prefetches nothing.
    let other = super::keys(["of/c/1", "of/c/2"]);
    for key in &other {
        tier.create(key, vec![1; 100].into()).await.unwrap();
    }
    tier.delete(&keys[1]).await.unwrap();
    tier.delete(&keys[2]).await.unwrap();
    tier.read_one(&other[0], ByteRange::exact(0, 20).unwrap()).await.unwrap();
    go_on().await;
    assert!(!tier.tier.copies.index().has(&other[1]));
}

#[tokio::test]
async fn prefetching_yields_to_reads_and_is_not_starved_by_them() {
    let keys = keys(["of/a/1", "of/a/2", "of/a/3", "of/a/4"]);
    let Grouped { clock, slow, tier } = grouped(100, &keys).await;
    // One read goes on and on.
    slow.script("read", [Some(Fault::Delay(Duration::from_secs(60)))]);
    let range = ByteRange::exact(10, 20).unwrap();
    let mut long = std::pin::pin!(tier.read_one(&keys[3], range));
    assert!(futures::poll!(&mut long).is_pending());
    read(&tier, &keys[0]).await;
    for made in 1..=3 {
        assert_eq!(tier.counts().made, made);
        clock.advance(Duration::from_millis(900));
        go_on().await;
        assert_eq!(tier.counts().made, made, "somebody waits");
        clock.advance(Duration::from_millis(200));
        go_on().await;
    }
    assert_eq!(is_there(&tier, &keys), [true; 4]);
    clock.advance(Duration::from_secs(60));
    long.await.unwrap();
}
