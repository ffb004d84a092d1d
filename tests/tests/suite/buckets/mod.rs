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

use anyhow::Result;
use dl_runtime::SeededRandom;
use dl_runtime::fault::Rates;
use dl_tests::proxy::{Instead, Proxy};

/// Runs the store contract on a server behind a proxy. `wrong` gives the seed and the kind of the
/// proxy's faults.
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
