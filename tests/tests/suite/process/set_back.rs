//! A Redis that returns with an older save.
//!
//! Must hold: later puts return without a command, deleted datasets stay deleted, and decisions for
//! an administrator are reported.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::Server as Redis;
use dl_runtime::Deadline;
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Ended, Server, purged, run};
use dl_tests::shift::ClockShift;

/// The time limit for the servers' repair.
const PATIENCE: Duration = Duration::from_secs(60);

const HOUR: i64 = 3_600;

/// The start of the history, in seconds before now.
const AGO: i64 = -100 * HOUR;

struct Scene {
    folder: tempfile::TempDir,
    redis: Redis,
    past: ClockShift,
    server: Option<Server>,
}

impl Scene {
    async fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let past = ClockShift::new(folder.path(), "past", AGO)?;
        let mut scene = Self { redis: Redis::start(&[]).await, past, server: None, folder };
        folder::fill(&scene.source(), 60, 20_000, &Dice::new(1))?;
        scene.start()?;
        Ok(scene)
    }

    fn source(&self) -> PathBuf {
        self.folder.path().join("src")
    }

    fn start(&mut self) -> Result<()> {
        if let Some(server) = self.server.take() {
            server.stop()?;
        }
        let meta = ["--meta", &self.redis.url()];
        let data = self.folder.path().join("data");
        let server = Server::start_among(&data, "127.0.0.1:0", &meta, &self.past.variables())?;
        self.server = Some(server);
        Ok(())
    }

    fn dl(&self, arguments: &[&str]) -> Result<Ended> {
        let server = self.server.as_ref().context("the server runs")?;
        run(server.dlcmd()?.envs(self.past.variables()).args(arguments))
    }

    fn put(&self, dataset: &str) -> Result<()> {
        self.dl(&["put", &self.source().display().to_string(), dataset])?.code(0)?;
        Ok(())
    }

    /// Kills Redis, restarts it with its save, and waits for the server's repair.
    async fn set_back(&self) -> Result<()> {
        self.redis.kill();
        self.redis.run().await;
        let deadline = Deadline::after(&*clock(), PATIENCE);
        loop {
            std::thread::sleep(Duration::from_secs(2));
            let listed = self.dl(&["datasets"])?;
            if listed.code == 0 {
                return Ok(());
            }
            ensure!(!deadline.remaining(&*clock()).is_zero(), "listings still fail: {listed:?}");
        }
    }

    fn compare(&self, dataset: &str) -> Result<()> {
        let got = self.folder.path().join("got");
        self.dl(&["get", dataset, &got.display().to_string()])?.code(0)?;
        folder::compare(&self.source(), &got)?;
        fs::remove_dir_all(got).context("remove what was got")
    }
}

/// Keeps S-01, S-02, S-21 and S-39.
#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_deleted_since_the_backup_stays_deleted() -> Result<()> {
    let mut scene = Scene::new().await?;
    scene.put("dl://ds")?;
    scene.redis.ask(&["SAVE"]).await;
    scene.put("dl://other")?;
    scene.dl(&["delete-dataset", "dl://ds"])?.code(0)?;
    scene.set_back().await?;
    let datasets = scene.dl(&["datasets"])?.code(0)?.text();
    ensure!(datasets == "other\n", "{datasets}");
    scene.dl(&["ls", "dl://ds"])?.code(3)?;
    scene.compare("dl://other")?;
    // A start and a purge of everything complete old deletions.
    scene.put("dl://ds")?;
    scene.start()?;
    scene.dl(&["purge", "--all", "--grace", "0s"])?.code(0)?;
    scene.compare("dl://ds")
}

/// Keeps S-01 and S-02: the tombstone is gone, and only old metadata know of the deleted file. The
/// server reports the state and its remedy.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_from_before_a_purge_are_rebuilt() -> Result<()> {
    let scene = Scene::new().await?;
    scene.put("dl://ds")?;
    scene.redis.ask(&["SAVE"]).await;
    for number in 0..30 {
        let path = format!("000/{number:06}.bin");
        fs::remove_file(scene.source().join(&path))?;
        scene.dl(&["rm", &format!("dl://ds/{path}")])?.code(0)?;
    }
    let mut done = 0;
    for hours in 1..5 {
        scene.past.set(AGO + hours * HOUR)?;
        let ended = scene.dl(&["--json", "purge", "--grace", "0s", "dl://ds"])?.code(0)?;
        done += purged(&ended)?;
    }
    ensure!(done > 30, "only {done} objects were moved or removed");
    scene.set_back().await?;
    let told = scene.dl(&["recover", "--all"])?.code(4)?;
    ensure!(told.stderr.contains("are not in the chunk store"), "{told:?}");
    scene.redis.ask(&["FLUSHALL"]).await;
    scene.dl(&["recover", "--all"])?.code(0)?;
    scene.compare("dl://ds")?;
    scene.dl(&["verify", "--checksums", "dl://ds"])?.code(0)?;
    scene.compare("dl://ds")
}

/// Keeps S-02 and S-14: a part of a large file is lost, then all metadata about it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_part_does_not_stop_other_repairs() -> Result<()> {
    let scene = Scene::new().await?;
    scene.put("dl://before")?;
    scene.redis.ask(&["SAVE"]).await;
    let large = scene.folder.path().join("large");
    fs::write(&large, Dice::new(2).bytes(10_000_000))?;
    scene.dl(&["put", &large.display().to_string(), "dl://large"])?.code(0)?;
    scene.put("dl://since")?;
    let chunks = scene.folder.path().join("data/chunks");
    let objects = folder::read(&chunks)?;
    let part = objects.iter().max_by_key(|(_, (bytes, ..))| bytes.len()).context("objects")?.0;
    fs::remove_file(chunks.join(OsStr::from_bytes(part)))?;
    scene.set_back().await?;
    for dataset in ["dl://before", "dl://since"] {
        scene.compare(dataset)?;
    }
    let told = scene.dl(&["verify", "dl://large"])?.code(4)?.text();
    ensure!(told.contains("large is lost: its part"), "{told}");
    ensure!(scene.dl(&["cat", "dl://large/large"])?.code != 0, "a file without a part was read");
    Ok(())
}

/// Keeps S-02: a loss without traces, known only to its author.
#[tokio::test(flavor = "multi_thread")]
async fn unnoticed_losses_return_within_the_requested_time() -> Result<()> {
    let scene = Scene::new().await?;
    scene.put("dl://ds")?;
    scene.past.set(AGO + 5 * HOUR)?;
    let late = scene.folder.path().join("late");
    folder::fill(&late, 30, 20_000, &Dice::new(3))?;
    scene.dl(&["put", &late.display().to_string(), "dl://ds/late"])?.code(0)?;
    let listed = |told: &str| -> Result<usize> {
        let listed = scene.dl(&["ls", "-R", "dl://ds"])?.code(0)?.text();
        Ok(listed.lines().filter(|path| path.contains(told)).count())
    };
    ensure!(listed(".bin")? == 90 && listed("late/")? >= 30, "files are missing");
    let lose = "for _, key in ipairs(redis.call('KEYS', 'dl:*:d:*')) do redis.call('DEL', key) end";
    scene.redis.ask(&["EVAL", lose, "0"]).await;
    ensure!(listed(".bin")? == 0, "nothing is lost");
    let told = scene.dl(&["verify", "dl://ds"])?.code(4)?;
    ensure!(told.text().contains("dlcmd recover"), "{told:?}");
    scene.dl(&["recover", "--all", "--since", "1h"])?.code(0)?;
    ensure!(listed(".bin")? == 30 && listed("late/")? >= 30, "the last hour and no more");
    scene.dl(&["recover", "dl://ds"])?.code(0)?;
    ensure!(listed(".bin")? == 90, "all of it");
    scene.dl(&["verify", "--checksums", "dl://ds"])?.code(0)?;
    Ok(())
}
