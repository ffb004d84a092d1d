//! The commands `why`, `agent status` and `agent prefetch`: waits and their causes, memory use,
//! versions in use.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::since_boot;
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Process, run};
use libdiesel::{Dataset, ShuffleOptions};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::shared::open_at;
use super::{FILES, LONGEST, Scene, bytes_of, wait_for_end};

/// The time limit for a reader.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A handle of this process with a time-out for the agent.
fn open(scene: &Scene, patience: Duration) -> Result<Dataset> {
    open_at(scene, "", Some(patience))
}

/// The number of a non-empty file in each of the first chunks.
fn files_of_chunks(dataset: &Dataset, chunks: u32) -> Result<Vec<u32>> {
    let snapshot = dataset.snapshot().context("a snapshot")?;
    let mut found = Vec::new();
    for chunk in 0..chunks {
        let (_, _, mut files) = snapshot.chunk(chunk)?;
        let whole = files.find(|number| {
            snapshot.place(*number).is_ok_and(|place| place.chunk == chunk && place.length > 0)
        });
        found.push(whole.context("a chunk without files")?);
    }
    Ok(found)
}

impl Scene {
    /// Sends a signal to the server.
    fn signal_server(&mut self, signal: Signal) -> Result<()> {
        self.server.as_mut().context("a server runs")?.process().signal(signal)
    }

    /// Starts a process that reads a file.
    fn cat(&self, dataset: &Dataset, number: u32) -> Result<Process> {
        let path = dataset.snapshot().context("a snapshot")?.path(number)?;
        let mut command = self.dlcmd()?;
        command.args(["cat", &format!("dl://ds/{path}")]).stdout(Stdio::null());
        Process::start(&mut command)
    }

    /// The waits of readers, as JSON.
    fn waits(&self) -> Result<Vec<Value>> {
        let told = run(self.dlcmd()?.args(["--json", "why"]))?.code(0)?;
        told.text().lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// Waits until a process waits in `state`. In the state `fetching`, the request must have been
    /// made.
    fn wait_of(&self, pid: u32, state: &str) -> Result<Value> {
        for _ in 0..1_500 {
            let waits = self.waits()?;
            let is_asked = |wait: &Value| state != "fetching" || wait["length"] != 0;
            let matches = |wait: &Value| wait["pid"] == pid && wait["state"] == state;
            let found = waits.iter().find(|wait| matches(wait) && is_asked(wait));
            if let Some(wait) = found {
                return Ok(wait.clone());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        anyhow::bail!("process {pid} has no wait {state}: {:?}", self.waits()?)
    }

    fn why(&self) -> Result<String> {
        Ok(run(self.dlcmd()?.args(["why"]))?.code(0)?.text())
    }
}

#[test]
fn why_shows_fetch_progress_and_readers_from_the_servers() -> Result<()> {
    let mut scene = Scene::new(21)?;
    scene.start_agent(&["--memory", "64MiB"])?;
    ensure!(scene.why()? == "No read waits.\n", "{}", scene.why()?);
    let dataset = open(&scene, TIMEOUT)?;
    let files = files_of_chunks(&dataset, 1)?;
    let [file] = files[..] else { anyhow::bail!("a single file") };
    scene.signal_server(Signal::STOP)?;
    let mut reader = scene.cat(&dataset, file)?;
    let wait = scene.wait_of(reader.id(), "fetching")?;
    ensure!(wait["dataset"] == "ds" && wait["chunk"] == 0 && wait["bytes"] == 0, "{wait}");
    ensure!(wait["length"].as_u64() > Some(0) && wait["seconds"].is_number(), "{wait}");
    let text = scene.why()?;
    ensure!(text.contains("for chunk 0 of dl://ds: the agent has fetched 0 bytes of"), "{text}");
    let status = scene.status()?;
    let is_reader = |worker: &&Value| worker["pid"] == reader.id();
    let worker = status["workers"].as_array().into_iter().flatten().find(is_reader);
    ensure!(worker.is_some_and(|worker| worker["awaits_seconds"].is_number()), "{status}");
    scene.wait_of(reader.id(), "from-servers")?;
    ensure!(scene.why()?.contains("the process itself reads from the servers"), "no fallback");
    scene.signal_server(Signal::CONT)?;
    ensure!(reader.wait(TIMEOUT)? == 0, "the reader failed");
    ensure!(scene.why()? == "No read waits.\n", "{}", scene.why()?);
    let place = dataset.snapshot().context("a snapshot")?.place(file)?;
    let status = scene.status()?;
    ensure!(status["fallbacks"] == 1 && status["fallback_bytes"] == place.length, "{status}");
    Ok(())
}

#[test]
fn why_names_the_processes_with_pinned_slots() -> Result<()> {
    let mut scene = Scene::new(22)?;
    scene.start_agent(&["--memory", "8MiB"])?;
    let dataset = open(&scene, TIMEOUT)?;
    let files = files_of_chunks(&dataset, 3)?;
    let [first, second, third] = files[..] else { anyhow::bail!("three files") };
    // All workers share a bounded number of slots for views; the first test reader must have ended.
    scene.wait_until(|status| status["workers"].as_array().is_some_and(|all| all.len() == 1))?;
    let view = dataset.view(first)?;
    scene.signal_server(Signal::STOP)?;
    let me = std::process::id();
    // Twice, so that the chunk is worth its slot.
    let read = |file: u32| dataset.get_many_into(&[file, file], &mut vec![0; 2 * LONGEST]);
    let (filled, without) = std::thread::scope(|scope| -> Result<_> {
        let filling = scope.spawn(|| read(second));
        scene.wait_of(me, "fetching")?;
        let without = scope.spawn(|| read(third));
        let wait = scene.wait_of(me, "no-slot")?;
        ensure!(wait["pinned_by"] == serde_json::json!([{ "pid": me, "slots": 1 }]), "{wait}");
        ensure!(scene.why()?.contains(&format!("Process {me} pins 1 slot.")), "{}", scene.why()?);
        scene.signal_server(Signal::CONT)?;
        Ok((filling.join(), without.join()))
    })?;
    ensure!(matches!((filled, without), (Ok(Ok(_)), Ok(Ok(_)))), "a reader failed");
    drop(view);
    Ok(())
}

#[test]
fn a_silent_agent_is_named() -> Result<()> {
    let scene = Scene::new(23)?;
    scene.start_agent(&[])?;
    let agent = scene.agent()?;
    kill_process(agent, Signal::STOP)?;
    let told = run(scene.dlcmd()?.args(["why"]));
    kill_process(agent, Signal::CONT)?;
    let told = told?.code(1)?;
    let expected = format!("process {}, the agent, is stopped", agent.as_raw_nonzero());
    ensure!(told.stderr.contains(&expected), "{told:?}");
    Ok(())
}

#[test]
fn a_chunk_after_its_readers_time_out_is_not_pinned() -> Result<()> {
    let mut scene = Scene::new(24)?;
    scene.start_agent(&["--memory", "64MiB"])?;
    let dataset = open(&scene, Duration::from_millis(300))?;
    let files = files_of_chunks(&dataset, 1)?;
    let [file] = files[..] else { anyhow::bail!("a single file") };
    scene.signal_server(Signal::STOP)?;
    let bytes = std::thread::scope(|scope| {
        let reading = scope.spawn(|| dataset.view(file));
        let gave_up = scene.wait_until(|status| status["fallbacks"] == 1);
        let continued = scene.signal_server(Signal::CONT);
        let read = reading.join().expect("no panic");
        gave_up.and(continued).and_then(|()| Ok(read?))
    })?;
    let path = dataset.snapshot().context("a snapshot")?.path(file)?;
    ensure!(*bytes == bytes_of(&scene, &path)?[..], "other bytes");
    scene.wait_until(|status| status["chunks_present"] == 1)?;
    let status = scene.status()?;
    ensure!(status["fallbacks"] == 1 && status["workers"][0]["pins"] == 0, "{status}");
    Ok(())
}

#[test]
fn a_process_waits_for_a_silent_agent_only_once() -> Result<()> {
    let mut scene = Scene::new(32)?;
    scene.start_agent(&["--memory", "64MiB"])?;
    let patience = Duration::from_secs(4);
    let dataset = open(&scene, patience)?;
    let snapshot = dataset.snapshot().context("a snapshot")?;
    let files = files_of_chunks(&dataset, 6)?;
    let paths: Vec<_> = files.iter().map(|file| snapshot.path(*file)).collect::<Result<_, _>>()?;
    scene.signal_server(Signal::STOP)?;
    let began = since_boot();
    let read = std::thread::scope(|scope| {
        let reading = scope.spawn(|| dataset.get_many(&paths));
        std::thread::sleep(patience + Duration::from_secs(2));
        let continued = scene.signal_server(Signal::CONT);
        let read = reading.join().expect("no panic");
        continued.and_then(|()| Ok(read?))
    })?;
    let took = since_boot().saturating_sub(began);
    ensure!(took < 4 * patience, "{took:?} for {} files", paths.len());
    for (path, read) in paths.iter().zip(read) {
        ensure!(read? == bytes_of(&scene, path)?, "{path} has other bytes");
    }
    Ok(())
}

#[test]
fn a_prefetch_brings_a_folder_and_its_readers_need_no_server() -> Result<()> {
    let mut scene = Scene::new(25)?;
    let large = scene.path("large");
    folder::write(&large, "one.bin", Dice::new(31).bytes(11 << 20))?;
    run(scene.dlcmd()?.arg("put").arg(large).arg("dl://ds/large"))?.code(0)?;
    scene.start_agent(&["--memory", "64MiB"])?;
    let told = run(scene.dlcmd()?.args(["--json", "agent", "prefetch", "--wait"]).args([
        "dl://ds/020",
        "dl://ds/001",
        "dl://ds/large/one.bin",
    ]))?
    .code(0)?;
    let told: Value = serde_json::from_str(told.text().trim())?;
    let status = scene.status()?;
    ensure!(told["chunks"] == told["chunks_present"] && told["stuck"] == false, "{told}");
    ensure!(status["chunks_present"] == told["chunks"], "{told} {status}");
    ensure!(told["chunks"].as_u64() >= Some(5), "a folder each, and three parts: {told}");
    ensure!(status["chunks_present"].as_u64() < status["chunks"].as_u64(), "{status}");
    ensure!(status["pages"]["mapped_bytes"].as_u64() > Some(0), "{status}");
    scene.kill_server()?;
    let read = run(scene.dlcmd()?.args(["cat", "dl://ds/001/000150.bin"]))?.code(0)?;
    ensure!(read.stdout == bytes_of(&scene, &"001/000150.bin")?, "other bytes");
    ensure!(scene.status()?["misses"] == 0, "{}", scene.status()?);
    run(scene.dlcmd()?.args(["agent", "prefetch", "dl://ds/nothing"]))?.code(3)?;
    run(scene.dlcmd_of("other")?.args(["agent", "prefetch", "dl://ds"]))?.code(3)?;
    Ok(())
}

#[test]
fn a_too_large_prefetch_says_so_and_leaves_room_for_readers() -> Result<()> {
    let scene = Scene::new(26)?;
    scene.start_agent(&["--memory", "16MiB"])?;
    let told = run(scene.dlcmd()?.args(["agent", "prefetch", "dl://ds", "--wait"]))?.code(4)?;
    ensure!(told.text().contains("in memory: no more fit"), "{told:?}");
    let status = scene.status()?;
    ensure!(status["prefetch_stuck"] == true, "{status}");
    ensure!(status["chunks_kept"].as_u64().is_some_and(|kept| (2..4).contains(&kept)), "{status}");
    scene.get_and_compare()
}

#[test]
fn a_library_prefetch_returns_at_once_and_reports_progress() -> Result<()> {
    let mut scene = Scene::new(27)?;
    scene.start_agent(&["--memory", "64MiB"])?;
    let dataset = open(&scene, TIMEOUT)?;
    let snapshot = dataset.snapshot().context("a snapshot")?;
    let all = libdiesel::Selection::all(snapshot.files());
    scene.signal_server(Signal::STOP)?;
    dataset.prefetch(&all)?;
    let before = dataset.presence(&all)?;
    ensure!(before.present == 0 && before.chunks == u64::from(snapshot.chunks()), "{before:?}");
    scene.signal_server(Signal::CONT)?;
    scene.wait_until(|status| status["partial"] == false)?;
    let after = dataset.presence(&all)?;
    ensure!(after.present == after.chunks, "{after:?}");
    ensure!(dataset.prefetch(&libdiesel::Selection::all(1)).is_err(), "another selection");
    Ok(())
}

#[test]
fn status_shows_orders_with_windows_and_oversized_groups() -> Result<()> {
    let scene = Scene::new(28)?;
    scene.start_agent(&["--memory", "24MiB"])?;
    let dataset = open(&scene, TIMEOUT)?;
    let epoch = dataset.shuffle(ShuffleOptions::new(1, 0, 2))?;
    ensure!(epoch.next()?.is_some(), "a file");
    scene.wait_until(|status| {
        let order = &status["orders"][0];
        order["chunks"].as_u64() > Some(2) && order["chunks_present"].as_u64() > Some(2)
    })?;
    drop(epoch);
    scene.wait_until(|status| status["orders"].as_array().is_some_and(Vec::is_empty))?;
    let epoch = dataset.shuffle(ShuffleOptions::new(1, 0, 50))?;
    ensure!(epoch.next()?.is_some(), "a file");
    scene.wait_until(|status| {
        let order = &status["orders"][0];
        order["group_chunks"] == status["chunks"] && order["group_chunks_max"] == 5
    })?;
    let told = run(scene.dlcmd()?.args(["agent", "status"]))?.code(0)?.text();
    ensure!(told.contains("does not fit into memory, one of 5 would"), "{told}");
    drop(epoch);
    Ok(())
}

#[test]
fn a_task_keeps_its_version_after_a_kill_and_a_change() -> Result<()> {
    let scene = Scene::new(29)?;
    ensure!(scene.read(&[])? == FILES as u64, "files are missing");
    let version = scene.status()?["datasets"][0]["version"].clone();
    folder::fill(&scene.path("more"), 100, 1_000, &Dice::new(30))?;
    let more = scene.path("more");
    run(scene.dlcmd()?.arg("put").arg(more).arg("dl://ds/more"))?.code(0)?;
    let agent = scene.agent()?;
    kill_process(agent, Signal::KILL)?;
    wait_for_end(agent, TIMEOUT)?;
    ensure!(scene.read(&["--epoch", "1"])? == FILES as u64, "another version is read");
    let status = scene.status()?;
    ensure!(status["datasets"][0]["version"] == version, "{version} became {status}");
    let newest = run(scene.dlcmd_of("other")?.args(["cat", "dl://ds/more/000/000007.bin"]))?;
    ensure!(newest.code == 0, "another task reads the newest version: {newest:?}");
    let old = run(scene.dlcmd()?.args(["cat", "dl://ds/more/000/000007.bin"]))?;
    ensure!(old.code == 3, "no file of the newer version: {old:?}");
    run(scene.dlcmd_of("other")?.args(["agent", "stop"]))?.code(0)?;
    Ok(())
}

#[test]
fn the_last_worker_or_a_stop_ends_the_agent_of_a_task() -> Result<()> {
    let scene = Scene::new(14)?;
    ensure!(scene.read(&[])? == FILES as u64, "files are missing");
    wait_for_end(scene.agent()?, TIMEOUT).context("an agent without workers")?;
    scene.start_agent(&[])?;
    let agent = scene.agent()?;
    run(scene.dlcmd_of("other")?.args(["agent", "status"]))?.code(3)?;
    let strange = run(scene.dlcmd_of("a/b")?.args(["agent", "status"]))?.code(2)?;
    ensure!(strange.stderr.contains("characters"), "{strange:?}");
    run(scene.dlcmd()?.args(["agent", "stop"]))?.code(0)?;
    wait_for_end(agent, Duration::from_secs(5)).context("an agent that was stopped")?;
    run(scene.dlcmd()?.args(["agent", "status"]))?.code(3)?;
    Ok(())
}
