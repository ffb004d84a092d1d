//! Agents, commands and handles of a job while no server answers.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::cluster::clock;
use dl_tests::program::run;
use libdiesel::{Client, ConnectOptions, DatasetName, TaskOptions};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::peers::Nodes;
use super::{Scene, agent_program, bytes_of, wait_for_end};

const ONESHOT: [&str; 4] = ["--memory", "256MiB", "--policy", "oneshot"];

/// Longer than any look at a server that is away, and shorter than a connect timeout.
const WAIT_MAX: Duration = Duration::from_secs(4);

#[test]
fn an_agent_with_all_chunks_serves_workers_with_other_settings() -> Result<()> {
    let mut scene = Scene::new(61)?;
    scene.start_agent(&ONESHOT)?;
    scene.wait_until(|status| status["partial"] == false)?;
    scene.kill_server()?;
    let mut task = TaskOptions::named("job").context("a name")?;
    task.folder = Some(scene.path("run"));
    task.program = Some(agent_program()?);
    let address = scene.address.clone();
    let usual = || ConnectOptions { task: Some(task.clone()), ..ConnectOptions::default() };
    let clock = clock();
    for options in [
        ConnectOptions { servers: vec!["127.0.0.1:9".to_owned(), address.clone()], ..usual() },
        ConnectOptions { servers: vec![format!("http://{address}")], ..usual() },
        ConnectOptions {
            servers: vec![address.clone()],
            request_timeout: Duration::from_secs(31),
            ca: Some(b"another".to_vec()),
            ..usual()
        },
    ] {
        let begun = clock.monotonic();
        let dataset = Client::connect(options.clone())?.dataset(&DatasetName::new("ds")?)?;
        let path = dataset.snapshot().context("a snapshot")?.path(7)?;
        ensure!(dataset.get(&path)? == bytes_of(&scene, &path)?, "other bytes of {path}");
        ensure!(clock.monotonic() - begun < WAIT_MAX, "{options:?} waited");
    }
    let stranger = ConnectOptions { servers: vec!["127.0.0.1:10".to_owned()], ..usual() };
    let refused = Client::connect(stranger)?.dataset(&DatasetName::new("ds")?);
    ensure!(refused.is_err(), "servers of another kind may have another dataset of the name");
    ensure!(scene.status()?["fallbacks"] == 0, "{}", scene.status()?);
    Ok(())
}

/// The sockets of agents.
fn sockets(scene: &Scene) -> Result<BTreeSet<PathBuf>> {
    let entries = fs::read_dir(scene.path("run"))?.map(|entry| Ok(entry?.path()));
    let sockets = entries.filter(|path: &Result<PathBuf>| {
        path.as_ref().is_ok_and(|path| path.extension().is_some_and(|ending| ending == "sock"))
    });
    sockets.collect()
}

#[test]
fn an_agent_refuses_a_worker_with_another_key() -> Result<()> {
    let scene = Scene::stamped(1_000)?;
    scene.start_agent(&ONESHOT)?;
    let with_key = |arguments: &[&str]| {
        let mut dlcmd = scene.dlcmd()?;
        run(dlcmd.env("DIESEL_KEY", "5e".repeat(32)).args(arguments))?.code(0)
    };
    let own = sockets(&scene)?;
    with_key(&["agent", "start", "dl://ds"])?;
    let of_key = sockets(&scene)?.difference(&own).next().cloned().context("another socket")?;
    with_key(&["agent", "stop"])?;
    // Another key usually leads to another socket.
    let _ = fs::remove_file(&of_key);
    symlink(own.first().context("a socket")?, &of_key)?;
    let told = with_key(&["shuffle", "dl://ds", "--read"])?;
    ensure!(told.stderr.contains("belongs to another user or key"), "{told:?}");
    ensure!(scene.status()?["hits"] == 0, "{}", scene.status()?);
    Ok(())
}

/// The output of dlcmd with the usual task.
fn output(scene: &Scene, arguments: &[&str]) -> Result<Vec<u8>> {
    Ok(run(scene.dlcmd()?.args(arguments))?.code(0)?.stdout)
}

#[test]
fn metadata_of_a_job_is_shown_and_saved() -> Result<()> {
    let mut scene = Scene::stamped(1_000)?;
    scene.start_agent(&ONESHOT)?;
    let commands = [&["ls", "-lR", "dl://ds"][..], &["du", "dl://ds"], &["stat", "dl://ds/004/"]];
    let before =
        commands.iter().map(|command| output(&scene, command)).collect::<Result<Vec<_>>>()?;
    scene.kill_server()?;
    for (command, before) in commands.iter().zip(before) {
        ensure!(output(&scene, command)? == before, "{command:?} without a server");
    }
    let file = scene.path("saved").display().to_string();
    output(&scene, &["snapshot", "save", "dl://ds", &file])?;
    let got = scene.path("got").display().to_string();
    output(&scene, &["get", "dl://ds", &got, "--snapshot", &file])?;
    dl_tests::folder::compare(&scene.path("src"), &scene.path("got"))
}

#[test]
fn a_new_agent_finds_snapshot_and_peers_without_a_server() -> Result<()> {
    let mut nodes = Nodes::new(62, 2, &ONESHOT)?;
    for node in 0..2 {
        nodes.wait_until(node, |status| {
            let owned = status["datasets"][0]["chunks_owned"].as_u64().unwrap_or(0);
            owned > 0 && status["chunks_present"].as_u64() >= Some(owned)
        })?;
    }
    nodes.scene.kill_server()?;
    nodes.add(&["--memory", "256MiB"])?;
    nodes.get_and_compare(2)?;
    let status = nodes.status(2)?;
    ensure!(status["fallbacks"] == 0 && status["chunks_from_servers"] == 0, "{status}");
    let agent = nodes.agent(2)?;
    kill_process(agent, Signal::KILL)?;
    wait_for_end(agent, Duration::from_secs(10))?;
    nodes.start(2, &["--memory", "256MiB"])?;
    nodes.get_and_compare(2)
}

#[test]
fn a_running_agent_keeps_its_settings_and_start_says_so() -> Result<()> {
    let scene = Scene::stamped(1_000)?;
    let start = |arguments: &[&str]| {
        let mut dlcmd = scene.dlcmd()?;
        run(dlcmd.args(["--json", "agent", "start", "dl://ds"]).args(arguments))?.code(0)
    };
    let first = start(&["--memory", "64MiB"])?;
    ensure!(first.stderr.is_empty(), "{first:?}");
    let again = start(&["--memory", "64MiB", "--policy", "on-demand"])?;
    ensure!(again.stderr.is_empty(), "{again:?}");
    let other = start(&["--memory", "1GiB", "--policy", "oneshot"])?;
    for word in ["64.00 MiB", "on-demand", "--memory 1GiB", "--policy oneshot", "agent stop"] {
        ensure!(other.stderr.contains(word), "no {word}: {}", other.stderr);
    }
    let told: Value = serde_json::from_str(other.text().trim())?;
    ensure!(told["memory_bytes"] == 64 << 20 && told["policy"] == "on-demand", "{told}");
    ensure!(told["ignored"] == serde_json::json!(["--memory 1GiB", "--policy oneshot"]), "{told}");
    Ok(())
}
