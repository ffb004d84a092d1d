//! What the metadata and the chunk store are to each other.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use dl_format::ChunkIdMaker;
use dl_meta::{Memory, MetaStore, Stop};
use dl_server::prepare;
use dl_store::{Prefix, StoreExt};
use dl_tests::cluster::parts;
use dl_tests::wire::chunk;
use tonic::Code;

use super::{id, serve, serve_with};

/// Keeps S-20.
#[tokio::test(flavor = "multi_thread")]
async fn a_complete_chunk_that_the_metadata_lacks_is_adopted_and_never_removed() -> Result<()> {
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
        // Other metadata takes a chunk that the first one never hears of.
        let (_server, client) = serve(&store).await?;
        client.recover().await?;
        let object = chunk(id(&mut writer, 0), dataset, [(&b"two"[..], &b"2"[..])])?;
        client.put(dataset, &object).await?;
    }
    let everything = store.list_sorted(&Prefix::ROOT).await?;
    let (_server, client) = serve_with(&store, Arc::clone(&behind)).await?;
    ensure!(client.files(dataset).await?.len() == 1, "it knows of the second one");
    prepare(&parts(Arc::clone(&store), behind), Stop::Unclean).await?;
    ensure!(client.files(dataset).await?.len() == 2, "the second one was not adopted");
    ensure!(store.list_sorted(&Prefix::ROOT).await? == everything, "objects came or went");
    Ok(())
}

/// Keeps S-21.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_dataset_takes_no_writes_and_its_name_stands_for_another_one() -> Result<()> {
    let store = dl_store::open("memory:").await?;
    let (_server, client) = serve(&store).await?;
    let old = client.create("ds").await?;
    let mut writer = ChunkIdMaker::new([9; 9]);
    let object = chunk(id(&mut writer, 0), old, [(&b"path"[..], &b"old"[..])])?;
    client.put(old, &object).await?;
    client.delete_dataset("ds", old).await?;
    ensure!(client.dataset("ds").await?.is_none(), "it is still there");
    let new = client.create("ds").await?;
    ensure!(new != old, "the name stands for the old dataset again");
    let late = chunk(id(&mut writer, 0), old, [(&b"path"[..], &b"late"[..])])?;
    for object in [&late, &object] {
        let refused = client.put(old, object).await.err().context("a dead dataset took a chunk")?;
        ensure!(refused.code() == Code::NotFound, "{refused}");
    }
    // A retry of the deletion means the old one.
    client.delete_dataset("ds", old).await?;
    ensure!(client.dataset("ds").await? == Some(new), "the new one was deleted");
    ensure!(client.files(new).await?.is_empty(), "old files in the new dataset");
    let (_other, recovered) = serve(&store).await?;
    recovered.recover().await?;
    ensure!(recovered.dataset("ds").await? == Some(new), "recovered the old one");
    Ok(())
}

/// Keeps S-05.
#[tokio::test(flavor = "multi_thread")]
async fn emptied_metadata_is_refused_and_not_taken_for_an_empty_dataset() -> Result<()> {
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
