//! State that a server finds after the crash of its predecessor: state named by the metadata must
//! survive a power cut.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use dl_format::DatasetId;
use dl_meta::{Memory, MetaStore};
use dl_runtime::ManualClock;
use dl_runtime::fault::CutPoint;
use dl_server::ServerContext;
use dl_store::VolatileDisk;
use dl_tests::cluster::{Running, clock, context};
use dl_tests::wire::{Wire, chunk, new_id};
use tonic::Code;

/// Later than the permitted age of an id.
const LATE: Duration = Duration::from_secs(20 * 60);

/// Kills a server at each point of a request in turn. `after` checks the disk and the metadata.
async fn die_at_each_point<T>(
    before: impl AsyncFn(&Wire) -> Result<T>,
    request: impl AsyncFn(&Wire, &T) -> Result<()>,
    after: impl AsyncFn(&VolatileDisk, Arc<dyn MetaStore>, T) -> Result<()>,
) -> Result<()> {
    for point in 0..1_000 {
        let (cut, meta) = (CutPoint::new(), memory());
        let disk = VolatileDisk::new(cut.clone());
        let begun = {
            let (_server, client) = serve(&disk, Arc::clone(&meta), clock().now()).await?;
            let begun = before(&client).await?;
            cut.arm(point);
            // The answer does not matter here.
            let _ = request(&client, &begun).await;
            begun
        };
        let is_beyond = !cut.is_cut();
        cut.disarm();
        after(&disk, meta, begun).await.with_context(|| format!("point {point}"))?;
        if is_beyond {
            return Ok(());
        }
    }
    bail!("the request has no end")
}

fn memory() -> Arc<dyn MetaStore> {
    Arc::new(Memory::new())
}

/// A server with a fixed clock at `now`.
async fn serve(
    disk: &VolatileDisk,
    meta: Arc<dyn MetaStore>,
    now: SystemTime,
) -> Result<(Running, Wire)> {
    let clock = Arc::new(ManualClock::new(now));
    Running::fresh(ServerContext { clock, ..context(disk.open()?, meta) }).await
}

/// A dataset and a chunk for it.
async fn begin(client: &Wire) -> Result<(DatasetId, Vec<u8>)> {
    let dataset = client.create("ds").await?;
    Ok((dataset, chunk(new_id(), dataset, [(&b"path"[..], &b"bytes"[..])])?))
}

async fn put(client: &Wire, (dataset, object): &(DatasetId, Vec<u8>)) -> Result<()> {
    client.put(*dataset, object).await?;
    Ok(())
}

/// The count of files on the disk with new metadata.
async fn recovered(disk: &VolatileDisk, dataset: DatasetId) -> Result<usize> {
    let (_server, client) = serve(disk, memory(), clock().now()).await?;
    client.recover().await?;
    Ok(client.files(dataset).await?.len())
}

/// Keeps S-02 (I2) and S-36: the server dies at each point of a commit, another server recovers,
/// then the power fails.
#[tokio::test(flavor = "multi_thread")]
async fn objects_adopted_by_recover_survive_a_power_cut() -> Result<()> {
    let adopted = Cell::new(0);
    die_at_each_point(begin, put, async |disk, _, (dataset, _)| {
        let files = recovered(disk, dataset).await?;
        adopted.set(adopted.get() + files);
        disk.lose_power(|| false);
        ensure!(recovered(disk, dataset).await? == files, "an acknowledged file is lost");
        Ok(())
    })
    .await?;
    ensure!(adopted.get() > 3, "only {} were adopted", adopted.get());
    Ok(())
}

/// Keeps S-01 (I1): the server dies at each point of a dataset's creation, and another server
/// completes it. After the first acknowledgement the power fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_used_half_created_dataset_survives_a_power_cut() -> Result<()> {
    let create = async |client: &Wire, (): &()| Ok(client.create("ds").await.map(drop)?);
    die_at_each_point(
        async |_| Ok(()),
        create,
        async |disk, meta, ()| {
            let begun = {
                let (_server, client) = serve(disk, meta, clock().now()).await?;
                let begun = begin(&client).await?;
                put(&client, &begun).await?;
                begun
            };
            disk.lose_power(|| false);
            ensure!(recovered(disk, begun.0).await? == 1, "acknowledged, and lost");
            Ok(())
        },
    )
    .await
}

/// Keeps S-01 (I1) and S-22 (Rule 8): the server dies at each point of a commit, the client retries
/// much later, then the power fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_retry_is_acknowledged_only_for_durable_objects() -> Result<()> {
    let answers = [Cell::new(0), Cell::new(0)];
    die_at_each_point(begin, put, async |disk, meta, (dataset, object)| {
        let retried = {
            let (_server, client) = serve(disk, meta, clock().now() + LATE).await?;
            client.put(dataset, &object).await
        };
        disk.lose_power(|| false);
        let files = recovered(disk, dataset).await?;
        ensure!(files == usize::from(retried.is_ok()), "{retried:?}, and {files} files");
        let count = &answers[usize::from(retried.is_err())];
        count.set(count.get() + 1);
        let refused = retried.err().map(|status| status.code());
        ensure!(refused.is_none_or(|code| code == Code::PermissionDenied), "{refused:?}");
        Ok(())
    })
    .await?;
    let [acknowledged, refused] = answers.map(Cell::into_inner);
    ensure!(refused > 0 && acknowledged > 1, "{refused} and {acknowledged}");
    Ok(())
}
