//! Very many tiny files with metadata in a Redis Cluster: all operations of dlcmd, days apart, so
//! that purged data are old enough to be moved and removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::Cluster;
use dl_runtime::Deadline;
use dl_tests::cluster::clock;
use dl_tests::program::{Server, peak_of, purged, run};
use dl_tests::shift::ClockShift;
use dl_tests::{rounds, tell};

use super::memory::{check, check_server};

/// A day, in seconds.
const DAY: i64 = 86_400;

/// Files per class of ImageNet.
const CLASS: u32 = 1_300;

/// The time limit for a request about a folder, regardless of deletes below.
const PROMPT: Duration = Duration::from_secs(10);

/// The time limit for the removal of a deleted dataset's keys from Redis.
const EMPTIED: Duration = Duration::from_secs(60);

const PURGE: [&str; 5] = ["--json", "purge", "--grace", "0s", "dl://tiny"];

/// A server whose clock is days behind.
struct Past {
    server: Server,
    day: i64,
    shift: ClockShift,
}

impl Past {
    fn start(folder: &Path, cluster: &Cluster, day: i64) -> Result<Self> {
        let shift = ClockShift::new(folder, "past", day * DAY)?;
        let (data, meta) = (folder.join("data"), ["--meta", &cluster.url()]);
        let server = Server::start_among(&data, "127.0.0.1:0", &meta, &shift.variables())?;
        Ok(Self { server, day, shift })
    }

    fn pass_a_day(&mut self) -> Result<()> {
        self.day += 1;
        self.shift.set(self.day * DAY)
    }

    /// Runs a command and checks the peak memory of both programs.
    fn run(&mut self, arguments: &[&str]) -> Result<()> {
        let (clock, what) = (clock(), arguments.join(" "));
        let began = clock.monotonic();
        let mut command = self.server.dlcmd()?;
        check(&what, peak_of(command.envs(self.shift.variables()).args(arguments))?)?;
        tell(format_args!("{what}: {:?}", clock.monotonic() - began));
        check_server("server", &mut self.server)
    }

    /// Deletes a folder, and checks that its parent is listed within the time limit.
    fn remove(&mut self, folder: &str) -> Result<()> {
        self.run(&["rm", "-r", folder])?;
        let clock = clock();
        for (arguments, code) in [(["ls", "dl://tiny"], 0), (["stat", folder], 3)] {
            let (began, what) = (clock.monotonic(), arguments.join(" "));
            let mut command = self.server.dlcmd()?;
            run(command.envs(self.shift.variables()).args(arguments))?.code(code)?;
            let took = clock.monotonic() - began;
            tell(format_args!("{what}, after it: {took:?}"));
            ensure!(took < PROMPT, "{what} took {took:?}");
        }
        check_server("server", &mut self.server)
    }

    /// Runs a purge and checks that objects were removed.
    fn purge(&mut self) -> Result<()> {
        let clock = clock();
        let began = clock.monotonic();
        let mut command = self.server.dlcmd()?;
        let ended = run(command.envs(self.shift.variables()).args(PURGE))?.code(0)?;
        tell(format_args!("{}: {:?}", ended.text().trim(), clock.monotonic() - began));
        ensure!(purged(&ended)? > 0, "nothing to do: {ended:?}");
        check_server("server", &mut self.server)
    }
}

/// The path of a file, with a name as in ImageNet.
fn file(source: &Path, number: u32) -> PathBuf {
    let class = format!("n{:08}", 1_440_764 + number / CLASS * 17);
    let name = format!("{class}_{}.JPEG", number % CLASS);
    source.join("train").join(class).join(name)
}

/// Bytes used by all primaries.
async fn used(cluster: &Cluster) -> u64 {
    let mut used = 0;
    for server in cluster.servers() {
        used += server.used_memory().await;
    }
    used
}

/// Keeps S-10 and S-27: with thirty thousand files (torture: 1.3 million).
#[tokio::test(flavor = "multi_thread")]
async fn heavy_many_tiny_files_in_a_redis_cluster_take_256_mib() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let source = scene.path().join("src");
    let count = rounds(30_000, 1_300_000);
    for number in 0..count {
        let file = file(&source, number);
        if number % CLASS == 0 {
            fs::create_dir_all(file.parent().context("a file has a folder")?)?;
        }
        fs::write(file, number.to_string())?;
    }
    let cluster = Cluster::start(3, 0).await;
    let mut past = Past::start(scene.path(), &cluster, -4)?;
    let empty = used(&cluster).await;
    let from = source.display().to_string();
    past.run(&["put", &from, "dl://tiny"])?;
    let per_file = (used(&cluster).await - empty) as f64 / f64::from(count);
    tell(format_args!("Redis: {per_file:.0} bytes a file"));
    ensure!(per_file < 400.0, "{per_file:.0} bytes a file");
    past.run(&["ls", "-R", "dl://tiny"])?;
    past.run(&["datasets"])?;
    cluster.flush().await;
    past.run(&["recover", "--all"])?;
    // Overwrites half of each chunk.
    for number in (0..count).step_by(2) {
        fs::write(file(&source, number), format!("{number} again"))?;
    }
    past.run(&["put", &from, "dl://tiny"])?;
    past.remove("dl://tiny/train/n01440764")?;
    past.pass_a_day()?;
    past.purge()?;
    past.run(&["verify", "--checksums", "dl://tiny"])?;
    past.remove("dl://tiny/train")?;
    past.pass_a_day()?;
    past.purge()?;
    past.run(&["put", &from, "dl://tiny"])?;
    past.run(&["delete-dataset", "dl://tiny"])?;
    let deadline = Deadline::after(&*clock(), EMPTIED);
    loop {
        let mut keys = 0;
        for server in cluster.servers() {
            let count = ["EVAL", "return tostring(#redis.call('KEYS', 'dl:{*}:*:*:*'))", "0"];
            keys += server.text(&count).await.trim().parse::<u64>()?;
        }
        if keys == 0 {
            break;
        }
        ensure!(
            !deadline.remaining(&*clock()).is_zero(),
            "Redis keeps {keys} keys of the deleted dataset"
        );
        clock().sleep(Duration::from_millis(100)).await;
    }
    let left = used(&cluster).await.saturating_sub(empty);
    tell(format_args!("Redis, after its end: {} KiB", left >> 10));
    past.server.stop()?;
    Ok(())
}
