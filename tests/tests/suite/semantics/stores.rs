//! The relation between metadata and chunk store.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_format::ChunkIdMaker;
use dl_meta::{Memory, MetaStore, Stop};
use dl_runtime::fault::{CutPoint, Fault, Faults};
use dl_runtime::{Deadline, SeededRandom};
use dl_server::prepare;
use dl_store::{FaultStore, Prefix, Store, StoreExt};
use dl_tests::cluster::{clock, context};
use dl_tests::wire::chunk;
use tonic::Code;

use super::{id, serve, serve_with};

/// Keeps S-20 and S-36: Rule 5.
#[tokio::test(flavor = "multi_thread")]
async fn an_unindexed_complete_chunk_is_adopted() -> Result<()> {
    let store = dl_store::open("memory:").await?;
    let behind: Arc<dyn MetaStore> = Arc::new(Memory::new());
    let mut writer = ChunkIdMaker::new([9; 9]);
    let dataset = {
        let (_server, client) = serve_with(&store, Arc::clone(&behind)).await?;
        let dataset = client.create("ds").await?;
        let object = chunk(id(&mut writer, 0), dataset, [(&b"one"[..], &b"1"[..])])?;
        client.put(dataset, &object).await?;
        dataset
    };
    {
        // Other metadata index a chunk unknown to the first metadata.
        let (_server, client) = serve(&store).await?;
        client.recover().await?;
        let object = chunk(id(&mut writer, 0), dataset, [(&b"two"[..], &b"2"[..])])?;
        client.put(dataset, &object).await?;
    }
    let everything = store.list_sorted(&Prefix::ROOT).await?;
    let (_server, client) = serve_with(&store, Arc::clone(&behind)).await?;
    ensure!(client.files(dataset).await?.len() == 1, "the metadata already have the second chunk");
    prepare(&context(Arc::clone(&store), behind), Stop::Unclean).await?;
    ensure!(client.files(dataset).await?.len() == 2, "the second chunk was not adopted");
    ensure!(store.list_sorted(&Prefix::ROOT).await? == everything, "objects came or went");
    Ok(())
}

/// Keeps S-21: Rule 6.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_dataset_takes_no_writes_and_frees_its_name() -> Result<()> {
    let store = dl_store::open("memory:").await?;
    let (_server, client) = serve(&store).await?;
    let old = client.create("ds").await?;
    let mut writer = ChunkIdMaker::new([9; 9]);
    let object = chunk(id(&mut writer, 0), old, [(&b"path"[..], &b"old"[..])])?;
    client.put(old, &object).await?;
    client.delete_dataset("ds", old).await?;
    ensure!(client.dataset("ds").await?.is_none(), "the deleted dataset still exists");
    let new = client.create("ds").await?;
    ensure!(new != old, "the name stands for the old dataset again");
    let late = chunk(id(&mut writer, 0), old, [(&b"path"[..], &b"late"[..])])?;
    for object in [&late, &object] {
        let refused = client.put(old, object).await.err().context("a dead dataset took a chunk")?;
        ensure!(refused.code() == Code::NotFound, "{refused}");
    }
    // A retry of the deletion names the old id and must not delete the new dataset.
    client.delete_dataset("ds", old).await?;
    ensure!(client.dataset("ds").await? == Some(new), "the retry deleted the new dataset");
    ensure!(client.files(new).await?.is_empty(), "old files in the new dataset");
    let (_other, recovered) = serve(&store).await?;
    recovered.recover().await?;
    ensure!(recovered.dataset("ds").await? == Some(new), "recover restored the old dataset");
    Ok(())
}

/// Keeps S-05: Rule 6.
#[tokio::test(flavor = "multi_thread")]
async fn emptied_metadata_are_not_an_empty_dataset() -> Result<()> {
    let store = dl_store::open("memory:").await?;
    let dataset = {
        let (_server, client) = serve(&store).await?;
        client.create("ds").await?
    };
    let (_server, client) = serve(&store).await?;
    let by_name = client.dataset("ds").await.err().context("by name")?;
    let mut stub = client.stub();
    let by_id = stub.stat(dl_proto::pb::StatRequest {
        dataset: bytes::Bytes::copy_from_slice(dataset.as_bytes()),
        paths: Vec::new(),
    });
    let by_id = by_id.await.err().context("by id")?;
    let unknown = client.dataset("never-made").await.err().context("an unknown name")?;
    let created = client.create("fresh").await.err().context("created")?;
    for refused in [by_name, by_id, unknown, created] {
        ensure!(refused.code() == Code::FailedPrecondition, "{refused}");
        ensure!(refused.message().contains("dlcmd recover"), "{refused}");
    }
    Ok(())
}

/// Keeps S-03, I3: the store is slow, and the client disconnects.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_client_goes_away_is_done_to_its_end() -> Result<()> {
    let faults = Faults::new(Arc::new(SeededRandom::new(0)));
    let memory = dl_store::open("memory:").await?;
    let slow = FaultStore::new(memory, clock(), faults.clone(), CutPoint::new());
    let store: Arc<dyn Store> = Arc::new(slow);
    let (_server, client) = serve(&store).await?;

    give_up(&faults, client.create("ds")).await?;
    // The dataset exists and needs no recovery.
    until("the dataset exists", async || Ok(client.dataset("ds").await?.is_some())).await?;
    let dataset = client.dataset("ds").await?.context("the dataset exists")?;

    let mut writer = ChunkIdMaker::new([9; 9]);
    let object = chunk(id(&mut writer, 0), dataset, [(&b"path"[..], &b"x"[..])])?;
    give_up(&faults, client.put(dataset, &object)).await?;
    until("the chunk is there", async || Ok(client.files(dataset).await?.len() == 1)).await?;

    give_up(&faults, client.delete_dataset("ds", dataset)).await?;
    until("the dataset is deleted", async || Ok(client.dataset("ds").await?.is_none())).await?;
    let late = client.put(dataset, &object).await.err().context("a dead dataset took a chunk")?;
    ensure!(late.code() == Code::NotFound, "{late}");
    Ok(())
}

/// Sends a request and disconnects while the slow store creates the object.
async fn give_up<T>(faults: &Faults<dl_store::Kind>, asked: impl Future<Output = T>) -> Result<()> {
    faults.script("create", [Some(Fault::Delay(Duration::from_millis(500)))]);
    let begins = async {
        while !faults.is_used_up("create") {
            clock().sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        biased;
        _ = asked => anyhow::bail!("the request ended before its client disconnected"),
        () = begins => Ok(()),
    }
}

/// Waits up to 20 s for a condition.
async fn until(what: &str, is_so: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let deadline = Deadline::after(&*clock(), Duration::from_secs(20));
    while !is_so().await? {
        ensure!(!deadline.remaining(&*clock()).is_zero(), "not so within 20 s: {what}");
        clock().sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
