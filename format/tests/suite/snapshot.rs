//! Snapshots of the state given by the fold.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use dl_format::snapshot::{
    LiveFile, Observed, Snapshot, SnapshotChunk, SnapshotOf, SnapshotSection, SnapshotWriter,
    snapshot_padding,
};
use dl_format::{ChunkId, ChunkShape, Committed, Fold, Version};
use proptest::prelude::*;

use crate::build::{DATASET, cases, chunk_of, committed, path};

/// The snapshot of a dataset with the given objects.
pub(crate) fn of(objects: &[Committed]) -> Vec<u8> {
    let (mut fold, mut version) = (Fold::default(), Version::default());
    let mut headers: HashMap<ChunkId, &Committed> = HashMap::new();
    for object in objects {
        fold.add(object);
        version.add(object.header().id(), object.stamp());
        headers.insert(object.header().id(), object);
    }
    let mut chunks: BTreeMap<ChunkId, Vec<LiveFile>> = BTreeMap::new();
    let mut observed = Observed::default();
    for (path, record) in fold.live() {
        let holder = headers[&record.holder.chunk].header();
        let extents = if record.has_extents { holder.extents().to_vec() } else { Vec::new() };
        let file = LiveFile { path: path.clone(), record: *record, extents };
        observed.file(record);
        chunks.entry(record.holder.chunk).or_default().push(file);
    }
    chunks.keys().for_each(|_| observed.chunk());
    let of = SnapshotOf { dataset: DATASET, version, shape: ChunkShape::default() };
    let chunks = chunks.into_iter().map(|(id, files)| {
        let (stamp, header) = (headers[&id].stamp(), headers[&id].header());
        let object_length = u32::try_from(header.object_length()).expect("at most 64 MiB");
        (SnapshotChunk { id, stamp, object_length }, files)
    });
    lay_out(of, observed, chunks)
}

/// The bytes of a snapshot of these chunks.
pub(crate) fn lay_out(
    of: SnapshotOf,
    observed: Observed,
    chunks: impl IntoIterator<Item = (SnapshotChunk, Vec<LiveFile>)>,
) -> Vec<u8> {
    let mut writer = SnapshotWriter::new(of, observed).expect("few files");
    let mut sections: BTreeMap<SnapshotSection, Vec<u8>> = BTreeMap::new();
    let mut hashes = Vec::new();
    for (chunk, files) in chunks {
        hashes.extend(writer.chunk(&chunk, files));
        for (section, bytes) in writer.drain() {
            sections.entry(section).or_default().extend(bytes);
        }
    }
    writer.end_files();
    let runs = writer.runs().into_iter();
    let runs: BTreeSet<_> = runs.map(|run| writer.placed(run)).collect();
    runs.into_iter().for_each(|run| writer.run(run));
    hashes.sort_unstable();
    hashes.into_iter().for_each(|(hash, number)| writer.index(hash, number));
    let (rest, mut snapshot) = writer.finish();
    for (section, bytes) in rest {
        sections.entry(section).or_default().extend(bytes);
    }
    for section in SnapshotSection::ALL {
        let bytes = sections.remove(&section).unwrap_or_default();
        let padding = snapshot_padding(bytes.len() as u64);
        snapshot.extend(bytes);
        snapshot.resize(snapshot.len() + padding, 0);
    }
    snapshot
}

const PATHS: [&[u8]; 8] = [b"a", b"a/b", b"a/b/c", b"b", b"b/1", b"b/2", b"c-d/e", b"c/d"];

proptest! {
    #![proptest_config(cases())]

    /// With overwritten files, and with folders that hide files.
    #[test]
    fn a_snapshot_holds_the_live_files_of_the_fold_and_no_others(
        chunks in prop::collection::vec(prop::collection::vec(0..PATHS.len(), 1..6), 1..6),
        turn in any::<prop::sample::Index>(),
    ) {
        let mut objects: Vec<Committed> = (1..)
            .zip(&chunks)
            .map(|(number, files)| {
                let paths: Vec<&[u8]> = files.iter().map(|file| PATHS[*file]).collect();
                committed(chunk_of(number, &paths), 1_000 + u64::from(number)).0
            })
            .collect();
        let mut fold = Fold::default();
        objects.iter().for_each(|object| fold.add(object));
        let bytes = of(&objects);
        let turned = turn.index(objects.len());
        objects.rotate_left(turned);
        prop_assert_eq!(&of(&objects), &bytes, "the order of the log shows");
        let snapshot = Snapshot::open(Bytes::from(bytes)).unwrap();
        prop_assert_eq!(snapshot.verify(), Ok(()));
        prop_assert_eq!(snapshot.files() as usize, fold.live().count());
        for name in PATHS {
            let found = snapshot.lookup(name).unwrap();
            let record = fold.get(&path(name));
            prop_assert_eq!(found.is_some(), record.is_some());
            if let (Some(number), Some(record)) = (found, record) {
                let file = snapshot.file(number).unwrap();
                let (chunk, _) = snapshot.chunk(file.chunk).unwrap();
                prop_assert_eq!((chunk.id, chunk.stamp), (record.holder.chunk, record.holder.stamp));
                prop_assert_eq!(
                    (file.offset, file.length, file.crc, file.attributes, file.stamp),
                    (record.offset, record.length, record.crc, record.attributes, record.version.stamp)
                );
            }
        }
    }
}
