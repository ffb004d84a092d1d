//! The contract of a store over HTTP, on each S3 server and on Azurite.
//!
//! Must hold: the contract holds on a healthy network and on a faulty network with 500 and 503
//! answers, dropped connections and short answers.

use anyhow::Result;
use dl_tests::azure::{self, Azurite};
use dl_tests::proxy::FaultyAnswer;
use dl_tests::s3::{self, Kind, S3};

async fn check_contract(kind: Kind, fault: Option<FaultyAnswer>) -> Result<()> {
    let server = S3::start(kind)?;
    super::check_contract(server.address(), || server.fresh(), s3::settings, fault).await
}

#[tokio::test]
async fn the_contract_holds_on_moto() -> Result<()> {
    for fault in [None, Some(FaultyAnswer::SlowDown), Some(FaultyAnswer::Cut)] {
        check_contract(Kind::Moto, fault).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_contract_holds_on_s3s_fs() -> Result<()> {
    for fault in [None, Some(FaultyAnswer::Internal), Some(FaultyAnswer::Dropped)] {
        check_contract(Kind::S3sFs, fault).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_contract_holds_on_azurite() -> Result<()> {
    let server = Azurite::start()?;
    let faults = [FaultyAnswer::SlowDown, FaultyAnswer::Dropped, FaultyAnswer::Cut];
    for fault in [None].into_iter().chain(faults.map(Some)) {
        let fresh = || server.fresh();
        super::check_contract(server.address(), fresh, azure::settings, fault).await?;
    }
    Ok(())
}
