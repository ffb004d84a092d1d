//! The winner among concurrent changes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use dl_format::{ChunkIdMaker, Deletions};
use dl_meta::{Memory, Stop};
use dl_proto::pb::PutChunkRequest;
use dl_runtime::{Clock, ManualClock, blocking};
use dl_server::{Doors, HttpPort, Limits, ServerContext, prepare};
use dl_tests::cluster::{Running, context};
use dl_tests::http::get;
use dl_tests::wire::{Files, Wire, chunk};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::{id, serve};

const MINUTE: i64 = 60;

fn of(bytes: &str) -> Files {
    Files::from([(b"path".to_vec(), bytes.as_bytes().to_vec())])
}

/// Keeps S-17: Rule 1.
#[tokio::test(flavor = "multi_thread")]
async fn the_later_commit_wins_beside_any_clocks() -> Result<()> {
    let store = dl_store::open("memory:").await?;
    let (_server, client) = serve(&store).await?;
    let dataset = client.create("ds").await?;
    let (mut one, mut two) = (ChunkIdMaker::new([9; 9]), ChunkIdMaker::new([1; 9]));
    let ahead = chunk(id(&mut one, 10 * MINUTE), dataset, [(&b"path"[..], &b"first"[..])])?;
    let behind = chunk(id(&mut two, -10 * MINUTE), dataset, [(&b"path"[..], &b"second"[..])])?;
    let first = client.put(dataset, &ahead).await?;
    let second = client.put(dataset, &behind).await?;
    ensure!(first < second, "stamps {first:?} and {second:?}");
    ensure!(client.files(dataset).await? == of("second"), "the later commit");
    // A late retry of the first put changes nothing.
    ensure!(client.put(dataset, &ahead).await? == first, "the same stamp");
    ensure!(client.files(dataset).await? == of("second"), "after a retry");

    let (_other, recovered) = serve(&store).await?;
    recovered.recover().await?;
    ensure!(recovered.files(dataset).await? == of("second"), "recovered");
    Ok(())
}

/// Keeps S-22: Rule 8. The second chunk exceeds the permitted time.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_chunk_is_judged_by_the_time_of_its_first_piece() -> Result<()> {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let time = Arc::new(ManualClock::new(now));
    let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(&time);
    let limits = Limits { patience: Duration::from_secs(100_000), ..Limits::default() };
    let working = context(dl_store::open("memory:").await?, Arc::new(Memory::new()));
    let context = ServerContext { limits, clock: Arc::clone(&clock), ..working };
    prepare(&context, Stop::Fresh).await?;
    let http = HttpPort::open(TcpListener::bind("127.0.0.1:0").await?, clock, None)?;
    let address = http.address().to_string();
    let grpc = TcpListener::bind("127.0.0.1:0").await?;
    let server = Running::behind(Doors { http: Some(http), ..Doors::open(grpc) }, context).await?;
    let client = Wire::connect(server.address()).await?;
    let dataset = client.create("ds").await?;
    let mut writer = ChunkIdMaker::new([9; 9]);
    for minutes in [14, 16] {
        let object = chunk(
            writer.next(time.now() - Duration::from_secs(600)),
            dataset,
            [(&b"path"[..], &b"x"[..])],
        )?;
        let (pieces, sent) = mpsc::channel(1);
        let (dataset, length) = (dataset.as_bytes().to_vec().into(), object.len() as u64);
        pieces.send(PutChunkRequest { dataset, length, ..Default::default() }).await?;
        let mut stub = client.stub();
        let put = dl_runtime::spawn(async move { stub.put_chunk(ReceiverStream::new(sent)).await });
        let is_begun = async || {
            let address = address.clone();
            let (_, text) = blocking::run(move || get(&address, "/metrics")).await??;
            anyhow::Ok(text.contains("diesel_memory_used_bytes{budget=\"write\"} 5"))
        };
        while !is_begun().await? {
            dl_tests::cluster::clock().sleep(Duration::from_millis(20)).await;
        }
        time.advance(Duration::from_secs(minutes * 60));
        pieces.send(PutChunkRequest { data: object.into(), ..Default::default() }).await?;
        drop(pieces);
        match put.await? {
            Ok(_) => ensure!(minutes == 14, "a chunk of {minutes} minutes was stored"),
            Err(status) => {
                ensure!(minutes == 16 && status.code() == Code::PermissionDenied, "{status}");
                ensure!(status.message().contains("may take 900"), "{status}");
            }
        }
    }
    Ok(())
}

/// Keeps S-19: Rule 3.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_and_its_late_retry_spare_newer_files() -> Result<()> {
    let store = dl_store::open("memory:").await?;
    let (_server, client) = serve(&store).await?;
    let dataset = client.create("ds").await?;
    let mut writer = ChunkIdMaker::new([9; 9]);
    let mut put = async |bytes: &str| {
        let object = chunk(id(&mut writer, 0), dataset, [(&b"path"[..], bytes.as_bytes())])?;
        anyhow::Ok(client.put(dataset, &object).await?)
    };
    let seen = async |client: &Wire| -> Result<Deletions> {
        let mut deletions = Deletions::default();
        for (_, record) in client.list(dataset).await? {
            deletions.insert(&record.version);
        }
        Ok(deletions)
    };
    put("first").await?;
    put("second").await?;
    let (deletions, tombstone) = (seen(&client).await?, id(&mut ChunkIdMaker::new([5; 9]), 0));
    let stamp = client.delete(dataset, tombstone, &deletions).await?;
    // The deleted version hides its predecessor.
    ensure!(client.files(dataset).await?.is_empty(), "an older version came to light");
    put("third").await?;
    ensure!(client.delete(dataset, tombstone, &deletions).await? == stamp, "the same stamp");
    let again = id(&mut ChunkIdMaker::new([6; 9]), 0);
    client.delete(dataset, again, &deletions).await?;
    ensure!(client.files(dataset).await? == of("third"), "a late retry killed a newer file");

    let (_other, recovered) = serve(&store).await?;
    recovered.recover().await?;
    ensure!(recovered.files(dataset).await? == of("third"), "recovered");
    Ok(())
}
