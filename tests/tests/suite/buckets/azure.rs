//! Azure's protocol: the contract of a store, and the programs over a container.
//!
//! Must hold: the contract holds on a healthy network and with lost requests and answers.
//! Acknowledged data are in the container, and nowhere else.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::SeededRandom;
use dl_runtime::fault::Rates;
use dl_tests::azure::{Azurite, settings};
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Server, dl, server_command};
use dl_tests::proxy::{FaultyAnswer, Proxy};

use super::lose_answers_of_creates;

async fn check_contract(fault: Option<(u64, FaultyAnswer)>) -> Result<()> {
    let server = Azurite::start()?;
    super::check_contract(server.address(), || server.fresh(), settings, fault).await
}

#[tokio::test]
async fn the_contract_holds_on_azurite() -> Result<()> {
    check_contract(None).await
}

#[tokio::test]
async fn the_contract_holds_on_an_azurite_with_503_answers() -> Result<()> {
    check_contract(Some((1, FaultyAnswer::SlowDown))).await
}

#[tokio::test]
async fn the_contract_holds_on_azurite_when_connections_drop() -> Result<()> {
    check_contract(Some((2, FaultyAnswer::Dropped))).await
}

#[tokio::test]
async fn the_contract_holds_on_azurite_with_short_answers() -> Result<()> {
    check_contract(Some((3, FaultyAnswer::Cut))).await
}

#[tokio::test]
async fn an_azurite_create_with_a_lost_answer_finds_its_object() -> Result<()> {
    let server = Azurite::start()?;
    lose_answers_of_creates(server.address(), &server.fresh(), settings).await
}

/// Keeps S-01, S-02, S-06 and S-29.
#[test]
fn a_dataset_on_azurite_survives_a_bad_network() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    folder::fill(&source, 400, 100_000, &Dice::new(11))?;
    let azurite = Azurite::start()?;
    let proxy = Proxy::start(azurite.address(), Arc::new(SeededRandom::new(11)))?;
    let (url, variables) = (azurite.fresh(), settings(proxy.address()));
    for method in ["GET", "PUT", "DELETE"] {
        let rates = Rates {
            before: 0.03,
            answer_lost: 0.06,
            delay: 0.06,
            longest_delay: Duration::from_millis(50),
            error: FaultyAnswer::Dropped,
        };
        proxy.faults().set_rates(method, Some(rates));
    }
    let start = || Server::start_among(&data, "127.0.0.1:0", &["--store", &url], &variables);
    let server = start()?;
    let put = |server: &Server| {
        let mut put = server.dlcmd()?;
        dl_tests::program::run(put.arg("put").arg(&source).arg("dl://ds"))?.code(0)
    };
    put(&server)?;
    dl(&server, ["rm", "-r", "dl://ds/001"])?.code(0)?;
    std::fs::remove_dir_all(source.join("001"))?;
    dl(&server, ["verify", "--checksums", "dl://ds"])?.code(0)?;
    let get = |server: &Server, name: &str| {
        let got = scene.path().join(name);
        let got_text = got.to_str().context("a temporary folder has a name")?;
        dl(server, ["get", "dl://ds", got_text])?.code(0)?;
        folder::compare(&source, &got)
    };
    get(&server, "put")?;
    server.kill()?;
    std::fs::remove_dir_all(data.join("meta"))?;
    let server = start()?;
    dl(&server, ["recover", "--all"])?.code(0)?;
    get(&server, "recovered")?;
    dl(&server, ["verify", "--checksums", "dl://ds"])?.code(0)?;
    dl(&server, ["delete-dataset", "dl://ds"])?.code(0)?;
    ensure!(dl(&server, ["datasets"])?.code(0)?.text().is_empty(), "the deleted dataset is listed");
    server.stop()?;
    Ok(())
}

/// Keeps S-12.
#[test]
fn a_missing_container_and_a_wrong_key_are_reported() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let azurite = Azurite::start()?;
    let refused = |url: &str, key: Option<&str>, told: &str| -> Result<()> {
        let mut server = server_command()?;
        server.envs(settings(azurite.address()));
        server.envs(key.map(|key| ("AZURE_STORAGE_ACCOUNT_KEY", key)));
        server.args(["--listen", "127.0.0.1:0", "--store", url, "--data"]);
        let refused = dl_tests::program::run(server.arg(scene.path()))?.code(1)?.stderr;
        ensure!(refused.contains(told), "{refused}");
        ensure!(key.is_none_or(|key| !refused.contains(key)), "the error shows the key: {refused}");
        Ok(())
    };
    refused("az://nowhere", None, "there is no bucket nowhere at http://127.0.0.1:")?;
    let wrong = "YW5vdGhlciBrZXk=";
    refused(&azurite.fresh(), Some(wrong), "correct AZURE_STORAGE_ACCOUNT_NAME and")
}
