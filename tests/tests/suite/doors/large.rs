//! Many concurrent requests, legal and as large as permitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use dl_format::DatasetId;
use dl_proto::{REQUEST_BYTES_MAX, STAT_PATHS_MAX, pb};
use dl_runtime::Deadline;
use dl_tests::cluster::clock;
use dl_tests::program::{Server, dl, run};
use dl_tests::wire::Wire;
use dl_tests::{rounds, tell};
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

/// Requests of a connection until the time is over; the last request is abandoned.
async fn flood(
    address: std::net::SocketAddr,
    dataset: DatasetId,
    paths: Vec<Bytes>,
    until: Deadline,
    counts: Arc<[AtomicU64; 2]>,
) -> Result<()> {
    let asked = until.bound(&*clock(), ask(address, dataset, paths, counts)).await;
    asked.unwrap_or(Ok(()))
}

async fn ask(
    address: std::net::SocketAddr,
    dataset: DatasetId,
    paths: Vec<Bytes>,
    counts: Arc<[AtomicU64; 2]>,
) -> Result<()> {
    let client = Wire::connect(address).await?;
    let id = Bytes::copy_from_slice(dataset.as_bytes());
    loop {
        let mut stub = client.stub();
        let request = pb::StatRequest { dataset: id.clone(), paths: paths.clone() };
        let told = match stub.stat(request).await {
            Ok(answer) => {
                ensure!(answer.into_inner().items.len() == paths.len(), "an answer in part");
                Ok(())
            }
            Err(refused) => Err(refused),
        };
        let request =
            pb::ListRequest { dataset: id.clone(), recursive: true, ..Default::default() };
        let listed = match stub.list(request).await {
            Ok(pages) => {
                let mut pages = pages.into_inner();
                loop {
                    match pages.message().await {
                        Ok(Some(_)) => {}
                        Ok(None) => break Ok(()),
                        Err(refused) => break Err(refused),
                    }
                }
            }
            Err(refused) => Err(refused),
        };
        for answer in [told, listed] {
            match answer {
                Ok(()) => counts[0].fetch_add(1, Ordering::Relaxed),
                Err(refused) => {
                    let code = refused.code();
                    let is_clear = matches!(
                        code,
                        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted
                    );
                    ensure!(is_clear, "{refused:?}");
                    counts[1].fetch_add(1, Ordering::Relaxed)
                }
            };
        }
    }
}

/// Keeps S-16 and S-10.
#[tokio::test(flavor = "multi_thread")]
async fn floods_of_large_requests_take_less_than_256_mib_heavy() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let source = scene.path().join("src");
    for number in 0..rounds(20_000, 200_000) {
        if number % 1_000 == 0 {
            std::fs::create_dir_all(source.join(format!("{:04}", number / 1_000)))?;
        }
        std::fs::write(source.join(format!("{:04}/{number:07}", number / 1_000)), "a")?;
    }
    let mut server = Server::start(&scene.path().join("data"))?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    let address = server.address().parse()?;
    let dataset =
        Wire::connect(address).await?.dataset("ds").await?.context("the dataset exists")?;
    let until = Deadline::after(&*clock(), Duration::from_secs(rounds(20, 120)));
    let (counts, paths) = (Arc::new([AtomicU64::new(0), AtomicU64::new(0)]), paths());
    let floods: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let paths = paths[number % 2].clone();
            dl_runtime::spawn(flood(address, dataset, paths, until, Arc::clone(&counts)))
        })
        .collect();
    let honest = dl(&server, ["cat", "dl://ds/0000/0000001"])?;
    ensure!(honest.code == 0 && honest.text() == "a", "an honest client: {honest:?}");
    for flood in floods {
        flood.await??;
    }
    let peak = server.process().peak_memory().context("the server runs")?;
    let [done, refused] = [0, 1].map(|which: usize| counts[which].load(Ordering::Relaxed));
    tell(format_args!("{done} answered, {refused} refused, at most {} MiB", peak >> 20));
    ensure!(done > 0, "no request was answered");
    ensure!(peak < 256 << 20, "the server took {} MiB", peak >> 20);
    dl(&server, ["cat", "dl://ds/0000/0000001"])?.code(0)?;
    let log = server.stop()?;
    ensure!(!log.contains("panicked"), "{log}");
    Ok(())
}
