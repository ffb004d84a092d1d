//! A lagging replica takes over from a dead primary: acknowledged writes are missing.
//!
//! Must hold: the test checks that the replica lags at the failover. From then on each answer is
//! complete or a refusal.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::{Cluster, Server as Redis, eventually};
use dl_runtime::Deadline;
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Server, run};
use dl_tests::rounds;
use dl_tests::wire::Wire;
use tonic::Code;

use super::PATIENCE;

const PRIMARIES: usize = 3;

/// Enough puts to reach every primary.
const LATE_PUTS: u64 = 20;

struct Scene {
    folder: tempfile::TempDir,
    redis: Cluster,
}

impl Scene {
    async fn new() -> Result<Self> {
        let scene =
            Self { folder: tempfile::tempdir()?, redis: Cluster::start(PRIMARIES, 1).await };
        folder::fill(&scene.source(), 200, 20_000, &Dice::new(1))?;
        Ok(scene)
    }

    fn source(&self) -> PathBuf {
        self.folder.path().join("src")
    }

    fn serve(&self) -> Result<Server> {
        let meta = ["--meta", &self.redis.url()];
        Server::start_with(&self.folder.path().join("data"), "127.0.0.1:0", &meta)
    }

    /// Puts files, cuts the replication of a primary, puts more files, and kills the primary: its
    /// replica lacks acknowledged writes.
    async fn lose(&self, server: &Server, number: usize) -> Result<()> {
        let put = |source: &Path| run(server.dlcmd()?.arg("put").arg(source).arg("dl://ds"));
        put(&self.source())?.code(0)?;
        let nodes = self.redis.servers();
        let primary = nodes.get(number).context("a primary")?;
        let replica = nodes.get(PRIMARIES + number).context("its replica")?;
        // The replica can't log in again after its connection ends, but stays a member of the
        // cluster.
        replica.ask(&["CONFIG", "SET", "masteruser", "nobody"]).await;
        replica.ask(&["CONFIG", "SET", "masterauth", "nothing"]).await;
        primary.ask(&["CLIENT", "KILL", "TYPE", "replica"]).await;
        eventually("the replica is cut off", || async {
            primary.text(&["INFO", "replication"]).await.contains("connected_slaves:0")
        })
        .await;
        // The few keys of a put may all belong to other primaries.
        for late in 0.. {
            let folder = self.source().join(format!("late{late}"));
            folder::fill(&folder, 200, 20_000, &Dice::new(2 + late))?;
            put(&self.source())?.code(0)?;
            let has = offset(primary, "master_repl_offset").await?;
            let lags = offset(replica, "slave_repl_offset").await?;
            if lags < has {
                break;
            }
            ensure!(late < LATE_PUTS, "the replica lacks nothing: {lags} of {has}");
        }
        primary.kill();
        eventually("the replica takes over", || async {
            replica.text(&["INFO", "replication"]).await.contains("role:master")
        })
        .await;
        Ok(())
    }

    fn compare(&self, server: &Server) -> Result<()> {
        let got = self.folder.path().join("got");
        run(server.dlcmd()?.args(["get", "dl://ds"]).arg(&got))?.code(0)?;
        folder::compare(&self.source(), &got)?;
        std::fs::remove_dir_all(got).context("remove what was got")
    }
}

async fn offset(redis: &Redis, field: &str) -> Result<u64> {
    let info = redis.text(&["INFO", "replication"]).await;
    let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(value.context("Redis tells its offset")?.trim().parse()?)
}

/// Keeps S-01, S-02, S-05, S-07 and S-50.
#[tokio::test(flavor = "multi_thread")]
async fn missing_writes_of_a_new_primary_are_refused_until_restored() -> Result<()> {
    for round in 0..rounds(1, 6) {
        let scene = Scene::new().await?;
        let (first, second) = (scene.serve()?, scene.serve()?);
        scene.lose(&first, round % PRIMARIES).await?;
        let wanted = folder::read(&scene.source())?.len();
        let deadline = Deadline::after(&*clock(), PATIENCE);
        let mut refusals = Vec::new();
        for server in [&first, &second] {
            let client = Wire::connect(server.address().parse()?).await?;
            loop {
                let listed = match client.dataset("ds").await {
                    Ok(Some(id)) => match client.list(id).await {
                        Ok(files) => Ok(files),
                        Err(error) => Err(error.downcast::<tonic::Status>()?),
                    },
                    Ok(None) => anyhow::bail!("the dataset is not there"),
                    Err(refused) => Err(refused),
                };
                match listed {
                    Ok(files) => {
                        ensure!(files.len() == wanted, "{} of {wanted} files", files.len());
                        break;
                    }
                    Err(refused) => {
                        let code = refused.code();
                        let is_clear = matches!(
                            code,
                            Code::Unavailable | Code::FailedPrecondition | Code::DeadlineExceeded
                        );
                        ensure!(is_clear, "{refused}");
                        refusals.push(refused.message().to_owned());
                    }
                }
                ensure!(!deadline.remaining(&*clock()).is_zero(), "never well: {refusals:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        // Servers may have brought it back before they were asked for the first time.
        let is_told = refusals.iter().any(|why| why.contains("are rebuilding"));
        ensure!(is_told || refusals.is_empty(), "{refusals:?}");
        for server in [first, second] {
            scene.compare(&server)?;
            server.stop()?;
        }
    }
    Ok(())
}

/// Keeps S-01 and S-02: with losses in every dataset, unnoticed by servers.
#[tokio::test(flavor = "multi_thread")]
async fn recover_restores_the_missing_writes_of_a_new_primary() -> Result<()> {
    for arguments in [&["recover", "--all", "--since", "1h"][..], &["recover", "--all"]] {
        let scene = Scene::new().await?;
        let first = scene.serve()?;
        scene.lose(&first, 1).await?;
        first.kill()?;
        let second = scene.serve()?;
        run(second.dlcmd()?.args(arguments))?.code(0)?;
        scene.compare(&second)?;
        second.stop()?;
    }
    Ok(())
}
