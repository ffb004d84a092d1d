//! A killed, stopped or missing agent: readers still read every file.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::program::{Process, run};
use rustix::process::{Signal, kill_process};

use super::{FILES, Scene, is_alive, wait_for_end};

/// The time limit for a reader.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_killed_agent_is_replaced_and_leaves_nothing_behind() -> Result<()> {
    let scene = Scene::new(11)?;
    ensure!(scene.read(&[])? == FILES as u64, "files are missing");
    let first = scene.agent()?;
    kill_process(first, Signal::KILL)?;
    wait_for_end(first, PATIENCE)?;
    ensure!(scene.read(&["--epoch", "1"])? == FILES as u64, "files are missing");
    ensure!(scene.agent()? != first, "another agent");
    scene.get_and_compare()
}

#[test]
fn readers_go_on_while_the_agent_is_killed_again_and_again() -> Result<()> {
    let scene = Scene::new(12)?;
    for round in 0..4 {
        let mut command = scene.dlcmd()?;
        command.args(["--json", "shuffle", "dl://ds", "--read", "--group-size", "2"]);
        command.args(["--epoch", &round.to_string()]).stdout(std::process::Stdio::piped());
        let mut reader = Process::start(&mut command)?;
        std::thread::sleep(Duration::from_millis(20 * round));
        if let Ok(agent) = scene.agent() {
            kill_process(agent, Signal::KILL)?;
        }
        let code = reader.wait(PATIENCE)?;
        ensure!(code == 0, "the reader ended with exit code {code}");
    }
    scene.get_and_compare()
}

#[test]
fn a_stopped_agent_costs_time_and_no_file() -> Result<()> {
    let scene = Scene::new(13)?;
    scene.start_agent(&["--memory", "16MiB"])?;
    let agent = scene.agent()?;
    let mut command = scene.dlcmd()?;
    command.args(["shuffle", "dl://ds", "--read", "--group-size", "1"]);
    let mut reader = Process::start(command.stdout(std::process::Stdio::null()))?;
    std::thread::sleep(Duration::from_millis(30));
    kill_process(agent, Signal::STOP)?;
    let ended = reader.wait(PATIENCE);
    kill_process(agent, Signal::CONT)?;
    ensure!(ended? == 0, "the reader failed");
    Ok(())
}

#[test]
fn the_last_worker_and_a_stop_end_the_agent() -> Result<()> {
    let scene = Scene::new(14)?;
    ensure!(scene.read(&[])? == FILES as u64, "files are missing");
    let agent = scene.agent()?;
    ensure!(is_alive(agent), "the agent ended at once");
    wait_for_end(agent, Duration::from_secs(30)).context("an agent without workers")?;
    scene.start_agent(&[])?;
    let agent = scene.agent()?;
    run(scene.dlcmd()?.args(["agent", "stop"]))?.code(0)?;
    wait_for_end(agent, Duration::from_secs(5)).context("an agent that was stopped")?;
    run(scene.dlcmd()?.args(["agent", "status"]))?.code(3)?;
    Ok(())
}

#[test]
fn where_no_agent_may_be_started_files_come_from_the_servers() -> Result<()> {
    let scene = Scene::new(15)?;
    fs::write(scene.path("run"), "no folder")?;
    ensure!(scene.read(&[])? == FILES as u64, "files are missing");
    scene.get_and_compare()
}

#[test]
fn another_name_another_agent() -> Result<()> {
    let scene = Scene::new(16)?;
    scene.start_agent(&[])?;
    run(scene.dlcmd_of("other")?.args(["agent", "status"]))?.code(3)?;
    let strange = run(scene.dlcmd_of("a/b")?.args(["agent", "status"]))?;
    ensure!(strange.code == 2 && strange.stderr.contains("characters"), "{strange:?}");
    Ok(())
}
