//! Recoveries into a Redis that was emptied, or lost a part.

use dl_meta::redis_testing::Server;

use super::*;

/// Chunks in a dataset whose metadata is in a Redis.
const CHUNKS: usize = 500;

async fn on_redis(redis: &Server) -> (Rig, DatasetId) {
    let mut rig = rig().await;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    rig.context.meta = dl_meta::open(&redis.url(), Arc::clone(&clock)).await.unwrap().0;
    rig.context.clock = clock;
    crate::prepare(&rig.context, Stop::Clean).await.unwrap();
    let id = rig.create("ds").await;
    rig.store_chunks(id, CHUNKS).await;
    recover_until(&rig, u64::MAX).await.0.unwrap();
    (rig, id)
}

/// Recovers everything for somebody who goes away after so many objects; gives how many were adopted
/// by then, and what was read.
async fn recover_until(rig: &Rig, checked: u64) -> (Result<(), Error>, u64, u64) {
    let (progress, mut told) = mpsc::channel(64);
    let before = rig.counters.counts().ranges;
    let asked = async {
        let request = RecoverRequest { dataset: None, since: None };
        let recovered = recover(&rig.context, request, &Caller::Everybody, &progress).await;
        drop(progress);
        recovered
    };
    let heard = async {
        let mut adopted = 0;
        while let Some(Reply::More(step) | Reply::Last(step)) = told.recv().await {
            adopted = step.adopted;
            if step.checked >= checked {
                break;
            }
        }
        drop(told);
        adopted
    };
    let (recovered, adopted) = futures::future::join(asked, heard).await;
    (recovered, adopted, rig.counters.counts().ranges - before)
}

/// Keeps S-02.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_recovery_into_an_emptied_redis_begins_again() {
    let redis = Server::start(&[]).await;
    let (rig, id) = on_redis(&redis).await;
    let whole = rig.context.meta.dataset(id).await.unwrap().unwrap();
    assert_eq!(whole.files, CHUNKS as u64);
    redis.ask(&["FLUSHALL"]).await;
    let (recovered, brought, _) = recover_until(&rig, 64).await;
    assert_eq!(recovered.unwrap_err().kind, Kind::Unavailable);
    assert_eq!(rig.context.meta.identity().await.unwrap(), None, "it is taken for whole");
    let (recovered, rest, read) = recover_until(&rig, u64::MAX).await;
    recovered.unwrap();
    assert!(rest > 0 && rest + brought <= CHUNKS as u64, "{brought} and {rest}");
    assert!(read >= CHUNKS as u64, "{read} of all headers were read");
    assert_eq!(rig.context.meta.dataset(id).await.unwrap().unwrap(), whole);
    assert!(rig.context.meta.identity().await.unwrap().is_some());
}

/// Keeps S-02: nobody would know any more that the others are missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_rebuilt_in_an_emptied_redis_hides_no_missing_one() {
    let redis = Server::start(&[]).await;
    let (rig, id) = on_redis(&redis).await;
    let other = rig.create("other").await;
    rig.store_chunks(other, 3).await;
    recover_until(&rig, u64::MAX).await.0.unwrap();
    redis.ask(&["FLUSHALL"]).await;
    for _ in 0..2 {
        let (recovered, _) = rig.recover(Some("ds")).await;
        if state(&rig, other).await == Some(DatasetState::Live) {
            recovered.unwrap();
            break;
        }
        assert_eq!(recovered.unwrap_err().kind, Kind::NeedsRecovery);
        assert_eq!(state(&rig, id).await, Some(DatasetState::Live));
        assert_eq!(state(&rig, other).await, Some(DatasetState::Recovering));
        recover_until(&rig, u64::MAX).await.0.unwrap();
    }
    assert_eq!(state(&rig, other).await, Some(DatasetState::Live));
}

/// Keeps S-02: what Redis kept of a dataset is no word of what was brought in.
#[tokio::test(flavor = "multi_thread")]
async fn leftovers_in_redis_are_read_again_after_a_cut_recovery() {
    let redis = Server::start(&[]).await;
    let (rig, id) = on_redis(&redis).await;
    let all = "return table.concat(redis.call('KEYS', '*'), '\\n')";
    // The rows, and all that would tell of it.
    for key in redis.text(&["EVAL", all, "0"]).await.lines() {
        if ["}:d:", "}:identity", "}:mark"].iter().any(|lost| key.contains(lost)) {
            redis.text(&["DEL", key]).await;
        }
    }
    recover_until(&rig, 64).await.0.unwrap_err();
    let (recovered, _, read) = recover_until(&rig, u64::MAX).await;
    recovered.unwrap();
    assert!(read >= CHUNKS as u64, "{read}");
    assert_eq!(files_there(&rig, id).await, CHUNKS);
}

/// How many files are found by their paths.
async fn files_there(rig: &Rig, id: DatasetId) -> usize {
    let paths: Vec<_> = (0..CHUNKS).map(|number| path(&format!("file-{number}"))).collect();
    let found = rig.context.meta.lookup(id, &paths).await.unwrap();
    found.iter().filter(|found| matches!(found, Found::File(_))).count()
}

/// Keeps S-02: the row of its name was lost with one shard, and its name in the chunk store too.
#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_whose_name_was_taken_by_another_one_is_told() {
    let redis = Server::start(&[]).await;
    let (rig, id) = on_redis(&redis).await;
    let lose = "for _, key in ipairs(redis.call('KEYS', 'dl:*')) do
            if redis.call('TYPE', key).ok == 'hash' then redis.call('HDEL', key, 'ds') end
        end";
    redis.ask(&["EVAL", lose, "0"]).await;
    rig.context.store.delete(&first_name("ds")).await.unwrap();
    let other = rig.create("ds").await;
    assert_ne!(other, id);
    rig.store_chunk(other, 1).await;
    let (ended, reports) = rig.recover(None).await;
    ended.unwrap();
    let told = problems(&reports);
    assert!(told.len() == 1 && told[0].contains("stands for another dataset"), "{told:?}");
}
