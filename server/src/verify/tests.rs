//! What is told of datasets with which much is wrong.

use dl_runtime::fault::Fault;

use super::*;
use crate::testing::{Rig, dataset, rig};

/// Verifies; gives what was told, and how it ended.
async fn steps(rig: &Rig, checksums: bool) -> (Vec<VerifyProgress>, Result<(), Error>) {
    let (progress, mut told) = mpsc::channel(1_000);
    let request = VerifyRequest { dataset: dataset("ds"), checksums };
    let (memory, turns) = (Budget::new(64 << 20, "test"), Turns::new());
    let with = (&memory, &turns);
    let verified = Box::pin(verify(&rig.parts, with, request, &Caller::Everybody, &progress));
    let (ended, _) = rig.run(verified).await;
    drop(progress);
    let mut steps = Vec::new();
    while let Some(Reply::More(step) | Reply::Last(step)) = told.recv().await {
        steps.push(step);
    }
    (steps, ended)
}

fn findings(steps: &[VerifyProgress]) -> usize {
    steps.iter().map(|step| step.findings.len()).sum()
}

#[tokio::test]
async fn findings_come_in_messages_that_are_not_too_large() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    for number in 0..2_500 {
        let stray = format!("{}/stray-{number}", dl_format::dataset_prefix(id));
        rig.parts.store.create(&crate::parts::key(stray), "x".into()).await.unwrap();
    }
    let (steps, ended) = steps(&rig, false).await;
    ended.unwrap();
    assert_eq!(findings(&steps), 2_500);
    assert!(steps.iter().all(|step| step.findings.len() <= TOLD_TOGETHER));
    let done: Vec<_> = steps.iter().map(|step| step.done).collect();
    assert_eq!(done.iter().position(|done| *done), Some(steps.len() - 1), "and only the last one");
}

#[tokio::test]
async fn objects_whose_bytes_cannot_be_read_are_told_one_by_one_unless_the_store_is_away() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    for number in 0..100 {
        rig.store_chunk(id, number).await;
    }
    rig.run(crate::recover::roll_forward(&rig.parts)).await.0.unwrap();
    let before = rig.counters.counts().ranges;
    let (whole, ended) = steps(&rig, false).await;
    assert!(ended.is_ok() && findings(&whole) == 0, "{whole:?}");
    let headers = usize::try_from(rig.counters.counts().ranges - before).unwrap();
    let unavailable = Some(Fault::Before(dl_store::Kind::Unavailable));
    for (failures, found, is_away) in [(3, 3, false), (100, 63, true)] {
        let passed = std::iter::repeat_n(None, headers);
        rig.store.script("read", passed.chain(std::iter::repeat_n(unavailable, failures)));
        let (told, ended) = steps(&rig, true).await;
        assert_eq!(findings(&told), found, "{told:?}");
        assert_eq!(ended.is_err_and(|error| error.kind == Kind::Unavailable), is_away);
    }
}
