//! Recoveries of many datasets, and beside deletions.

use dl_format::Stamp;
use dl_meta::{DatasetRecord, DatasetState, MetaStore};
use dl_runtime::fault::Fault;

use super::*;
use crate::catalog;
use crate::testing::{dataset, rig};

#[tokio::test]
async fn an_unclean_stop_costs_many_small_datasets_their_latency_together() {
    let rig = rig().await;
    let mut made = Vec::new();
    for number in 0..64 {
        let id = rig.create(&format!("ds-{number:02}")).await;
        rig.store_chunk(id, number).await;
        made.push(id);
    }
    // The names, then each dataset twice: its name and its objects.
    let second = Some(Fault::Delay(Duration::from_secs(1)));
    rig.store.script("list", vec![second; 129]);
    let (adopted, seconds) = rig.run(roll_forward(&rig.parts)).await;
    assert_eq!(adopted.unwrap(), 64);
    assert!(seconds <= 20, "{seconds} s for 64 datasets");
    for id in made {
        assert_eq!(rig.parts.meta.dataset(id).await.unwrap().unwrap().objects, 1);
    }
}

#[tokio::test]
async fn a_recovery_of_many_large_datasets_holds_no_more_headers_than_that_of_one() {
    let rig = rig().await;
    for number in 0..8 {
        let id = rig.create(&format!("ds-{number}")).await;
        for chunk in 0..32 {
            rig.store_chunk(id, number * 32 + chunk).await;
        }
    }
    let second = Some(Fault::Delay(Duration::from_secs(1)));
    let (reads, appends) = (rig.counters.counts().ranges, 256);
    rig.meta.script("append", vec![second; appends]);
    let (adopted, seconds) = rig.run(roll_forward(&rig.parts)).await;
    assert_eq!(adopted.unwrap(), appends as u64);
    assert!(rig.counters.counts().ranges - reads >= appends as u64);
    // 64 at a time.
    assert!((4..=6).contains(&seconds), "{seconds} s for {appends} appends");
}

#[tokio::test]
async fn a_dataset_that_is_deleted_while_it_is_set_aside_stays_deleted() {
    let rig = rig().await;
    let (name, id) = (dataset("ds"), rig.create("ds").await);
    let (progress, _told) = mpsc::channel(1);
    let (late, shares) = (Late::usual(&rig.parts), Shares::default());
    let progress = Listener::new(&rig.parts, &progress);
    let recovery = Recovery {
        tells_missing: true,
        parts: &rig.parts,
        late: &late,
        since: None,
        damaged: Some(0),
        log: Log::Trusted,
        progress: &progress,
        shares: &shares,
    };
    // It has read the record, and writes it only after the deletion.
    rig.meta.script("put_dataset", [Some(Fault::Delay(Duration::from_secs(5)))]);
    let mut aside = std::pin::pin!(recovery.set_aside(&name));
    assert!(futures::poll!(&mut aside).is_pending());
    catalog::delete(&rig.parts, &name, id).await.unwrap();
    assert_eq!(rig.memory.record(id).await.unwrap(), None);
    let (is_aside, _) = rig.run(aside).await;
    assert!(is_aside);
    assert_eq!(rig.memory.record(id).await.unwrap(), None, "it came back");
    assert_eq!(rig.memory.records().await.unwrap(), []);

    let id = rig.create("ds").await;
    assert!(recovery.set_aside(&name).await);
    let record = rig.memory.record(id).await.unwrap().unwrap();
    assert_eq!(record.state, DatasetState::Recovering);
    assert!(record.created > Stamp::new(0));
}

#[tokio::test]
async fn only_a_recovery_that_is_asked_for_reads_again_what_the_log_has() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    for number in 0..8 {
        rig.store_chunk(id, number).await;
    }
    let ranges = || rig.counters.counts().ranges;
    let (adopted, _) = rig.run(roll_forward(&rig.parts)).await;
    assert_eq!(adopted.unwrap(), 8);
    let read = ranges();
    rig.run(roll_forward(&rig.parts)).await.0.unwrap();
    // The name.
    let names = ranges() - read;
    assert!(names < 8, "{names}");
    let (progress, mut told) = mpsc::channel(64);
    let request = RecoverRequest { dataset: None, since: None };
    let asked = recover(&rig.parts, request.clone(), &Caller::Everybody, &progress);
    rig.run(asked).await.0.unwrap();
    drop(progress);
    assert!(ranges() >= read + 2 * names + 8, "{} after {read}", ranges());
    let mut last = None;
    while let Some(Reply::More(end) | Reply::Last(end)) = told.recv().await {
        last = Some((end.listed, end.checked, end.adopted));
    }
    assert_eq!(last, Some((8, 8, 0)));
    // Whoever recovers a dataset that was set aside reads all of it: some may never have come back.
    // After an unclean stop all datasets are, and what their logs know is there.
    let record = rig.memory.record(id).await.unwrap().unwrap();
    for (by, is_all_read) in [("a user", true), ("a loss", true), ("a start", false)] {
        let aside = DatasetRecord { state: DatasetState::Recovering, ..record.clone() };
        rig.memory.put_dataset(&aside).await.unwrap();
        let read = ranges();
        if by == "a user" {
            let (progress, _told) = mpsc::channel(64);
            let asked = recover(&rig.parts, request.clone(), &Caller::Everybody, &progress);
            rig.run(asked).await.0.unwrap();
        } else if by == "a loss" {
            rig.run(append_again(&rig.parts, Stamp::new(1))).await.0.unwrap();
        } else {
            rig.run(roll_forward(&rig.parts)).await.0.unwrap();
        }
        assert_eq!(ranges() >= read + 8, is_all_read, "{} after {read}, by {by}", ranges());
        let state = rig.memory.record(id).await.unwrap().unwrap().state;
        assert_eq!(state, DatasetState::Live);
    }
}
