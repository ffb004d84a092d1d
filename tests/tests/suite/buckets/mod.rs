//! Chunk stores shared by several servers: real S3 and Azure servers behind a faulty network, and a
//! shared directory.
//!
//! Must hold: the store contract holds on each server despite network faults, and a lost server is
//! reported without a hang.

mod azure;
mod conformance;
mod faults;
mod programs;
mod reach;
mod shared;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::SeededRandom;
use dl_runtime::fault::{Fault, Rates};
use dl_store::{Key, Kind, StoreExt};
use dl_tests::proxy::{FaultyAnswer, Proxy};

/// The settings of a store for a server or proxy at an address.
type Settings = fn(SocketAddr) -> Vec<(String, String)>;

/// Runs the store contract on a server behind a proxy with these faults.
async fn check_contract(
    server: SocketAddr,
    fresh: impl Fn() -> String,
    settings: Settings,
    fault: Option<FaultyAnswer>,
) -> Result<()> {
    let proxy = Proxy::start(server, Arc::new(SeededRandom::new(1)))?;
    proxy.set_rates(fault.map(|error| Rates {
        before: 0.06,
        answer_lost: 0.06,
        delay: 0.06,
        longest_delay: Duration::from_millis(30),
        error,
    }));
    let settings = settings(proxy.address());
    dl_store::conformance::run(async || {
        dl_store::open_with(&fresh(), &settings).await.expect("open an empty store")
    })
    .await;
    Ok(())
}

/// Loses the answers of creates: a repeated create must find its own object, and no other object.
async fn lose_answers_of_creates(server: SocketAddr, url: &str, settings: Settings) -> Result<()> {
    let proxy = Proxy::start(server, Arc::new(SeededRandom::new(0)))?;
    let store = dl_store::open_with(url, &settings(proxy.address())).await?;
    for instead in
        [FaultyAnswer::Internal, FaultyAnswer::SlowDown, FaultyAnswer::Dropped, FaultyAnswer::Cut]
    {
        let key = Key::new(format!("x/{instead:?}"))?;
        let lost = Some(Fault::AnswerLost(instead));
        proxy.faults().script("PUT", [lost; 2]);
        store.create(&key, "ours".into()).await?;
        for (bytes, answers) in [("ours", 0), ("theirs", 1)] {
            proxy.faults().script("PUT", std::iter::repeat_n(lost, answers));
            let refused = store.create(&key, bytes.into()).await.err().context("two objects")?;
            ensure!(refused.kind == Kind::Exists, "{url}, {instead:?}, {bytes}: {refused:?}");
        }
        ensure!(store.read_all(&key).await? == "ours", "{url}, {instead:?}");
    }
    Ok(())
}
