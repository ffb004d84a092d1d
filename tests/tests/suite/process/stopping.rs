//! Requests in flight at the stop of a server.
//!
//! Must hold: each request is sent once, so only the server that received it can answer.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use dl_meta::Memory;
use dl_proto::pb;
use dl_runtime::fault::{CutPoint, Fault, Faults};
use dl_runtime::{Clock, ManualClock, OsRandom};
use dl_server::Limits;
use dl_store::FaultStore;
use dl_tests::cluster::{Running, clock, context, in_memory};
use dl_tests::dice::Dice;
use dl_tests::wire::{chunk, new_id};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Requests a stop and waits until the server accepts no more connections.
async fn begin_to_stop(server: Running) -> JoinHandle<Result<()>> {
    let address = server.address();
    let stopping = dl_runtime::spawn(server.stop());
    while TcpStream::connect(address).await.is_ok() {
        clock().sleep(Duration::from_millis(5)).await;
    }
    stopping
}

/// Keeps S-11.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_server_answers_a_running_put() -> Result<()> {
    let faults = Faults::new(Arc::new(OsRandom));
    let held = Arc::new(ManualClock::new(UNIX_EPOCH));
    let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&held);
    let store = FaultStore::new(dl_store::memory(), time, faults.clone(), CutPoint::new());
    let context = context(Arc::new(store), Arc::new(Memory::new()));
    let (server, client) = Running::fresh(context).await?;
    let dataset = client.create("ds").await?;
    let object = chunk(new_id(), dataset, [(&b"a"[..], &b"bytes"[..])])?;
    faults.script("create", [Some(Fault::Delay(Duration::from_secs(1)))]);
    let put = dl_runtime::spawn(async move { client.put(dataset, &object).await });
    while !faults.is_used_up("create") {
        clock().sleep(Duration::from_millis(5)).await;
    }

    let stopping = begin_to_stop(server).await;
    ensure!(!put.is_finished(), "the put was answered before its chunk was stored");
    ensure!(!stopping.is_finished(), "the server has ended before the put");
    held.advance(Duration::from_secs(1));
    put.await?.context("the put that was in flight")?;
    stopping.await?
}

/// Keeps S-11.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_server_finishes_a_running_read() -> Result<()> {
    let (server, client) = Running::fresh(in_memory(Limits::default())).await?;
    let dataset = client.create("ds").await?;
    // More bytes than the client's buffer for a connection.
    let dice = Dice::new(1);
    let files: Vec<_> = (0..8).map(|_| dice.bytes(1_000_000)).collect();
    for (number, bytes) in files.iter().enumerate() {
        let file = (number.to_string(), bytes.as_slice());
        let object = chunk(new_id(), dataset, [(file.0.as_bytes(), file.1)])?;
        client.put(dataset, &object).await?;
    }
    let items = (0..files.len()).map(|number| pb::ReadItem {
        source: Some(pb::read_item::Source::Path(number.to_string().into_bytes().into())),
        ..pb::ReadItem::default()
    });
    let request = pb::ReadRequest {
        dataset: dataset.as_bytes().to_vec().into(),
        items: items.collect(),
        ..pb::ReadRequest::default()
    };
    let mut replies = client.stub().read(request).await?.into_inner();
    let mut reply = replies.message().await?;

    let stopping = begin_to_stop(server).await;
    ensure!(!stopping.is_finished(), "the server has ended before the read");
    let mut found = vec![Vec::<u8>::new(); files.len()];
    while let Some(pieces) = reply {
        for piece in pieces.pieces {
            ensure!(piece.status() == pb::ItemStatus::Ok, "{}", piece.problem);
            found.get_mut(piece.item as usize).context("another item")?.extend(&piece.data);
        }
        reply = replies.message().await.context("the read that was in flight")?;
    }
    ensure!(found == files, "other bytes");
    stopping.await?
}
