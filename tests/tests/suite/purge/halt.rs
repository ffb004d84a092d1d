//! A switch to read-only servers in the middle of a purge.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::{Memory, MetaStore, Stop};
use dl_runtime::fault::{CutPoint, Fault, Faults};
use dl_runtime::{Clock, SeededRandom};
use dl_server::{Followed, Live, ServerContext, Settings, Source, prepare};
use dl_store::{FaultStore, Kind, Store};
use dl_tests::cluster::{Running, clock, context};
use dl_tests::wire::Wire;

use super::scene::{GRACE, NAME, check, history, new_clock, purge_all, stored};

async fn soon(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    for _ in 0..500 {
        if is_so() {
            return Ok(());
        }
        clock().sleep(Duration::from_millis(20)).await;
    }
    anyhow::bail!("{what}: not in 10 s")
}

/// Keeps S-33, S-27 and S-76.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_stops_on_read_only_servers_and_can_be_repeated() -> Result<()> {
    let (scene, time) = (tempfile::tempdir()?, new_clock());
    let config = scene.path().join("dlserver.toml");
    std::fs::write(&config, "# nothing yet\n")?;
    let source = Source::parse(config.to_str().context("a temporary file has a name")?);
    let source = source.map_err(anyhow::Error::msg)?;
    let live = |text: &str| dl_server::config::live(text).map_err(|error| error.to_string());
    let followed: Followed<Live> = Followed::open("it", source, clock(), live).await?;
    let followed = Arc::new(followed);
    let faults: Faults<Kind> = Faults::new(Arc::new(SeededRandom::new(1)));
    let inner = dl_store::memory();
    let slow = Arc::new(dl_runtime::ManualClock::new(std::time::UNIX_EPOCH));
    let delays: Arc<dyn Clock> = Arc::<dl_runtime::ManualClock>::clone(&slow);
    let store = FaultStore::new(Arc::clone(&inner), delays, faults.clone(), CutPoint::new());
    let meta: Arc<dyn MetaStore> = Arc::new(Memory::new());
    let wall: Arc<dyn Clock> = Arc::<dl_runtime::ManualClock>::clone(&time);
    let settings = Settings::of(Some(&*followed));
    let context =
        ServerContext { clock: wall, settings, ..context(Arc::new(store), Arc::clone(&meta)) };
    prepare(&context, Stop::Fresh).await?;
    let server = Running::start(context).await?;
    let client = Wire::connect(server.address()).await?;
    let following = Arc::clone(&followed);
    let following = dl_runtime::spawn(async move { following.follow().await });
    let writer = history(&client, &time).await?;
    let before = stored(&inner, writer.dataset).await?;

    // The first write is delayed until after the switch, with further work left.
    faults.script("create", [Some(Fault::Delay(Duration::from_secs(3)))]);
    let purging = client.clone();
    let purge = dl_runtime::spawn(async move { purging.purge(NAME, Duration::ZERO).await });
    soon("the purge writes", || faults.is_used_up("create")).await?;
    std::fs::write(&config, "[live]\nread_only = true\n")?;
    soon("read-only", || followed.now().read_only).await?;
    slow.advance(Duration::from_secs(3));
    let stopped = tokio::time::timeout(Duration::from_secs(10), purge)
        .await
        .context("the purge does not stop")?;
    let stopped = stopped?.err().context("the purge ended without an error")?;
    ensure!(stopped.message().contains("live.read_only"), "{stopped}");
    let after = stored(&inner, writer.dataset).await?;
    ensure!(after[2] * 2 > before[2], "{after:?} of {before:?} are left");
    ensure!(client.files(writer.dataset).await? == writer.files, "other files");

    std::fs::write(&config, "# as before\n")?;
    soon("read-write", || !followed.now().read_only).await?;
    client.purge(NAME, GRACE).await?;
    purge_all(&client, &time).await?;
    let store: Arc<dyn Store> = inner;
    check(&store, &client, &time, &writer).await?;
    following.abort();
    Ok(())
}
