//! Puts that are repeated.

use dl_format::{ChunkIdMaker, Sealed};
use dl_runtime::Clock;
use dl_runtime::fault::Fault;

use super::*;
use crate::testing::{self, Rig, first_name, rig};

fn chunk(rig: &Rig, dataset: DatasetId, number: u8) -> Sealed {
    let id = ChunkIdMaker::new([number; 9]).next(rig.clock.now());
    testing::chunk(id, dataset, [format!("file-{number}")], b"bytes")
}

async fn put(rig: &Rig, dataset: DatasetId, sealed: &Sealed) -> Result<Stamp, Error> {
    testing::commit(&rig.context, dataset, sealed.as_slice().to_vec(), rig.clock.now()).await
}

/// Keeps S-06: I6. The first answer was lost.
#[tokio::test]
async fn a_repeated_put_gets_its_answer_on_a_full_disk() {
    let rig = rig().await;
    let dataset = rig.create("ds").await;
    let (stored, new) = (chunk(&rig, dataset, 1), chunk(&rig, dataset, 2));
    let stamp = put(&rig, dataset, &stored).await.unwrap();
    let full = || [Some(Fault::Before(dl_store::Kind::Full))];
    rig.store.script("create", full());
    assert_eq!(put(&rig, dataset, &stored).await.unwrap(), stamp);
    rig.store.script("create", full());
    assert_eq!(put(&rig, dataset, &new).await.unwrap_err().kind, Kind::Full);
}

/// Keeps S-21. The dataset ends between the object and the log.
#[tokio::test]
async fn a_damaged_name_does_not_keep_objects_of_ended_datasets() {
    let rig = rig().await;
    let dataset = rig.create("pets").await;
    rig.create("other").await;
    let sealed = chunk(&rig, dataset, 1);
    let (object, bytes) = rig.store_sealed(&sealed).await;
    let committed = read_header(&rig.context, &object).await.unwrap().committed().unwrap();
    rig.delete("pets", dataset).await.unwrap();
    // What the sweep has missed.
    rig.context.store.create(&object, bytes).await.unwrap();
    rig.replace(&first_name("other"), "damaged").await;
    rig.clock.advance(Duration::from_secs(1));
    assert_eq!(append(&rig.context, &committed).await.unwrap_err().kind, Kind::NotFound);
    assert!(!is_stored(&rig.context, &object).await.unwrap());
}
