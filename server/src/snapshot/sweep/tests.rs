//! Which snapshots go, and which stay.

use std::sync::Arc;

use dl_meta::{DatasetRecord, Datasets};

use super::*;
use crate::config;
use crate::recovery::recover;
use crate::settings::Settings;
use crate::snapshot::Snapshots;
use crate::source::{Followed, Source};
use crate::testing::{self, Rig, rig};

/// Stores the snapshot of what a dataset holds now.
async fn build(rig: &Rig, dataset: DatasetId) -> Version {
    let snapshots = Snapshots::new(Arc::default());
    snapshots.find(&rig.context, dataset, None).await.unwrap().version
}

/// Adds a file.
async fn change(rig: &Rig, dataset: DatasetId, number: u8) {
    rig.store_chunk(dataset, number).await;
    recover::adopt_unlogged(&rig.context, &testing::dataset("pets")).await.unwrap();
}

async fn stored(rig: &Rig, dataset: DatasetId) -> HashSet<Version> {
    stored::list(&rig.context, dataset).await.unwrap().into_keys().collect()
}

#[tokio::test]
async fn few_versions_of_a_busy_dataset_are_kept() {
    let rig = rig().await;
    let dataset = rig.create("pets").await;
    let mut versions = Vec::new();
    for number in 0..8 {
        change(&rig, dataset, number).await;
        versions.push(build(&rig, dataset).await);
        rig.clock.advance(KEPT_OTHERS);
    }
    let newest: HashSet<Version> = versions.iter().rev().take(KEPT_LONG).copied().collect();
    assert_eq!(stored(&rig, dataset).await, newest);
}

#[tokio::test]
async fn while_the_servers_are_read_only_none_goes() {
    let mut rig = rig().await;
    let dataset = rig.create("pets").await;
    for number in 0..2 {
        change(&rig, dataset, number).await;
        build(&rig, dataset).await;
    }
    let newest = build(&rig, dataset).await;
    assert_eq!(sweep(&rig.context, dataset, newest, false).await.unwrap().len(), 1);
    rig.clock.advance(KEPT);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "[live]\nread_only = true\n").unwrap();
    let source = Source::parse(file.path().to_str().unwrap()).unwrap();
    let live = |text: &str| config::live(text).map_err(|error| error.to_string());
    let time = Arc::new(dl_runtime::SystemClock::new());
    let followed = Followed::open("it", source, time, live).await.unwrap();
    rig.context.settings = Settings::of(Some(&followed));
    let left = sweep(&rig.context, dataset, newest, false).await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(stored(&rig, dataset).await.len(), 2);
}

#[tokio::test]
async fn a_rebuild_does_not_make_the_newest_version_look_old() {
    let rig = rig().await;
    let dataset = rig.create("pets").await;
    change(&rig, dataset, 0).await;
    let newest = build(&rig, dataset).await;
    rig.clock.advance(KEPT);
    // All of the metadata was lost, and nothing is back yet.
    let record = rig.memory.record(dataset).await.unwrap().unwrap();
    rig.memory.drop_dataset(&testing::dataset("pets"), dataset).await.unwrap();
    let rebuilt = DatasetRecord { state: DatasetState::Recovering, ..record };
    rig.memory.put_dataset(&rebuilt).await.unwrap();
    sweep_all(&rig.context, &mut HashMap::new()).await.unwrap();
    assert_eq!(stored(&rig, dataset).await, HashSet::from([newest]));
}

/// Keeps S-27 and S-53.
#[tokio::test]
async fn an_old_snapshot_stays_an_hour_after_its_replacement() {
    let rig = rig().await;
    let dataset = rig.create("pets").await;
    change(&rig, dataset, 0).await;
    let first = build(&rig, dataset).await;
    rig.clock.advance(KEPT * 30);
    // As where a purge took something off the log.
    let other = Version::default();
    let older = |left| Older { version: first, kept: PERIOD + left };
    assert_eq!(sweep(&rig.context, dataset, other, false).await.unwrap(), [older(KEPT)]);
    rig.clock.advance(KEPT - Duration::from_secs(1));
    let left = Duration::from_secs(1);
    assert_eq!(sweep(&rig.context, dataset, other, false).await.unwrap(), [older(left)]);
    rig.clock.advance(Duration::from_secs(1));
    assert_eq!(sweep(&rig.context, dataset, other, false).await.unwrap(), []);
}

/// Keeps S-27 and S-53: as where a build took longer than it was of the newest version.
#[tokio::test]
async fn one_that_was_stored_after_it_was_replaced_goes_too() {
    let rig = rig().await;
    let dataset = rig.create("pets").await;
    change(&rig, dataset, 0).await;
    let newest = build(&rig, dataset).await;
    let mut swept = HashMap::new();
    rig.clock.advance(KEPT);
    sweep_all(&rig.context, &mut swept).await.unwrap();
    assert_eq!(swept.len(), 1);
    let part = dl_format::snapshot_key(dataset, Version::default(), SnapshotObject::Part(0));
    rig.context.store.create(&crate::shared::context::key(part), "late".into()).await.unwrap();
    let older = sweep(&rig.context, dataset, newest, false).await.unwrap();
    assert_eq!(older, [Older { version: Version::default(), kept: KEPT + PERIOD }]);
    rig.clock.advance(KEPT);
    sweep_all(&rig.context, &mut swept).await.unwrap();
    assert_eq!(stored(&rig, dataset).await, HashSet::from([newest]));
}

#[tokio::test]
async fn an_unread_dataset_keeps_its_newest_version_only() {
    let rig = rig().await;
    let dataset = rig.create("pets").await;
    for number in 0..3 {
        change(&rig, dataset, number).await;
        build(&rig, dataset).await;
    }
    let mut swept = HashMap::new();
    sweep_all(&rig.context, &mut swept).await.unwrap();
    assert_eq!((stored(&rig, dataset).await.len(), swept.len()), (3, 0));
    rig.clock.advance(KEPT);
    sweep_all(&rig.context, &mut swept).await.unwrap();
    assert_eq!((stored(&rig, dataset).await.len(), swept.len()), (1, 1));
    let lists = rig.counters.counts().lists;
    sweep_all(&rig.context, &mut swept).await.unwrap();
    assert!(rig.counters.counts().lists <= lists + 1, "only names were looked for");
}
