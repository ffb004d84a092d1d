//! Very many tiny files with metadata in a Redis Cluster: all operations of dlcmd, days apart, so
//! that purged data are old enough to be moved and removed.

use std::time::Duration;

use anyhow::{Result, ensure};
use dl_meta::redis_testing::{Cluster, eventually};
use dl_tests::cluster::clock;
use dl_tests::program::{Server, purged, run};
use dl_tests::scene::Scene;
use dl_tests::shift::ClockShift;
use dl_tests::{folder, rounds, tell};

use super::memory::check;

/// A day, in seconds.
const DAY: i64 = 86_400;

/// The time limit for a request about a folder, regardless of deletes below.
const PROMPT: Duration = Duration::from_secs(10);

/// A server whose clock is days behind.
struct Past {
    server: Server,
    shift: ClockShift,
}

impl Past {
    /// Runs a command and checks the peak memory of both programs.
    fn run(&self, arguments: &[&str]) -> Result<()> {
        let (clock, what) = (clock(), arguments.join(" "));
        let began = clock.monotonic();
        let mut command = self.server.dlcmd()?;
        check(&what, command.envs(self.shift.variables()).args(arguments))?;
        tell(format_args!("{what}: {:?}", clock.monotonic() - began));
        self.server.check_memory("server")
    }

    /// Deletes a folder, checks that its parent is listed within the time limit, and purges a day
    /// later.
    fn remove_and_purge(&self, folder: &str, day: i64) -> Result<()> {
        self.run(&["rm", "-r", folder])?;
        let clock = clock();
        for (arguments, code) in [(["ls", "dl://tiny"], 0), (["stat", folder], 3)] {
            let began = clock.monotonic();
            let mut command = self.server.dlcmd()?;
            run(command.envs(self.shift.variables()).args(arguments))?.code(code)?;
            let took = clock.monotonic() - began;
            ensure!(took < PROMPT, "{arguments:?} took {took:?}");
        }
        self.shift.set(day * DAY)?;
        let mut purge = self.server.dlcmd()?;
        purge.envs(self.shift.variables()).args(["--json", "purge", "--grace", "0s", "dl://tiny"]);
        let ended = run(&mut purge)?.code(0)?;
        ensure!(purged(&ended)? > 0, "nothing to do: {ended:?}");
        self.server.check_memory("server")
    }
}

/// Bytes used by all primaries.
async fn used(cluster: &Cluster) -> u64 {
    let used = cluster.servers().iter().map(|server| server.used_memory());
    futures::future::join_all(used).await.into_iter().sum()
}

/// Keeps S-10 and S-27: with thirty thousand files (torture: 1.3 million).
#[tokio::test(flavor = "multi_thread")]
async fn heavy_many_tiny_files_in_a_redis_cluster_take_256_mib() -> Result<()> {
    let scene = Scene::new()?;
    let (source, count) = (scene.path("train"), rounds(30_000, 1_300_000));
    folder::fill_with(&source, count, |number| number.to_string().into_bytes())?;
    let cluster = Cluster::start(3, 0).await;
    let shift = ClockShift::new(&scene.path(""), "past", -4 * DAY)?;
    let server = scene.start_among(&["--meta", &cluster.url()], &shift.variables())?;
    let past = Past { server, shift };
    let empty = used(&cluster).await;
    let from = source.display().to_string();
    past.run(&["put", &from, "dl://tiny/train"])?;
    let per_file = (used(&cluster).await - empty) as f64 / count as f64;
    tell(format_args!("Redis: {per_file:.0} bytes a file"));
    ensure!(per_file < 400.0, "{per_file:.0} bytes a file");
    past.run(&["ls", "-R", "dl://tiny"])?;
    past.run(&["datasets"])?;
    cluster.flush().await;
    past.run(&["recover", "--all"])?;
    // Overwrites half of each chunk.
    for number in (0..count).step_by(2) {
        let path = format!("{:04}/{number:07}", number / 1_000);
        folder::write(&source, path, format!("{number} again"))?;
    }
    past.run(&["put", &from, "dl://tiny/train"])?;
    past.remove_and_purge("dl://tiny/train/0001", -3)?;
    past.run(&["verify", "--checksums", "dl://tiny"])?;
    past.remove_and_purge("dl://tiny/train", -2)?;
    past.run(&["put", &from, "dl://tiny/train"])?;
    past.run(&["delete-dataset", "dl://tiny"])?;
    eventually("Redis keeps no key of the deleted dataset", || async {
        let count = ["EVAL", "return tostring(#redis.call('KEYS', 'dl:{*}:*:*:*'))", "0"];
        let keys = cluster.servers().iter().map(|server| server.text(&count));
        futures::future::join_all(keys).await.iter().all(|count| count == "0")
    })
    .await;
    Ok(())
}
