//! The contract of a store over HTTP, on each S3 server.
//!
//! Must hold: the contract holds on a healthy network and on a faulty network with 500 and 503
//! answers, dropped connections and short answers.

use anyhow::Result;
use dl_tests::proxy::FaultyAnswer;
use dl_tests::s3::{Kind, S3, settings};

async fn check_contract(kind: Kind, fault: Option<(u64, FaultyAnswer)>) -> Result<()> {
    let server = S3::start(kind)?;
    super::check_contract(server.address(), || server.fresh(), settings, fault).await
}

#[tokio::test]
async fn the_contract_holds_on_moto() -> Result<()> {
    check_contract(Kind::Moto, None).await
}

#[tokio::test]
async fn the_contract_holds_on_s3s_fs() -> Result<()> {
    check_contract(Kind::S3sFs, None).await
}

#[tokio::test]
async fn the_contract_holds_when_the_server_asks_to_slow_down() -> Result<()> {
    check_contract(Kind::Moto, Some((1, FaultyAnswer::SlowDown))).await
}

#[tokio::test]
async fn the_contract_holds_when_the_server_fails() -> Result<()> {
    check_contract(Kind::S3sFs, Some((2, FaultyAnswer::Internal))).await
}

#[tokio::test]
async fn the_contract_holds_when_connections_drop() -> Result<()> {
    check_contract(Kind::S3sFs, Some((3, FaultyAnswer::Dropped))).await
}

#[tokio::test]
async fn the_contract_holds_when_answers_are_cut_short() -> Result<()> {
    check_contract(Kind::Moto, Some((4, FaultyAnswer::Cut))).await
}
