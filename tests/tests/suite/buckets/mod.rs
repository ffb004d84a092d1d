//! Chunks where several servers share them: real servers that speak S3 and Azure's protocol, with a
//! network between that goes wrong, and one directory.
//!
//! Must hold: the contract of a store holds on each server, whatever the network does, and a
//! server that is gone is told and not waited for.

mod azure;
mod conformance;
mod faults;
mod programs;
mod reach;
mod shared;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use dl_runtime::SeededRandom;
use dl_runtime::fault::Rates;
use dl_tests::proxy::{Instead, Proxy};

/// The contract holds on a server, reached by a healthy network or one that goes wrong: by which
/// seed, and how.
async fn holds_on(
    server: SocketAddr,
    fresh: impl Fn() -> String,
    settings: fn(SocketAddr) -> Vec<(String, String)>,
    wrong: Option<(u64, Instead)>,
) -> Result<()> {
    let seed = wrong.map_or(0, |(seed, _)| seed);
    let proxy = Proxy::start(server, Arc::new(SeededRandom::new(seed)))?;
    let rates = wrong.map(|(_, error)| Rates {
        before: 0.06,
        answer_lost: 0.06,
        delay: 0.06,
        longest_delay: Duration::from_millis(30),
        error,
    });
    for method in ["GET", "PUT", "DELETE"] {
        proxy.faults().set_rates(method, rates);
    }
    let settings = settings(proxy.address());
    dl_store::conformance::run(async || {
        dl_store::open_with(&fresh(), &settings).await.expect("open an empty store")
    })
    .await;
    Ok(())
}
