//! Chunks as the node agent reads them.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use dl_format::{ChunkId, Crc32c};
use dl_meta::{Memory, Stop};
use dl_server::prepare;
use dl_tests::cluster::{Cluster, parts};
use libdiesel::agent::{ChunkRange, ChunkSource};
use libdiesel::{FileRecord, Kind, Snapshot, SnapshotCache};

use super::scene;

/// The files of each chunk.
fn chunks(snapshot: &Snapshot) -> Result<BTreeMap<ChunkId, Vec<FileRecord>>> {
    let mut chunks: BTreeMap<ChunkId, Vec<FileRecord>> = BTreeMap::new();
    for number in 0..snapshot.files() {
        let record = snapshot.record(number)?;
        chunks.entry(record.holder.chunk).or_default().push(record);
    }
    Ok(chunks)
}

#[test]
fn agent_objects_hold_files_at_the_places_of_the_snapshot() -> Result<()> {
    let mut cluster = Cluster::new()?;
    let parts = parts(dl_store::memory(), Arc::new(Memory::new()));
    cluster.run(prepare(&parts, Stop::Fresh))?;
    cluster.start(&parts, 2)?;
    let client = cluster.client()?;
    scene::put(&client, &scene::files(2_000, 9_000)?)?;
    let folder = tempfile::tempdir()?;
    let reader = scene::reader(&client, &SnapshotCache::new(folder.path(), 1 << 30))?;
    let chunks = chunks(reader.snapshot().context("a snapshot")?)?;
    let end = |file: &FileRecord| file.offset + file.stored;
    let mut ranges: Vec<_> = chunks
        .iter()
        .map(|(chunk, files)| {
            let length = files.iter().map(end).max().unwrap_or_default();
            ChunkRange { chunk: *chunk, offset: 0, length }
        })
        .collect();
    ranges.push(ChunkRange { chunk: ChunkId::from_bytes([7; 16]), offset: 0, length: 1 << 20 });

    let source = ChunkSource::of(&reader)?;
    let mut objects = vec![Vec::new(); ranges.len()];
    let take = |range: usize, offset: u64, bytes: &[u8]| {
        if let Some(object) = objects.get_mut(range).filter(|it| it.len() as u64 == offset) {
            object.extend_from_slice(bytes);
        }
    };
    let ended = source.runtime().block_on(source.fetch(&ranges, false, take))?;
    let (gone, there) = ended.split_last().context("an answer for each range")?;
    ensure!(there.iter().all(Result::is_ok), "{there:?}");
    ensure!(gone.as_ref().err().map(libdiesel::Error::kind) == Some(Kind::NotFound), "{gone:?}");
    ensure!(chunks.len() > 5, "{} chunks", chunks.len());
    for (files, object) in chunks.values().zip(&objects) {
        for file in files {
            let bytes = object.get(file.offset as usize..end(file) as usize);
            ensure!(bytes.map(Crc32c::of) == Some(file.crc), "{file:?}");
        }
    }
    Ok(())
}
