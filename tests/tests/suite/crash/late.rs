//! A retry too late for a new object, after the crash of the object's server.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use dl_format::ChunkIdMaker;
use dl_meta::{Memory, MetaStore, Stop};
use dl_runtime::ManualClock;
use dl_runtime::fault::CutPoint;
use dl_server::{Parts, prepare};
use dl_store::VolatileDisk;
use dl_tests::cluster::{Running, clock, parts};
use dl_tests::wire::{Wire, chunk};
use tonic::Code;

/// Later than the permitted age of an id.
const LATE: Duration = Duration::from_secs(20 * 60);

/// Keeps S-01 (I1) and S-22 (Rule 8): the server dies at each point of a commit, the client retries
/// much later, then the power fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_retry_is_acknowledged_only_for_durable_objects() -> Result<()> {
    let (mut acknowledged, mut refused) = (0, 0);
    for point in 0..1_000 {
        let cut = CutPoint::new();
        let disk = VolatileDisk::new(cut.clone());
        let meta: Arc<dyn MetaStore> = Arc::new(Memory::new());
        let now = clock().now();
        let (dataset, object) = {
            let (_server, client) = serve(&disk, Arc::clone(&meta), now).await?;
            let dataset = client.create("ds").await?;
            let id = ChunkIdMaker::new([9; 9]).next(now);
            let object = chunk(id, dataset, [(&b"path"[..], &b"bytes"[..])])?;
            cut.arm(point);
            // The answer does not matter here.
            let _ = client.put(dataset, &object).await;
            (dataset, object)
        };
        let is_beyond = !cut.is_cut();
        cut.disarm();
        let retried = {
            let (_server, client) = serve(&disk, Arc::clone(&meta), now + LATE).await?;
            client.put(dataset, &object).await
        };
        disk.lose_power(|| false);
        let (_server, client) = serve(&disk, Arc::new(Memory::new()), now).await?;
        client.recover().await?;
        let files = client.files(dataset).await.with_context(|| format!("point {point}"))?;
        match retried {
            Ok(_) => {
                ensure!(files.len() == 1, "point {point}: acknowledged, and lost");
                acknowledged += 1;
            }
            Err(status) => {
                ensure!(status.code() == Code::PermissionDenied, "point {point}: {status}");
                ensure!(files.is_empty(), "point {point}: refused, and there");
                refused += 1;
            }
        }
        if is_beyond {
            ensure!(refused > 0 && acknowledged > 1, "{refused} and {acknowledged}");
            return Ok(());
        }
    }
    anyhow::bail!("a commit has no end")
}

/// A server with a fixed clock at `now`.
async fn serve(
    disk: &VolatileDisk,
    meta: Arc<dyn MetaStore>,
    now: SystemTime,
) -> Result<(Running, Wire)> {
    let parts = Parts { clock: Arc::new(ManualClock::new(now)), ..parts(disk.open()?, meta) };
    prepare(&parts, Stop::Fresh).await?;
    let server = Running::start(parts).await?;
    let client = Wire::connect(server.address()).await?;
    Ok((server, client))
}
