//! The count of dataset look-ups in the metadata store per request.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use dl_format::{ChunkIdMaker, Deletions, FilePath};
use dl_meta::{FaultMeta, Kind, Memory, Stop};
use dl_proto::pb;
use dl_runtime::SeededRandom;
use dl_runtime::fault::{CutPoint, Fault, Faults};
use dl_server::prepare;
use dl_tests::cluster::{Running, clock, parts};
use dl_tests::wire::{Wire, chunk};

/// Counts look-ups of the dataset record by a script of faults.
struct LookUps(Faults<Kind>);

impl LookUps {
    /// Permits `count` look-ups; a further look-up fails the request.
    fn allow(&self, count: usize) {
        let one_more = Some(Fault::Before(Kind::Denied));
        let script = std::iter::repeat_n(None, count).chain([one_more]);
        self.0.script("record", script);
    }

    /// Checks that exactly the permitted look-ups were made, and clears the script.
    fn end(&self, method: &str) -> Result<()> {
        ensure!(!self.0.is_used_up("record"), "{method} looks the record up too often");
        let first = self.0.next("record");
        ensure!(first.is_some(), "{method} looks the record up less often");
        Ok(())
    }
}

#[tokio::test]
async fn a_request_looks_the_record_of_its_dataset_up_once() -> Result<()> {
    let store = dl_store::open("memory:").await?;
    let faults = Faults::new(Arc::new(SeededRandom::new(1)));
    let meta = FaultMeta::new(Arc::new(Memory::new()), clock(), faults.clone(), CutPoint::new());
    let parts = parts(store, Arc::new(meta));
    prepare(&parts, Stop::Fresh).await?;
    let server = Running::start(parts).await?;
    let wire = Wire::connect(server.address()).await?;
    let id = wire.create("ds").await?;
    let look_ups = LookUps(faults);
    let mut ids = ChunkIdMaker::new([1; 9]);
    let paths = [FilePath::new("a")?];
    let object = chunk(ids.next(clock().now()), id, [(&b"a"[..], &b"bytes"[..])])?;

    look_ups.allow(1);
    wire.put(id, &object).await?;
    look_ups.end("PutChunk")?;

    look_ups.allow(1);
    wire.stat(id, &paths).await?;
    look_ups.end("Stat")?;

    look_ups.allow(1);
    ensure!(wire.read(id, &paths).await?[0].as_deref() == Some(&b"bytes"[..]), "the file");
    look_ups.end("Read")?;

    let dataset = bytes::Bytes::copy_from_slice(id.as_bytes());
    let range = pb::ChunkRange { chunk: dataset.clone(), offset: 0, length: 1 };
    let request = pb::GetChunksRequest { dataset, ranges: vec![range], pass_copies: false };
    look_ups.allow(1);
    let mut chunks = wire.stub().get_chunks(request).await?.into_inner();
    while chunks.message().await?.is_some() {}
    look_ups.end("GetChunks")?;

    // The second look-up follows a page: lost metadata must not look like an empty dataset.
    look_ups.allow(2);
    let listed = wire.list(id).await?;
    look_ups.end("List")?;

    let request = pb::GetSnapshotRequest {
        dataset: bytes::Bytes::copy_from_slice(id.as_bytes()),
        ..Default::default()
    };
    let mut build = wire.stub().get_snapshot(request.clone()).await?.into_inner();
    while build.message().await?.is_some() {}
    look_ups.allow(1);
    let mut stored = wire.stub().get_snapshot(request).await?.into_inner();
    while stored.message().await?.is_some() {}
    look_ups.end("GetSnapshot")?;

    let mut deletions = Deletions::default();
    deletions.insert(&listed.first().context("a file")?.1.version);
    look_ups.allow(1);
    wire.delete(id, ids.next(clock().now()), &deletions).await?;
    look_ups.end("Delete")?;
    server.stop().await
}
