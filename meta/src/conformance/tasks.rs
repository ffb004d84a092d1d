//! Checks of training jobs and their members.
//!
//! Must hold: members come and go by their heartbeats alone, each call in one step; of several that begin a
//! job at once, one fixes it for all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dl_format::{MemberId, Stamp, TaskId, Version};
use tokio::task::JoinSet;

use super::id;
use crate::{Heartbeat, Kind, MetaStore, TaskGroup, TaskKey, TaskTerms};

const DEAD_AFTER: Duration = Duration::from_secs(15);
const MOST: u16 = 20;
const SECOND: u64 = 1_000_000;
/// When the checks begin, in seconds.
const START: u64 = 1_800_000_000;

fn beat(task: u8, member: u16, second: u64) -> Heartbeat {
    let mut bytes = [0; 16];
    let [low, high] = member.to_le_bytes();
    (bytes[0], bytes[1]) = (high, low);
    Heartbeat {
        task: TaskKey { dataset: id(1), task: TaskId::from_bytes([task; 16]) },
        member: MemberId::from_bytes(bytes),
        record: Bytes::from(vec![low, 0, b' ', 0xFF]),
        now: Stamp::new((START + second) * SECOND),
        dead_after: DEAD_AFTER,
        most: MOST.into(),
    }
}

fn terms(number: u8, leased_until: u64) -> TaskTerms {
    let mut version = Version::default();
    version.add(dl_format::ChunkId::from_bytes([number; 16]), Stamp::new(7));
    TaskTerms { version, secret: [number; 32], leased_until: Stamp::new(leased_until) }
}

async fn join(
    store: &dyn MetaStore,
    beat: &Heartbeat,
    terms: Option<&TaskTerms>,
) -> Option<TaskGroup> {
    store.join(beat, terms).await.expect("join")
}

fn of(beats: &[&Heartbeat]) -> BTreeMap<MemberId, Bytes> {
    beats.iter().map(|beat| (beat.member, beat.record.clone())).collect()
}

/// The first member fixes a job, and the end of its lease alone moves on.
pub(super) async fn the_first_member_fixes_a_job(store: &dyn MetaStore) {
    let (first, second) = (beat(1, 1, 0), beat(1, 2, 1));
    assert_eq!(join(store, &first, None).await, None, "{store}: nobody has begun it");
    let began = join(store, &first, Some(&terms(1, 50))).await.expect("it begins");
    assert_eq!((began.terms, began.members), (terms(1, 50), of(&[&first])));
    for offered in [None, Some(terms(2, 90)), Some(terms(1, 40))] {
        let group = join(store, &second, offered.as_ref()).await.expect("it goes on");
        assert_eq!((group.terms, group.members), (terms(1, 50), of(&[&first, &second])));
    }
    let renewed = TaskTerms { secret: [9; 32], ..terms(1, 70) };
    let group = join(store, &first, Some(&renewed)).await.expect("it goes on");
    assert_eq!(group.terms, terms(1, 70), "{store}");
    // Another job, and the same one for another dataset.
    assert_eq!(join(store, &beat(2, 1, 0), None).await, None);
    let mut elsewhere = first.clone();
    elsewhere.task.dataset = id(2);
    assert_eq!(join(store, &elsewhere, None).await, None);
    let changed = Heartbeat { record: Bytes::from_static(b"moved"), ..first };
    let group = join(store, &changed, None).await.expect("it goes on");
    assert_eq!(group.members, of(&[&changed, &second]), "{store}");
}

/// Members without heartbeats are dead, and a clock that is behind lets nobody die or come back.
pub(super) async fn a_silent_member_is_dead(store: &dyn MetaStore) {
    let silent = beat(1, 1, 0);
    join(store, &silent, Some(&terms(1, 50))).await.expect("it begins");
    for second in [0, 5, 10, 14] {
        let group = join(store, &beat(1, 2, second), None).await.expect("it goes on");
        assert_eq!(group.members.len(), 2, "{store}, second {second}");
    }
    let group = join(store, &beat(1, 2, 15), None).await.expect("it goes on");
    assert_eq!(group.members, of(&[&beat(1, 2, 15)]), "{store}");
    // The server of this member is ten seconds behind.
    join(store, &beat(1, 3, 5), None).await.expect("it goes on");
    let group = join(store, &beat(1, 2, 25), None).await.expect("it goes on");
    assert_eq!(group.members.len(), 2, "{store}");
    assert_eq!(join(store, &beat(1, 2, 40), None).await, None, "{store}: all were dead");
    let again = join(store, &beat(1, 2, 41), Some(&terms(2, 60))).await.expect("it begins again");
    assert_eq!((again.terms, again.members.len()), (terms(2, 60), 1));
}

/// The last member that leaves learns what the job was fixed to.
pub(super) async fn the_last_member_ends_a_job(store: &dyn MetaStore) {
    let (first, second) = (beat(1, 1, 0), beat(1, 2, 0));
    let leave = async |beat: &Heartbeat| store.leave(beat).await.expect("leave");
    assert_eq!(leave(&first).await, None, "{store}: there is no such job");
    join(store, &first, Some(&terms(1, 50))).await.expect("it begins");
    join(store, &second, None).await.expect("it goes on");
    assert_eq!(leave(&second).await, None);
    assert_eq!(leave(&second).await, None, "{store}: it left before");
    assert_eq!(leave(&first).await, Some(terms(1, 50)));
    assert_eq!(join(store, &first, None).await, None, "{store}: it has ended");
    join(store, &first, Some(&terms(1, 50))).await.expect("it begins");
    assert_eq!(leave(&beat(1, 2, 20)).await, Some(terms(1, 50)), "{store}: the other one was dead");
}

/// Anyone may ask for the living members, which changes nothing.
pub(super) async fn living_members_can_be_asked_for(store: &dyn MetaStore) {
    let (first, second) = (beat(1, 1, 0), beat(1, 2, 9));
    let group = async |second: u64| {
        let now = Stamp::new((START + second) * SECOND);
        store.group(&first.task, now, DEAD_AFTER).await.expect("group")
    };
    assert_eq!(group(0).await, None, "{store}: there is no such job");
    join(store, &first, Some(&terms(1, 50))).await.expect("it begins");
    join(store, &second, None).await.expect("it goes on");
    // A clock that is behind lets nobody die.
    for (at, members) in
        [(0, vec![&first, &second]), (15, vec![&second]), (10, vec![&first, &second])]
    {
        let group = group(at).await.expect("it lives");
        assert_eq!((group.terms, group.members), (terms(1, 50), of(&members)), "{store}");
    }
    assert_eq!(group(24).await, None, "{store}: all are dead");
}

/// A job takes a bounded number of members, and none goes for one that is refused.
pub(super) async fn members_are_bounded(store: &dyn MetaStore) {
    join(store, &beat(1, 0, 0), Some(&terms(1, 50))).await.expect("it begins");
    for member in 1..MOST {
        join(store, &beat(1, member, 0), None).await.expect("it goes on");
    }
    let refused = store.join(&beat(1, MOST, 0), None).await.expect_err("it is full");
    assert_eq!(refused.kind, Kind::Full, "{store}");
    let group = join(store, &beat(1, 7, 1), None).await.expect("it goes on");
    assert_eq!(group.members.len(), usize::from(MOST), "{store}");
}

/// Of many that begin a job at once, one fixes it.
pub(super) async fn one_of_several_fixes_a_job(store: Arc<dyn MetaStore>) {
    let mut joins = JoinSet::new();
    for member in 0..12 {
        let store = Arc::clone(&store);
        joins.spawn(async move {
            let offered = terms(member, u64::from(member));
            join(&*store, &beat(1, member.into(), 0), Some(&offered))
                .await
                .expect("it begins")
                .terms
        });
    }
    let found: Vec<_> = joins.join_all().await;
    let versions: BTreeSet<[u8; 32]> = found.iter().map(|terms| terms.secret).collect();
    assert_eq!(versions.len(), 1, "{store}: {found:?}");
    let group = join(&*store, &beat(1, 0, 1), None).await.expect("it goes on");
    assert_eq!(group.members.len(), 12);
}
