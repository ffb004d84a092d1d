//! Damage and changes of a dataset while a job reads it.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::folder;
use dl_tests::program::run;

use super::{Scene, wait_for_end};

const FILES: u32 = 1_000;
/// The damaged file.
const DAMAGED: &str = "004/000421";

impl Scene {
    /// Flips a bit of a file in the store.
    fn damage(&self, path: &str) -> Result<()> {
        let source = fs::read(self.path("src").join(path))?;
        let begin = source.get(..64).context("a file of some length")?;
        for name in folder::read(&self.path("data/chunks"))?.into_keys() {
            let object = self.path("data/chunks").join(String::from_utf8(name)?);
            let mut bytes = fs::read(&object)?;
            if let Some(at) = bytes.windows(begin.len()).position(|window| window == begin) {
                *bytes.get_mut(at + 7).context("the position was found")? ^= 1;
                return Ok(fs::write(&object, bytes)?);
            }
        }
        anyhow::bail!("{path} is not in the store")
    }
}

#[test]
fn a_damaged_chunk_is_fetched_once_and_costs_one_file() -> Result<()> {
    let scene = Scene::stamped(FILES)?;
    scene.damage(DAMAGED)?;
    scene.start_agent(&["--policy", "oneshot"])?;
    let all_but_one = |status: &serde_json::Value| {
        status["chunks_present"].as_u64().map(|chunks| chunks + 1) == status["chunks"].as_u64()
    };
    scene.wait_until(|status| all_but_one(status) && status["failed_fetches"] == 1)?;
    for _ in 0..2 {
        let got = scene.path("got");
        let told = run(scene.dlcmd()?.args(["get", "dl://ds"]).arg(&got))?;
        ensure!(
            told.code == 4 && told.stderr.lines().count() == 1 && told.stderr.contains(DAMAGED),
            "{told:?}"
        );
        ensure!(told.stderr.contains("checksum"), "no reason: {}", told.stderr);
        let (there, wanted) = (folder::read(&got)?, folder::read(&scene.path("src"))?);
        let missing: Vec<_> =
            wanted.iter().filter(|(path, _)| !there.contains_key(*path)).collect();
        ensure!(missing.len() == 1 && there.len() + 1 == wanted.len(), "{} there", there.len());
        ensure!(there.iter().all(|(path, file)| wanted.get(path) == Some(file)), "other bytes");
        fs::remove_dir_all(got)?;
    }
    std::thread::sleep(Duration::from_secs(2));
    let status = scene.status()?;
    ensure!(status["failed_fetches"] == 1, "the damaged chunk was fetched again: {status}");
    let of_chunk = FILES as u64 * 2 - status["hits"].as_u64().unwrap_or_default();
    ensure!(status["fallbacks"] == of_chunk && of_chunk < 400, "{status}");
    Ok(())
}

#[test]
fn a_job_reads_its_version_after_deletes_and_a_purge() -> Result<()> {
    let scene = Scene::stamped(FILES)?;
    scene.start_agent(&["--memory", "3MiB", "--policy", "none"])?;
    for folder in 0..5 {
        let folder = format!("dl://ds/{folder:03}");
        run(scene.dlcmd()?.args(["rm", "-r", &folder]))?.code(0)?;
    }
    let purge = |arguments: &[&str]| {
        run(scene.dlcmd()?.args(["--json", "purge", "dl://ds"]).args(arguments))
    };
    let refused = purge(&["--grace", "0s"])?;
    ensure!(refused.code != 0 && refused.stderr.contains("task job"), "{refused:?}");
    let noted = purge(&[])?.code(0)?;
    ensure!(noted.stderr.contains("task job"), "{noted:?}");
    for seed in 1..3 {
        let mut worker = scene.worker(seed)?;
        ensure!(worker.ask("open")? == format!("{FILES} files"), "another version");
        ensure!(worker.ask("all")? == format!("{FILES} read"), "files are missing");
        worker.end()?;
    }
    let agent = scene.agent()?;
    run(scene.dlcmd()?.args(["agent", "stop"]))?.code(0)?;
    wait_for_end(agent, Duration::from_secs(10))?;
    let done = purge(&["--grace", "0s"])?.code(0)?;
    let told: serde_json::Value = serde_json::from_slice(&done.stdout)?;
    ensure!(told["leased_by"] == serde_json::json!([]), "the lease outlives the job: {told}");
    Ok(())
}
