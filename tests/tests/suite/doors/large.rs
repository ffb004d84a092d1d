//! Many concurrent requests, legal and as large as permitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use dl_format::DatasetId;
use dl_proto::{REQUEST_BYTES_MAX, STAT_PATHS_MAX, pb};
use dl_runtime::Deadline;
use dl_tests::cluster::clock;
use dl_tests::program::dl;
use dl_tests::scene::Scene;
use dl_tests::wire::Wire;
use dl_tests::{folder, rounds, tell};
use futures::TryStreamExt;
use tonic::Code;

const CONNECTIONS: usize = 64;

/// The paths of the largest requests: many short paths, and a few of maximal length.
fn paths() -> [Vec<Bytes>; 2] {
    let length = REQUEST_BYTES_MAX / STAT_PATHS_MAX - 8;
    let many = (0..STAT_PATHS_MAX).map(|number| Bytes::from(format!("{number:0length$}")));
    let long = (0..REQUEST_BYTES_MAX / 4_100).map(|number| {
        let component = "x".repeat(250);
        let path: Vec<_> = (0..16).map(|_| component.as_str()).collect();
        Bytes::from(format!("{number:04}{}", path.join("/")).into_bytes())
    });
    [many.collect(), long.collect()]
}

/// Repeats lookups and listings; counts the answers and the refusals.
async fn ask(
    address: String,
    dataset: DatasetId,
    paths: Vec<Bytes>,
    counts: Arc<[AtomicU64; 2]>,
) -> Result<()> {
    let client = Wire::connect(address.parse()?).await?;
    let id = Bytes::copy_from_slice(dataset.as_bytes());
    loop {
        let request = pb::StatRequest { dataset: id.clone(), paths: paths.clone() };
        let told = client.stub().stat(request).await.map(|answer| answer.into_inner().items.len());
        ensure!(told.as_ref().map_or(true, |count| *count == paths.len()), "an answer in part");
        let request =
            pb::ListRequest { dataset: id.clone(), recursive: true, ..Default::default() };
        let listed = match client.stub().list(request).await {
            Ok(pages) => pages.into_inner().try_for_each(|_| async { Ok(()) }).await,
            Err(refused) => Err(refused),
        };
        for answer in [told.map(drop), listed] {
            counts[usize::from(answer.is_err())].fetch_add(1, Ordering::Relaxed);
            if let Err(refused) = answer {
                let clear = [Code::Unavailable, Code::DeadlineExceeded, Code::ResourceExhausted];
                ensure!(clear.contains(&refused.code()), "{refused:?}");
            }
        }
    }
}

/// Keeps S-16 and S-10.
#[tokio::test(flavor = "multi_thread")]
async fn floods_of_large_requests_take_less_than_256_mib_heavy() -> Result<()> {
    let scene = Scene::new()?;
    let source = scene.src();
    folder::fill_with(&source, rounds(20_000, 200_000), |_| b"a".to_vec())?;
    let server = scene.start()?;
    server.put(&source, "dl://ds")?;
    let (_, dataset) = Wire::open(server.address(), "ds").await?;
    let until = Deadline::after(&*clock(), Duration::from_secs(rounds(20, 120)));
    let (counts, paths) = (Arc::new([AtomicU64::new(0), AtomicU64::new(0)]), paths());
    let floods: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let (address, paths) = (server.address().to_owned(), paths[number % 2].clone());
            let asked = ask(address, dataset, paths, Arc::clone(&counts));
            // The last request is abandoned.
            dl_runtime::spawn(async move { until.bound(&*clock(), asked).await.unwrap_or(Ok(())) })
        })
        .collect();
    let honest = dl(&server, ["cat", "dl://ds/0000/0000001"])?;
    ensure!(honest.code == 0 && honest.text() == "a", "an honest client: {honest:?}");
    for flood in floods {
        flood.await??;
    }
    let [done, refused] = [0, 1].map(|which: usize| counts[which].load(Ordering::Relaxed));
    tell(format_args!("{done} answered, {refused} refused"));
    ensure!(done > 0, "no request was answered");
    server.check_memory("server")?;
    dl(&server, ["cat", "dl://ds/0000/0000001"])?.code(0)?;
    server.stop().map(drop)
}
