//! A Redis that returns with an older save.
//!
//! Must hold: later puts return without a command, deleted datasets stay deleted, and decisions for
//! an administrator are reported.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::Server as Redis;
use dl_tests::program::{Ended, Server, purged, run};
use dl_tests::scene::Scene;
use dl_tests::shift::ClockShift;
use dl_tests::soon;

const HOUR: i64 = 3_600;

/// The start of the history, in seconds before now.
const AGO: i64 = -100 * HOUR;

struct World {
    scene: Scene,
    redis: Redis,
    past: ClockShift,
    server: Option<Server>,
}

impl World {
    async fn new() -> Result<Self> {
        let scene = Scene::filled(60, 20_000)?;
        let past = ClockShift::new(&scene.path(""), "past", AGO)?;
        let mut world = Self { redis: Redis::start(&[]).await, past, server: None, scene };
        world.start()?;
        Ok(world)
    }

    fn start(&mut self) -> Result<()> {
        if let Some(server) = self.server.take() {
            server.stop()?;
        }
        let meta = ["--meta", &self.redis.url()];
        self.server = Some(self.scene.start_among(&meta, &self.past.variables())?);
        Ok(())
    }

    fn dl(&self, arguments: &[&str]) -> Result<Ended> {
        let server = self.server.as_ref().context("the server runs")?;
        run(server.dlcmd()?.envs(self.past.variables()).args(arguments))
    }

    fn put(&self, dataset: &str) -> Result<()> {
        self.dl(&["put", &self.scene.src().display().to_string(), dataset])?.code(0)?;
        Ok(())
    }

    /// Kills Redis, restarts it with its save, and waits for the server's repair.
    async fn set_back(&self) -> Result<()> {
        self.redis.kill();
        self.redis.run().await;
        soon("listings work", || {
            std::thread::sleep(Duration::from_secs(2));
            Ok(self.dl(&["datasets"])?.code == 0)
        })
    }

    fn compare(&self, dataset: &str) -> Result<()> {
        let server = self.server.as_ref().context("the server runs")?;
        server.compare(dataset, &self.scene.src())
    }
}

/// Keeps S-01, S-02, S-21 and S-39.
#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_deleted_since_the_backup_stays_deleted() -> Result<()> {
    let mut world = World::new().await?;
    world.put("dl://ds")?;
    world.redis.ask(&["SAVE"]).await;
    world.put("dl://other")?;
    world.dl(&["delete-dataset", "dl://ds"])?.code(0)?;
    world.set_back().await?;
    let datasets = world.dl(&["datasets"])?.code(0)?.text();
    ensure!(datasets == "other\n", "{datasets}");
    world.dl(&["ls", "dl://ds"])?.code(3)?;
    world.compare("dl://other")?;
    // A start and a purge of everything complete old deletions.
    world.put("dl://ds")?;
    world.start()?;
    world.dl(&["purge", "--all", "--grace", "0s"])?.code(0)?;
    world.compare("dl://ds")
}

/// Keeps S-01 and S-02: the tombstone is gone, and only old metadata know of the deleted file. The
/// server reports the state and its remedy.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_from_before_a_purge_are_rebuilt() -> Result<()> {
    let world = World::new().await?;
    world.put("dl://ds")?;
    world.redis.ask(&["SAVE"]).await;
    for number in 0..30 {
        let path = format!("000/{number:06}.bin");
        fs::remove_file(world.scene.src().join(&path))?;
        world.dl(&["rm", &format!("dl://ds/{path}")])?.code(0)?;
    }
    let mut done = 0;
    for hours in 1..5 {
        world.past.set(AGO + hours * HOUR)?;
        let ended = world.dl(&["--json", "purge", "--grace", "0s", "dl://ds"])?.code(0)?;
        done += purged(&ended)?;
    }
    ensure!(done > 30, "only {done} objects were moved or removed");
    world.set_back().await?;
    let told = world.dl(&["recover", "--all"])?.code(4)?;
    ensure!(told.stderr.contains("are not in the chunk store"), "{told:?}");
    world.redis.ask(&["FLUSHALL"]).await;
    world.dl(&["recover", "--all"])?.code(0)?;
    world.compare("dl://ds")?;
    world.dl(&["verify", "--checksums", "dl://ds"])?.code(0)?;
    world.compare("dl://ds")
}
