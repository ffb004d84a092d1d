//! Snapshots on the servers' side.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use dl_format::{SnapshotObject, dataset_prefix};
use dl_meta::Memory;
use dl_runtime::fault::{CutPoint, Fault, Faults};
use dl_runtime::{Clock, ManualClock, SeededRandom, SystemClock};
use dl_server::ServerContext;
use dl_store::{CountStore, FaultStore, Prefix, Store, StoreExt};
use dl_tests::cluster::{clock, context};
use dl_tests::rounds;
use libdiesel::admin::{RecoverRequest, VerifyRequest};
use libdiesel::{Kind, StatItem};

use super::{Scene, at_once, listed, name, path, put};

/// Keeps S-40 (I5): both files of a pair are replaced in one chunk, many times.
#[test]
fn a_pair_replaced_in_a_chunk_is_never_seen_mixed() -> Result<()> {
    let scene = Scene::new()?;
    let is_over = Arc::new(AtomicBool::new(false));
    let (dataset, over) = (scene.dataset.clone(), Arc::clone(&is_over));
    put(&dataset, &[("left", b"0"), ("right", b"0")])?;
    let writer = std::thread::spawn(move || -> Result<u32> {
        let mut round = 0;
        while !over.load(Ordering::Relaxed) {
            round += 1;
            let data = "x".repeat(1 + round as usize % 1_000);
            put(&dataset, &[("left", data.as_bytes()), ("right", data.as_bytes())])?;
            put(&dataset, &[("other", b"")])?;
            if round % 3 == 0 {
                dataset.delete(&[path("other")?])?;
            }
        }
        Ok(round)
    });
    let mut versions = std::collections::BTreeSet::new();
    for round in 0..rounds(30, 500) {
        let reader = scene.reader(&format!("cache-{}", round % 3))?;
        let snapshot = reader.snapshot().context("a snapshot")?;
        versions.insert(snapshot.version());
        let [left, right] = [snapshot.stat(&path("left")?)?, snapshot.stat(&path("right")?)?];
        let (StatItem::File(left), StatItem::File(right)) = (left, right) else {
            anyhow::bail!("round {round}: a file of the pair is missing")
        };
        let of = |file: libdiesel::FileRecord| (file.length, file.crc, file.version.stamp);
        ensure!(of(left) == of(right), "round {round}: {left:?} and {right:?}");
    }
    is_over.store(true, Ordering::Relaxed);
    let written = writer.join().map_err(|_| anyhow::anyhow!("the writer ended early"))??;
    ensure!(versions.len() > 3 && written > 3, "{} versions, {written} pairs", versions.len());
    Ok(())
}

/// Keeps S-40, S-02: Rule 7. The bytes depend neither on the order of the objects nor on the
/// metadata store.
#[test]
fn rebuilt_metadata_gives_the_same_snapshot_to_the_byte() -> Result<()> {
    let mut scene = Scene::new()?;
    for round in 0..6 {
        let data = vec![round; 300_000];
        put(&scene.dataset, &[("a/x", &data), ("b/y", &data), ("c", &data)])?;
        put(&scene.dataset, &[(&format!("a/{round}"), &data), ("b", b"a file and a folder")])?;
    }
    scene.dataset.delete(&[path("a/3")?, path("c")?])?;
    let before = scene.saved("before")?;
    ensure!(scene.saved("again")? == before, "the stored snapshot differs");
    scene.forget()?;
    ensure!(scene.saved("anew")? == before, "the rebuilt snapshot differs");
    scene.forget()?;
    scene.rebuild_metadata()?;
    ensure!(scene.saved("after")? == before, "the metadata was rebuilt");
    Ok(())
}

#[test]
fn however_many_ask_a_snapshot_is_built_and_stored_once() -> Result<()> {
    let (store, counters) = CountStore::new(dl_store::memory());
    let store: Arc<dyn Store> = Arc::new(store);
    let scene = Scene::over(1, &store, context(Arc::clone(&store), Arc::new(Memory::new())))?;
    put(&scene.dataset, &[("a", b"1"), ("b/c", b"2")])?;
    let before = counters.counts().creates;
    at_once(8, |number| {
        let reader = scene.reader(&format!("of-{number}"))?;
        ensure!(listed(&reader)? == ["a", "b/c"], "{:?}", listed(&reader)?);
        Ok(())
    })?;
    let created = counters.counts().creates - before;
    ensure!(created == 2, "{created} objects, not a part and a manifest");
    Ok(())
}

#[test]
fn concurrent_builds_of_a_snapshot_agree() -> Result<()> {
    let store = dl_store::memory();
    let scene = Scene::over(3, &store, context(Arc::clone(&store), Arc::new(Memory::new())))?;
    for round in 0..rounds(8, 100) {
        put(&scene.dataset, &[(&format!("{round}"), b"1")])?;
        let saved = at_once(3, |number| scene.saved(&format!("{round}-{number}")))?;
        ensure!(saved.iter().all(|bytes| *bytes == saved[0]), "round {round}");
    }
    Ok(())
}

/// Requests of a client for a snapshot that can't be built.
const ATTEMPTS: usize = 3;

/// Keeps S-40: after a crash before the manifest, or later damage, the snapshot is built again.
#[test]
fn an_incomplete_snapshot_is_never_handed_out() -> Result<()> {
    let (inner, faults) = (dl_store::memory(), Faults::new(Arc::new(SeededRandom::new(1))));
    let store = FaultStore::new(Arc::clone(&inner), clock(), faults.clone(), CutPoint::new());
    let scene = Scene::over(1, &inner, context(Arc::new(store), Arc::new(Memory::new())))?;
    put(&scene.dataset, &[("a", b"1"), ("b/c", b"2")])?;
    let expected = scene.saved("first")?;
    for step in 0..2 {
        scene.forget()?;
        // The server fails at the part or at the manifest, in each attempt of the client.
        let mut script = vec![None; step];
        script.push(Some(Fault::Before(dl_store::Kind::Corrupt)));
        faults.script("create", [(); ATTEMPTS].iter().flat_map(|()| script.clone()));
        let refused = scene.saved("refused").err().context("a snapshot was returned")?;
        ensure!(scene.manifests()?.is_empty(), "step {step}: {refused:?}");
        ensure!(scene.saved("after")? == expected, "step {step}");
    }
    let mut damaged = expected.clone();
    damaged[100] ^= 1;
    for (object, bytes) in [
        (SnapshotObject::Part(0), Some(damaged)),
        (SnapshotObject::Part(0), Some(expected[..expected.len() - 1].to_vec())),
        (SnapshotObject::Part(0), None),
        (SnapshotObject::Manifest, Some(b"no manifest".to_vec())),
    ] {
        let found = scene.stored()?.into_iter().find(|(_, stored)| *stored == object);
        let (key, _) = found.context("the object is stored")?;
        scene.cluster.run(scene.store.delete(&key))?;
        if let Some(bytes) = bytes {
            scene.cluster.run(scene.store.create(&key, Bytes::from(bytes)))?;
        }
        ensure!(scene.saved("again")? == expected, "a damaged or missing {object:?}");
    }
    Ok(())
}

/// Snapshots lie beside the objects of their dataset but are no objects.
#[test]
fn snapshots_are_no_objects_and_go_with_their_dataset() -> Result<()> {
    let mut scene = Scene::new()?;
    // A snapshot of an empty dataset, whose metadata are not missed.
    ensure!(listed(&scene.reader("empty")?)?.is_empty(), "an empty snapshot");
    scene.rebuild_metadata()?;
    scene.dataset = scene.client.dataset(&name()?)?;
    put(&scene.dataset, &[("a", b"1"), ("b/c", b"2")])?;
    scene.reader("first")?;
    ensure!(scene.manifests()?.len() == 2, "{:?}", scene.stored()?);

    let request = VerifyRequest { dataset: name()?, checksums: true };
    let mut findings = Vec::new();
    let verified = scene.client.verify(&request, &mut |_| (), &mut |found| findings.push(found))?;
    ensure!(findings.is_empty() && verified.objects == 1, "{findings:?}, {verified:?}");
    let request = RecoverRequest { dataset: Some(name()?), since: None };
    let recovered = scene.client.recover(request, &mut |_| ())?;
    ensure!(recovered.len() == 1 && recovered[0].listed == 1, "{recovered:?}");
    ensure!(recovered[0].problems.is_empty(), "{recovered:?}");
    let purged = scene.purge(Duration::ZERO)?;
    ensure!(purged.iter().all(|one| one.problems.is_empty()), "{purged:?}");
    ensure!(scene.manifests()?.len() == 2, "both are young");

    ensure!(scene.client.delete_dataset(&name()?)?.removed == 1, "one chunk");
    ensure!(scene.stored()?.is_empty(), "{:?}", scene.stored()?);
    let refused = scene.dataset.with_snapshot(&scene.cache("late")).err();
    ensure!(refused.is_some_and(|why| why.kind() == Kind::NotFound), "of a deleted dataset");
    Ok(())
}

/// Removes the last chunk from the store and returns its key and its bytes.
fn lose_chunk(scene: &Scene) -> Result<(dl_store::Key, Bytes)> {
    let below = Prefix::new(dataset_prefix(scene.dataset.info().id))?;
    let objects = scene.cluster.run(scene.store.list_sorted(&below))?;
    let lost = objects.into_iter().rfind(|object| object.key.as_str().ends_with(".c"));
    let key = lost.context("there are chunks")?.key;
    let bytes = scene.cluster.run(scene.store.read_all(&key))?;
    scene.cluster.run(scene.store.delete(&key))?;
    Ok((key, bytes))
}

/// Keeps S-12: a missing chunk header hides the winners of its files.
#[test]
fn a_lost_chunk_is_named_with_a_remedy() -> Result<()> {
    let scene = Scene::new()?;
    put(&scene.dataset, &[("a", b"1")])?;
    put(&scene.dataset, &[("b", b"2")])?;
    let (lost, _) = lose_chunk(&scene)?;
    let refused = scene.saved("lost").err().context("a snapshot was built")?;
    let told = format!("{refused:#}");
    let (verify, again) = ("`dlcmd verify dl://ds`", "`dlcmd put --checksum SRC dl://ds`");
    for words in [lost.as_str(), verify, again, "`dlcmd purge dl://ds`"] {
        ensure!(told.contains(words), "{words} is not in: {told}");
    }
    let kind = refused.downcast_ref().map(libdiesel::Error::kind);
    ensure!(kind == Some(Kind::Corrupt), "{refused:?}");
    put(&scene.dataset, &[("a", b"1"), ("b", b"2")])?;
    ensure!(scene.saved("put again").is_err(), "the log no longer has the lost chunk");
    scene.purge(Duration::ZERO)?;
    scene.saved("purged")?;
    ensure!(listed(&scene.reader("cache")?)? == ["a", "b"], "both are there");
    Ok(())
}

/// Uses a manual clock for the servers.
#[test]
fn a_lost_chunk_is_not_searched_for_by_every_connection() -> Result<()> {
    let inner = dl_store::memory();
    let (store, counters) = CountStore::new(Arc::clone(&inner));
    let time = Arc::new(ManualClock::new(SystemClock::new().now()));
    let context = context(Arc::new(store), Arc::new(Memory::new()));
    let context = ServerContext { clock: Arc::<ManualClock>::clone(&time), ..context };
    let scene = Scene::over(1, &inner, context)?;
    for number in 0..20 {
        put(&scene.dataset, &[(&format!("{number}"), b"1")])?;
    }
    let (lost, bytes) = lose_chunk(&scene)?;
    let reads = || counters.counts().ranges;
    let refused = |file| -> Result<(String, u64)> {
        let before = reads();
        let refused = scene.saved(file).err().context("a snapshot was built")?;
        Ok((format!("{refused:#}"), reads() - before))
    };
    let (first, many) = refused("first")?;
    let (again, few) = refused("again")?;
    ensure!(again == first && many >= 20 && few < 20, "{many} and {few} reads: {again}");
    // The chunk may return without a notification.
    scene.cluster.run(scene.store.create(&lost, bytes))?;
    time.advance(Duration::from_secs(11));
    scene.saved("restored")?;
    Ok(())
}
