//! Concurrent operations: writers, a recovery, a deletion.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use dl_format::{ChunkIdMaker, dataset_prefix};
use dl_meta::{Embedded, EmbeddedOptions, MetaStore};
use dl_runtime::Deadline;
use dl_store::{Prefix, StoreExt};
use dl_tests::cluster::clock;
use dl_tests::rounds;
use dl_tests::wire::{Files, Wire, chunk};
use tonic::Code;

use super::{id, serve_with};

async fn embedded(folder: &tempfile::TempDir, name: &str) -> Result<Arc<dyn MetaStore>> {
    let folder = folder.path().join(name);
    let (meta, _) = Embedded::open(&folder, EmbeddedOptions::default(), clock()).await?;
    Ok(Arc::new(meta))
}

/// Keeps S-02 and S-38: with files acknowledged during a recovery.
#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_beside_writers_and_readers_loses_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let store = dl_store::open("memory:").await?;
    let mut expected = Files::new();
    for round in 0..rounds(4u8, 40) {
        // Each round starts with new metadata.
        let meta = embedded(&folder, &round.to_string()).await?;
        let (server, client) = serve_with(&store, Arc::clone(&meta)).await?;
        if round == 0 {
            client.create("ds").await?;
        } else {
            client.recover().await?;
        }
        let dataset = client.dataset("ds").await?.context("the dataset exists")?;
        ensure!(client.files(dataset).await? == expected, "round {round}");
        let mut writers = Vec::new();
        for writer in 0..4u8 {
            let client = Wire::connect(server.address()).await?;
            writers.push(dl_runtime::spawn(async move {
                let mut ids = ChunkIdMaker::new([writer + 10 * (round % 20); 9]);
                let mut files = Files::new();
                for number in 0..15 {
                    let path = format!("{writer}/{}", number % 7).into_bytes();
                    let data = format!("{round} {number}").into_bytes();
                    let object = chunk(id(&mut ids, 0), dataset, [(&path[..], &data[..])])?;
                    client.put(dataset, &object).await?;
                    files.insert(path, data);
                }
                anyhow::Ok(files)
            }));
        }
        for _ in 0..4 {
            let recovered = client.recover().await?;
            ensure!(recovered.iter().all(|one| one.problems.is_empty()), "{recovered:?}");
            // Listing only: a file may be replaced between a listing and a read.
            client.list(dataset).await?;
        }
        for writer in writers {
            expected.extend(writer.await??);
        }
        ensure!(client.files(dataset).await? == expected, "after round {round}");
        drop(server);
    }
    Ok(())
}

/// Keeps S-21.
#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_deleted_under_its_writers_leaves_no_object_behind() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let store = dl_store::open("memory:").await?;
    let meta = embedded(&folder, "meta").await?;
    let (server, client) = serve_with(&store, meta).await?;
    for round in 0..rounds(10u8, 200) {
        let dataset = client.create("ds").await?;
        let mut writers = Vec::new();
        for writer in 0..4u8 {
            let client = Wire::connect(server.address()).await?;
            writers.push(dl_runtime::spawn(async move {
                let mut ids = ChunkIdMaker::new([writer; 9]);
                let deadline = Deadline::after(&*clock(), std::time::Duration::from_secs(60));
                let left = |_: &u32| !deadline.remaining(&*clock()).is_zero();
                for number in (0u32..).take_while(left) {
                    let path = format!("{writer}/{number}").into_bytes();
                    let object = chunk(id(&mut ids, 0), dataset, [(&path[..], &b"x"[..])])?;
                    if let Err(status) = client.put(dataset, &object).await {
                        ensure!(status.code() == Code::NotFound, "{status}");
                        return anyhow::Ok(());
                    }
                }
                anyhow::bail!("the dataset never ended")
            }));
        }
        clock().sleep(std::time::Duration::from_millis(u64::from(round % 10))).await;
        client.delete_dataset("ds", dataset).await?;
        for writer in writers {
            writer.await?.with_context(|| format!("round {round}"))?;
        }
        let left = store.list_sorted(&Prefix::new(dataset_prefix(dataset))?).await?;
        ensure!(left.is_empty(), "round {round}: {left:?}");
        ensure!(
            client.dataset("ds").await?.is_none(),
            "round {round}: the deleted dataset exists again"
        );
    }
    Ok(())
}

/// Keeps S-21 and S-02.
#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_deleted_during_a_recovery_stays_deleted() -> Result<()> {
    for round in 0..rounds(16u64, 300) {
        race(round).await.with_context(|| format!("round {round}"))?;
    }
    Ok(())
}

async fn race(round: u64) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let store = dl_store::open("memory:").await?;
    let mut ids = ChunkIdMaker::new([9; 9]);
    let mut meta = embedded(&folder, "first").await?;
    let (mut server, mut client) = serve_with(&store, Arc::clone(&meta)).await?;
    let (ds, other) = (client.create("ds").await?, client.create("other").await?);
    let mut kept = Files::new();
    for number in 0..100 {
        let path = format!("{number}").into_bytes();
        for dataset in [ds, other] {
            let object = chunk(id(&mut ids, 0), dataset, [(&path[..], &b"old"[..])])?;
            client.put(dataset, &object).await?;
        }
        kept.insert(path, b"old".to_vec());
    }
    if round.is_multiple_of(2) {
        // The new metadata know neither dataset.
        meta = embedded(&folder, "lost").await?;
        (server, client) = serve_with(&store, Arc::clone(&meta)).await?;
    }
    let recovery = async {
        let recovered = client.recover().await?;
        ensure!(recovered.iter().all(|one| one.problems.is_empty()), "{recovered:?}");
        Ok(())
    };
    let deletion = async {
        clock().sleep(std::time::Duration::from_micros(300 * round)).await;
        client.delete_dataset("ds", ds).await
    };
    let (recovered, deleted) = tokio::join!(recovery, deletion);
    recovered.context("recover")?;
    deleted.context("delete")?;
    ensure!(client.dataset("ds").await?.is_none(), "the deleted dataset exists again");

    let new = client.create("ds").await?;
    ensure!(new != ds, "the name stands for the dead dataset");
    ensure!(client.files(new).await?.is_empty(), "dead files in the new dataset");
    let object = chunk(id(&mut ids, 0), new, [(&b"path"[..], &b"new"[..])])?;
    client.put(new, &object).await?;
    let fresh = Files::from([(b"path".to_vec(), b"new".to_vec())]);
    server.stop().await?;
    // Kept and rebuilt metadata must agree.
    let rebuilt = embedded(&folder, "rebuilt").await?;
    for (meta, recover) in [(meta, false), (rebuilt, true)] {
        let (_server, client) = serve_with(&store, meta).await?;
        if recover {
            client.recover().await?;
        }
        ensure!(client.dataset("ds").await? == Some(new), "recover {recover}: another dataset");
        ensure!(client.files(new).await? == fresh, "recover {recover}: the new files");
        ensure!(client.files(other).await? == kept, "recover {recover}: the other dataset");
    }
    let left = store.list_sorted(&Prefix::new(dataset_prefix(ds))?).await?;
    ensure!(left.is_empty(), "of the dead dataset: {left:?}");
    Ok(())
}
