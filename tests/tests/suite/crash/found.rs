//! State that a server finds after the crash of its predecessor: state named by the metadata must
//! survive a power cut.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use dl_format::{ChunkIdMaker, DatasetId};
use dl_meta::{Memory, MetaStore, Stop};
use dl_runtime::fault::CutPoint;
use dl_server::prepare;
use dl_store::VolatileDisk;
use dl_tests::cluster::{Running, clock, parts};
use dl_tests::wire::{Wire, chunk};

/// Keeps S-02 (I2) and S-36: the server dies at each point of a commit, another server recovers,
/// then the power fails.
#[tokio::test(flavor = "multi_thread")]
async fn objects_adopted_by_recover_survive_a_power_cut() -> Result<()> {
    let mut adopted = 0;
    for point in 0..1_000 {
        let (cut, disk, _) = fresh();
        let dataset = {
            let (_server, client) = serve(&disk, &memory()).await?;
            let dataset = client.create("ds").await?;
            cut.arm(point);
            // The answer does not matter here.
            let _ = put(&client, dataset).await;
            dataset
        };
        let is_beyond = !cut.is_cut();
        cut.disarm();
        let recovered = {
            let (_server, client) = serve(&disk, &memory()).await?;
            client.recover().await?;
            client.files(dataset).await?.len()
        };
        adopted += recovered;
        ensure!(
            after_power_cut(&disk, dataset).await? == recovered,
            "point {point}: an acknowledged file is lost"
        );
        if is_beyond {
            ensure!(adopted > 3, "only {adopted} were adopted");
            return Ok(());
        }
    }
    bail!("a commit has no end")
}

/// Keeps S-01 (I1): the server dies at each point of a dataset's creation, and another server
/// completes it. After the first acknowledgement the power fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_used_half_created_dataset_survives_a_power_cut() -> Result<()> {
    for point in 0..1_000 {
        let (cut, disk, meta) = fresh();
        {
            let (_server, client) = serve(&disk, &meta).await?;
            cut.arm(point);
            // The answer does not matter here.
            let _ = client.create("ds").await;
        }
        let is_beyond = !cut.is_cut();
        cut.disarm();
        let dataset = {
            let (_server, client) = serve(&disk, &meta).await?;
            let dataset = client.create("ds").await?;
            put(&client, dataset).await?;
            dataset
        };
        let files = after_power_cut(&disk, dataset).await;
        let files = files.with_context(|| format!("point {point}"))?;
        ensure!(files == 1, "point {point}: acknowledged, and lost");
        if is_beyond {
            return Ok(());
        }
    }
    bail!("a creation has no end")
}

fn fresh() -> (CutPoint, VolatileDisk, Arc<dyn MetaStore>) {
    let cut = CutPoint::new();
    (cut.clone(), VolatileDisk::new(cut), memory())
}

fn memory() -> Arc<dyn MetaStore> {
    Arc::new(Memory::new())
}

async fn serve(disk: &VolatileDisk, meta: &Arc<dyn MetaStore>) -> Result<(Running, Wire)> {
    let parts = parts(disk.open()?, Arc::clone(meta));
    prepare(&parts, Stop::Fresh).await?;
    let server = Running::start(parts).await?;
    let client = Wire::connect(server.address()).await?;
    Ok((server, client))
}

async fn put(client: &Wire, dataset: DatasetId) -> Result<()> {
    let id = ChunkIdMaker::new([9; 9]).next(clock().now());
    client.put(dataset, &chunk(id, dataset, [(&b"path"[..], &b"bytes"[..])])?).await?;
    Ok(())
}

/// The count of files on the synced disk with new metadata.
async fn after_power_cut(disk: &VolatileDisk, dataset: DatasetId) -> Result<usize> {
    disk.lose_power(|| false);
    let (_server, client) = serve(disk, &memory()).await?;
    client.recover().await?;
    Ok(client.files(dataset).await?.len())
}
