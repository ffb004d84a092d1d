//! The contract of a store, over HTTP, to each S3 server.
//!
//! Must hold: the whole suite passes on a healthy network and on one that answers 500 and 503,
//! drops connections before and after the request was done, and cuts answers short.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use dl_runtime::SeededRandom;
use dl_runtime::fault::Rates;
use dl_store::conformance;
use dl_tests::proxy::{Instead, Proxy};
use dl_tests::s3::{Kind, S3, settings};

async fn holds_on(kind: Kind, wrong: Option<(u64, Instead)>) -> Result<()> {
    let server = S3::start(kind)?;
    let seed = wrong.map_or(0, |(seed, _)| seed);
    let proxy = Proxy::start(server.address(), Arc::new(SeededRandom::new(seed)))?;
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
    conformance::run(async || {
        dl_store::open_with(&server.fresh(), &settings).await.expect("open an empty store")
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn the_contract_holds_on_moto() -> Result<()> {
    holds_on(Kind::Moto, None).await
}

#[tokio::test]
async fn the_contract_holds_on_s3s_fs() -> Result<()> {
    holds_on(Kind::S3sFs, None).await
}

#[tokio::test]
async fn the_contract_holds_when_the_server_asks_to_slow_down() -> Result<()> {
    holds_on(Kind::Moto, Some((1, Instead::SlowDown))).await
}

#[tokio::test]
async fn the_contract_holds_when_the_server_fails() -> Result<()> {
    holds_on(Kind::S3sFs, Some((2, Instead::Internal))).await
}

#[tokio::test]
async fn the_contract_holds_when_connections_drop() -> Result<()> {
    holds_on(Kind::S3sFs, Some((3, Instead::Dropped))).await
}

#[tokio::test]
async fn the_contract_holds_when_answers_are_cut_short() -> Result<()> {
    holds_on(Kind::Moto, Some((4, Instead::Cut))).await
}
