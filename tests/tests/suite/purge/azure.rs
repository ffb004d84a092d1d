//! A purge of old data by a real dlserver with chunks in Azure's protocol.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use dl_meta::Stop;
use dl_runtime::ManualClock;
use dl_tests::azure::{Azurite, settings};
use dl_tests::cluster::clock;
use dl_tests::program::{Server, dl};
use dl_tests::wire::Wire;

use super::scene::{HOUR, history, serve, stored};

/// Keeps S-27, S-02 and S-29.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_on_azurite_gives_space_back_and_changes_no_file() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let data = scene.path().join("data");
    let azurite = Azurite::start()?;
    let (url, variables) = (azurite.fresh(), settings(azurite.address()));
    let store = dl_store::open_with(&url, &variables).await?;
    let address = format!("embedded:{}", data.join("meta").display());
    let (meta, _) = dl_meta::open(&address, clock()).await?;
    let then = clock().now().checked_sub(48 * HOUR).context("the clock is set")?;
    let time = Arc::new(ManualClock::new(then));
    let (server, client) = serve(&store, &meta, &time, Stop::Fresh).await?;
    let writer = history(&client, &time).await?;
    drop(client);
    server.stop().await?;
    meta.close().await?;
    drop(meta);
    let [chunks, _, bytes] = stored(&store, writer.dataset).await?;

    let start = || Server::start_among(&data, "127.0.0.1:0", &["--store", &url], &variables);
    let compare = async |server: &Server, when: &'static str| {
        let client = Wire::connect(server.address().parse()?).await?;
        ensure!(client.files(writer.dataset).await? == writer.files, "other files {when}");
        anyhow::Ok(())
    };
    let server = start()?;
    compare(&server, "before").await?;
    for _ in 0..3 {
        dl(&server, ["purge", "--grace", "0s", "dl://ds"])?.code(0)?;
        compare(&server, "after a purge").await?;
    }
    let [left_chunks, _, left] = stored(&store, writer.dataset).await?;
    ensure!(left_chunks < chunks && left < bytes, "{left} of {bytes} bytes are left");
    let told = dl(&server, ["verify", "--checksums", "dl://ds"])?.code(4)?.text();
    // The finding of the history's file and folder.
    ensure!(told.contains(" 1 finding") && told.contains("a file and a folder"), "{told}");
    server.kill()?;
    std::fs::remove_dir_all(data.join("meta"))?;
    let server = start()?;
    dl(&server, ["recover", "--all"])?.code(0)?;
    compare(&server, "after a recovery").await?;
    server.stop()?;
    Ok(())
}
