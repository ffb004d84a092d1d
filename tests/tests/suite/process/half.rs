//! The death of a server in the middle of a deletion; the next server is read-only.

use std::fs;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_format::{DatasetName, name_prefix};
use dl_meta::redis_testing::{Server as Redis, eventually};
use dl_runtime::SeededRandom;
use dl_runtime::fault::Fault;
use dl_store::{Prefix, StoreExt};
use dl_tests::folder;
use dl_tests::program::{Process, Server, dl, run};
use dl_tests::proxy::Proxy;
use dl_tests::s3::{Kind, S3, settings};

/// The latency of the bucket for the object with the deleted name.
const SLOWLY: Duration = Duration::from_secs(6);

/// Keeps S-21, S-33 and S-01: with a kill after the name is written and before the metadata change.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_deletion_holds_on_read_only_servers() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let redis = Redis::start(&[]).await;
    let bucket = S3::start(Kind::S3sFs)?;
    let proxy = Proxy::start(bucket.address(), Arc::new(SeededRandom::new(1)))?;
    let url = bucket.fresh();
    let config = scene.path().join("dlserver.toml");
    fs::write(&config, "# nothing\n")?;
    let start = || {
        let config = config.to_str().unwrap_or_default();
        let flags = ["--config", config, "--meta", &redis.url(), "--store", &url];
        let data = scene.path().join("data");
        Server::start_among(&data, "127.0.0.1:0", &flags, &settings(proxy.address()))
    };
    let server = start()?;
    folder::write(scene.path(), "src/a", "a file")?;
    run(server.dlcmd()?.arg("put").arg(scene.path().join("src")).arg("dl://ds"))?.code(0)?;

    let store = dl_store::open_with(&url, &settings(bucket.address())).await?;
    let names = Prefix::new(name_prefix(&DatasetName::new("ds")?))?;
    let generations = async || anyhow::Ok(store.list_sorted(&names).await?.len());
    ensure!(generations().await? == 1, "a live dataset has one name object");
    proxy.faults().script("PUT", [Some(Fault::Delay(SLOWLY))]);
    let mut delete = server.dlcmd()?;
    delete.args(["delete-dataset", "dl://ds"]).stdin(Stdio::null());
    let mut delete = Process::start(delete.stdout(Stdio::null()).stderr(Stdio::null()))?;
    // The metadata already have the intent; from now on Redis is read-only.
    std::thread::sleep(SLOWLY / 2);
    redis.ask(&["CLIENT", "PAUSE", "120000", "WRITE"]).await;
    ensure!(generations().await? == 1, "the name was written too soon for this test");
    eventually("the name object marks the deletion", || async {
        generations().await.is_ok_and(|count| count == 2)
    })
    .await;
    server.kill()?;
    delete.kill()?;
    redis.ask(&["CLIENT", "UNPAUSE"]).await;

    fs::write(&config, "[live]\nread_only = true\n")?;
    let server = start()?;
    for arguments in [&["ls", "dl://ds"][..], &["cat", "dl://ds/a"], &["stat", "dl://ds/a"]] {
        let refused = dl(&server, arguments)?;
        ensure!(refused.code == 3, "the dataset returned: {refused:?}");
    }
    server.stop()?;
    fs::write(&config, "# nothing\n")?;
    let server = start()?;
    ensure!(dl(&server, ["datasets"])?.code(0)?.text().is_empty(), "the dataset still exists");
    dl(&server, ["ls", "dl://ds"])?.code(3)?;
    eventually("its objects are removed", || async {
        let left = store.list_sorted(&Prefix::ROOT).await.unwrap_or_default();
        !left.is_empty() && left.iter().all(|object| !object.key.as_str().ends_with(".c"))
    })
    .await;
    server.stop().context("stop")?;
    Ok(())
}
