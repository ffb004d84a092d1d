//! Housekeeping through several servers over one Redis and one folder: each command uses the next
//! server, and a server is killed and restarted on the way.
//!
//! Must hold: hours pass between steps, so that each purge has work.

use std::fs;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::Server as Redis;
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Ended, purged, run};
use dl_tests::rounds;
use dl_tests::scene::Scene;
use dl_tests::shift::ClockShift;

const SERVERS: usize = 3;

/// The start of the history and the time of a step, in seconds.
const AGE: i64 = 10 * 86_400;
const STEP: i64 = 3 * 3_600;

/// Keeps S-07, S-02, S-21, S-27 and S-29.
#[tokio::test(flavor = "multi_thread")]
async fn each_step_of_housekeeping_may_go_to_another_server() -> Result<()> {
    for round in 0..rounds(1, 8) {
        let scene = Scene::new()?;
        let source = scene.src();
        let redis = Redis::start(&[]).await;
        let past = ClockShift::new(&scene.path(""), "past", -AGE)?;
        let start = || scene.start_among(&["--meta", &redis.url()], &past.variables());
        let mut servers = (0..SERVERS).map(|_| start()).collect::<Result<Vec<_>>>()?;
        folder::fill(&source, 300, 20_000, &Dice::new(round))?;
        let mut turn = round as usize;
        for step in 0..rounds(3, 12) {
            past.set(i64::from(step) * STEP - AGE)?;
            let mut ask = |arguments: &[&str]| -> Result<Ended> {
                turn += 1;
                let server = servers.get(turn % SERVERS).context("a server")?;
                let mut command = server.dlcmd()?;
                let ended = run(command.envs(past.variables()).args(arguments))?;
                ensure!(ended.code == 0, "{arguments:?}: {ended:?}");
                Ok(ended)
            };
            let from = source.display().to_string();
            for number in (step as usize..300).step_by(5) {
                let path = format!("{:03}/{number:06}.bin", number / 100);
                folder::write(&source, path, format!("step {step}"))?;
            }
            ask(&["put", &from, "dl://ds"])?;
            ask(&["put", &from, "dl://passing"])?;
            for number in (step as usize..300).step_by(7) {
                let path = format!("{:03}/{number:06}.bin", number / 100);
                if source.join(&path).exists() {
                    fs::remove_file(source.join(&path))?;
                    ask(&["rm", &format!("dl://ds/{path}")])?;
                }
            }
            // Purges data of earlier steps.
            let done = purged(&ask(&["--json", "purge", "--grace", "0s", "dl://ds"])?)?;
            ensure!(step == 0 || done > 0, "step {step}: nothing to purge");
            ask(&["verify", "--checksums", "dl://ds"])?;
            if step % 2 == 0 {
                redis.ask(&["FLUSHALL"]).await;
            }
            ask(&["recover", "--all"])?;
            ask(&["delete-dataset", "dl://passing"])?;
            ask(&["verify", "dl://ds"])?;
            ask(&["purge", "--all", "--grace", "0s"])?;
            ask(&["recover", "dl://ds", "--since", "1h"])?;
            ask(&["verify", "--checksums", "dl://ds"])?;
            for server in &servers {
                let datasets = run(server.dlcmd()?.arg("datasets"))?.code(0)?.text();
                ensure!(datasets == "ds\n", "step {step}: {datasets}");
                server.compare("dl://ds", &source).with_context(|| format!("step {step}"))?;
            }
            servers.remove(0).kill()?;
            servers.push(start()?);
        }
        for server in servers {
            server.stop()?;
        }
    }
    Ok(())
}
