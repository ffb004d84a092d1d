//! The count of dataset look-ups in the metadata store per request.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use dl_format::{ChunkIdMaker, Deletions, FilePath};
use dl_meta::{FaultMeta, Kind, Memory, Stop};
use dl_proto::pb;
use dl_runtime::SeededRandom;
use dl_runtime::fault::{CutPoint, Fault, Faults};
use dl_server::prepare;
use dl_tests::cluster::{Running, clock, context};
use dl_tests::wire::{Wire, chunk};

/// Counts look-ups of the dataset record by a script of faults.
struct LookUps(Faults<Kind>);

impl LookUps {
    /// Checks that a request makes exactly `count` look-ups; a further look-up fails the request.
    async fn count<T>(
        &self,
        method: &str,
        count: usize,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let one_more = Some(Fault::Before(Kind::Denied));
        self.0.script("record", std::iter::repeat_n(None, count).chain([one_more]));
        let answer = request.await.context(method.to_owned())?;
        ensure!(!self.0.is_used_up("record"), "{method} looks the record up too often");
        ensure!(self.0.next("record").is_some(), "{method} looks the record up less often");
        Ok(answer)
    }
}

#[tokio::test]
async fn a_request_looks_the_record_of_its_dataset_up_once() -> Result<()> {
    let store = dl_store::open("memory:").await?;
    let faults = Faults::new(Arc::new(SeededRandom::new(1)));
    let meta = FaultMeta::new(Arc::new(Memory::new()), clock(), faults.clone(), CutPoint::new());
    let context = context(store, Arc::new(meta));
    prepare(&context, Stop::Fresh).await?;
    let server = Running::start(context).await?;
    let wire = Wire::connect(server.address()).await?;
    let id = wire.create("ds").await?;
    let look_ups = LookUps(faults);
    let mut ids = ChunkIdMaker::new([1; 9]);
    let paths = [FilePath::new("a")?];
    let object = chunk(ids.next(clock().now()), id, [(&b"a"[..], &b"bytes"[..])])?;

    look_ups.count("PutChunk", 1, async { Ok(wire.put(id, &object).await?) }).await?;
    look_ups.count("Stat", 1, wire.stat(id, &paths)).await?;
    let read = look_ups.count("Read", 1, wire.read(id, &paths)).await?;
    ensure!(read[0].as_deref() == Some(&b"bytes"[..]), "the file");

    let dataset = bytes::Bytes::copy_from_slice(id.as_bytes());
    let range = pb::ChunkRange { chunk: dataset.clone(), offset: 0, length: 1 };
    let request =
        pb::GetChunksRequest { dataset: dataset.clone(), ranges: vec![range], pass_copies: false };
    let chunks = async {
        let mut chunks = wire.stub().get_chunks(request).await?.into_inner();
        while chunks.message().await?.is_some() {}
        Ok(())
    };
    look_ups.count("GetChunks", 1, chunks).await?;

    // The second look-up follows a page: lost metadata must not look like an empty dataset.
    let listed = look_ups.count("List", 2, wire.list(id)).await?;

    let snapshot = async || {
        let request = pb::GetSnapshotRequest { dataset: dataset.clone(), ..Default::default() };
        let mut pieces = wire.stub().get_snapshot(request).await?.into_inner();
        while pieces.message().await?.is_some() {}
        anyhow::Ok(())
    };
    snapshot().await.context("build the snapshot")?;
    look_ups.count("GetSnapshot", 1, snapshot()).await?;

    let mut deletions = Deletions::default();
    deletions.insert(&listed.first().context("a file")?.1.version);
    let tombstone = ids.next(clock().now());
    look_ups
        .count("Delete", 1, async { Ok(wire.delete(id, tombstone, &deletions).await?) })
        .await?;
    server.stop().await
}
