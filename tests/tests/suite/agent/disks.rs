//! Local disks as tiers of the cache: shared by jobs, damaged, full, missing, and left by killed
//! agents.

use std::fs::{File, read_dir};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::program::{Process, run};
use dl_tests::{rounds, skip};
use libdiesel::Dataset;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::peers::Nodes;
use super::shared::open_at;
use super::{LONGEST, Scene, agent_of, bytes_of, pause, status_of, wait_for_end};

/// About 30 chunks of 1 MiB.
const FILES: u32 = 3_000;
const MIB: u64 = 1 << 20;

/// A job, with its own agent, and a folder that all jobs share.
struct Jobs {
    scene: Scene,
    names: Vec<&'static str>,
}

impl Jobs {
    fn new(names: &[&'static str]) -> Result<Self> {
        let scene = Scene::stamped(FILES)?;
        std::fs::create_dir(scene.path("disk"))?;
        Ok(Self { scene, names: names.to_vec() })
    }

    fn disk(&self) -> PathBuf {
        self.scene.path("disk")
    }

    fn dlcmd(&self, job: &str) -> Result<Command> {
        self.scene.dlcmd_at(job, job)
    }

    fn tiers(&self, memory: &str, quota: u64) -> String {
        format!("memory:{memory},{}:{quota}", self.disk().display())
    }

    fn start(&self, job: &str, tiers: &str) -> Result<()> {
        let arguments = ["agent", "start", "dl://ds", "--peer-address", "none", "--tiers", tiers];
        run(self.dlcmd(job)?.args(arguments))?.code(0)?;
        Ok(())
    }

    fn stop(&self, job: &str) -> Result<()> {
        let agent = agent_of(&self.status(job)?)?;
        run(self.dlcmd(job)?.args(["agent", "stop"]))?.code(0)?;
        wait_for_end(agent, Duration::from_secs(10))
    }

    fn status(&self, job: &str) -> Result<Value> {
        status_of(self.dlcmd(job)?)
    }

    fn number(&self, job: &str, field: &str) -> Result<u64> {
        self.status(job)?[field].as_u64().context("a number")
    }

    /// Waits until a disk has all chunks of the dataset.
    fn await_copies(&self, job: &str) -> Result<()> {
        let mut status = Value::Null;
        for _ in 0..1_000 {
            status = self.status(job)?;
            if status["chunks_on_disk"] == status["chunks"] {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        anyhow::bail!("not all chunks are on disk: {status}")
    }

    /// Fills the folder with all chunks by one job, which then ends.
    fn fill(&self, job: &str) -> Result<()> {
        self.start(job, &self.tiers("12MiB", 64 * MIB))?;
        run(self.dlcmd(job)?.args(["agent", "prefetch", "--wait", "dl://ds"]))?.code(0)?;
        self.await_copies(job)?;
        self.stop(job)
    }

    /// The copies on the disk; fails for any other file but locks and the usage.
    fn copies(&self) -> Result<Vec<(PathBuf, u64)>> {
        let mut copies = Vec::new();
        for file in files_in(&self.disk())? {
            let name = file.file_name().and_then(|name| name.to_str()).context("a name")?;
            if name == "use" || name == "usage" {
                continue;
            }
            let range = name.split_once('.').and_then(|(_, range)| range.split_once('-'));
            let (start, end) = range.with_context(|| format!("{} is no copy", file.display()))?;
            let (start, end): (u64, u64) = (start.parse()?, end.parse()?);
            ensure!(file.metadata()?.len() == end, "{} is not whole", file.display());
            copies.push((file, end - start));
        }
        Ok(copies)
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        for job in &self.names {
            if let Ok(agent) = self.status(job).and_then(|status| agent_of(&status)) {
                let _ = kill_process(agent, Signal::KILL);
            }
        }
    }
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => files.extend(files_in(&entry.path())?),
            false => files.push(entry.path()),
        }
    }
    Ok(files)
}

#[test]
fn a_second_job_reads_everything_from_the_disk() -> Result<()> {
    let jobs = Jobs::new(&["first", "second"])?;
    jobs.fill("first")?;
    jobs.start("second", &jobs.tiers("8MiB", 64 * MIB))?;
    jobs.scene.get_with(jobs.dlcmd("second")?, "dl://ds")?;
    let status = jobs.status("second")?;
    ensure!(status["chunks_from_servers"] == 0 && status["fallbacks"] == 0, "{status}");
    ensure!(status["chunks_from_disk"].as_u64() >= status["chunks"].as_u64(), "{status}");
    ensure!(status["tiers"][0]["damaged"] == 0 && status["partial"] == false, "{status}");
    let text = run(jobs.dlcmd("second")?.args(["agent", "status"]))?.code(0)?.text();
    let line = text.lines().find(|line| line.starts_with("disk ")).context("a line")?;
    ensure!(line.contains(", ready: ") && line.contains(" of 67108864 bytes"), "{line}");
    Ok(())
}

/// S-89.
#[test]
fn damaged_copies_are_dropped_and_fetched_again() -> Result<()> {
    let jobs = Jobs::new(&["first", "second"])?;
    jobs.fill("first")?;
    let copies = jobs.copies()?;
    for (number, (copy, length)) in copies.iter().enumerate() {
        let file = File::options().write(true).open(copy)?;
        let end = file.metadata()?.len();
        match number % 3 {
            0 => file.write_all_at(&[0x5a; 64], end - length / 2)?,
            1 => file.set_len(end - length / 3)?,
            _ => {}
        }
    }
    let wrong = copies.len() - copies.len() / 3;
    jobs.start("second", &jobs.tiers("12MiB", 64 * MIB))?;
    jobs.scene.get_with(jobs.dlcmd("second")?, "dl://ds")?;
    let status = jobs.status("second")?;
    ensure!(status["tiers"][0]["damaged"] == wrong as u64, "{wrong} damaged: {status}");
    // A chunk may leave memory before it is written, and come again.
    let fetched = status["chunks_from_servers"].as_u64().context("a number")?;
    ensure!((wrong as u64..=wrong as u64 + 4).contains(&fetched), "{wrong} damaged: {status}");
    ensure!(status["fallbacks"] == 0 && status["tiers"][0]["failed"] == 0, "{status}");
    // An epoch waits for no disk, so some chunks may have no copy again.
    run(jobs.dlcmd("second")?.args(["agent", "prefetch", "--wait", "dl://ds"]))?.code(0)?;
    jobs.await_copies("second")?;
    jobs.stop("second")?;
    jobs.start("first", &jobs.tiers("12MiB", 64 * MIB))?;
    jobs.scene.get_with(jobs.dlcmd("first")?, "dl://ds")?;
    ensure!(jobs.number("first", "chunks_from_servers")? == 0, "{}", jobs.status("first")?);
    Ok(())
}

/// S-90.
#[test]
fn killed_agents_leave_whole_copies_within_the_quota() -> Result<()> {
    const QUOTA: u64 = 20 * MIB;
    let jobs = Jobs::new(&["first", "second"])?;
    let dice = Dice::new(47);
    for round in 0..rounds(6, 60) {
        let mut readers = Vec::new();
        for job in &jobs.names {
            jobs.start(job, &jobs.tiers("12MiB", QUOTA))?;
            let epoch = round.to_string();
            let arguments =
                ["shuffle", "dl://ds", "--read", "--group-size", "2", "--epoch", &epoch];
            let mut command = jobs.dlcmd(job)?;
            // A reader starts another agent in place of a killed one.
            command.env("DIESEL_AGENT_TIERS", jobs.tiers("12MiB", QUOTA));
            command.env("DIESEL_PEER_ADDRESS", "none");
            readers.push(Process::start(command.args(arguments).stdout(Stdio::null()))?);
        }
        pause(&dice, 150);
        for job in &jobs.names {
            kill_process(agent_of(&jobs.status(job)?)?, Signal::KILL)?;
        }
        for mut reader in readers {
            // Without the agent, files come from the servers.
            ensure!(reader.wait(Duration::from_secs(60))? == 0, "a reader failed");
        }
        let sum: u64 = jobs.copies()?.iter().map(|(_, bytes)| bytes).sum();
        ensure!(sum <= QUOTA, "{sum} bytes of copies");
        if round % 2 == 1 {
            // The oldest copies leave the disk for the next rounds.
            let copies = jobs.copies()?;
            copies.iter().take(4).try_for_each(|(copy, _)| std::fs::remove_file(copy))?;
        }
    }
    // An agent counts the copies when it opens the folder, and the test has removed some.
    jobs.names.iter().for_each(|job| _ = jobs.stop(job));
    jobs.start("first", &jobs.tiers("12MiB", QUOTA))?;
    jobs.scene.get_with(jobs.dlcmd("first")?, "dl://ds")?;
    let mut status = Value::Null;
    for _ in 0..100 {
        let sum: u64 = jobs.copies()?.iter().map(|(_, bytes)| bytes).sum();
        status = jobs.status("first")?;
        if status["tiers"][0]["used_bytes"] == sum && sum > 0 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    anyhow::bail!("the usage is not the sum of the copies: {status}")
}

#[test]
fn a_full_disk_costs_speed_and_no_read() -> Result<()> {
    let jobs = Jobs::new(&["job"])?;
    let disk = jobs.disk();
    let fill = format!("{}/other", disk.display());
    // The agent sees a small file system, which another program fills.
    let script = format!(
        "mount -t tmpfs -o size=12M tmpfs '{}' && head -c 3M /dev/zero > '{fill}' && exec \"$@\"",
        disk.display()
    );
    let probe = ["--mount", "sh", "-c", "mount -t tmpfs tmpfs /mnt"];
    let tried = run(Command::new("unshare").args(probe))?;
    if tried.code != 0 {
        return skip(format_args!("no file system of its own: {}", tried.stderr));
    }
    let mut agent = jobs.dlcmd("job")?;
    let tiers = jobs.tiers("12MiB", 64 * MIB);
    agent.args(["agent", "run", "--peer-address", "none", "--tiers", &tiers]);
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "sh", "-c", &script, "sh"]).arg(agent.get_program());
    inside.args(agent.get_args());
    for (name, value) in agent.get_envs() {
        value.into_iter().for_each(|value| _ = inside.env(name, value));
    }
    let mut agent = Process::start(&mut inside)?;
    for _ in 0..1_000 {
        if jobs.status("job").is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    for epoch in ["0", "1"] {
        jobs.scene.get_with(jobs.dlcmd("job")?, "dl://ds")?;
        let read = ["shuffle", "dl://ds", "--read", "--group-size", "2", "--epoch", epoch];
        run(jobs.dlcmd("job")?.args(read))?.code(0)?;
    }
    let status = jobs.status("job")?;
    let tier = &status["tiers"][0];
    ensure!(tier["state"] == "full" && tier["failed"] == 0, "{status}");
    ensure!(tier["used_bytes"].as_u64().is_some_and(|used| used > 2 * MIB), "{status}");
    ensure!(tier["used_bytes"].as_u64() <= Some(9 * MIB), "{status}");
    ensure!(status["chunks_from_disk"].as_u64() > Some(0), "{status}");
    run(jobs.dlcmd("job")?.args(["agent", "stop"]))?.code(0)?;
    ensure!(agent.wait(Duration::from_secs(10))? == 0, "the agent failed");
    Ok(())
}

/// Reads files in no order, one at a time, until `is_enough`, and compares their bytes.
fn read_alone(
    scene: &Scene,
    dataset: &Dataset,
    mut is_enough: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let snapshot = dataset.snapshot().context("a snapshot")?;
    let dice = Dice::new(48);
    for _ in 0..200 {
        if is_enough()? {
            return Ok(());
        }
        for _ in 0..50 {
            let number = dice.below(snapshot.files() as usize) as u32;
            let expected = bytes_of(scene, &snapshot.path(number)?)?;
            let mut buffer = vec![0; LONGEST];
            let length = dataset.get_into(number, &mut buffer)?;
            ensure!(buffer.get(..length) == Some(&expected[..]), "other bytes of file {number}");
        }
    }
    anyhow::bail!("too few files come alone")
}

/// S-89.
#[test]
fn files_come_alone_from_a_full_disk() -> Result<()> {
    let jobs = Jobs::new(&["job"])?;
    jobs.start("job", &jobs.tiers("12MiB", 14 * MIB))?;
    let full = |status: &Value| status["tiers"][0]["used_bytes"].as_u64() > Some(13 * MIB);
    for epoch in 0..20 {
        let epoch = epoch.to_string();
        let read = ["shuffle", "dl://ds", "--read", "--group-size", "2", "--epoch", &epoch];
        run(jobs.dlcmd("job")?.args(read))?.code(0)?;
        if full(&jobs.status("job")?) {
            break;
        }
    }
    let before = jobs.status("job")?;
    ensure!(full(&before) && before["partial"] == true, "{before}");
    let dataset = open_at(&jobs.scene, "job", None)?;
    let alone = || jobs.number("job", "files_from_disk");
    read_alone(&jobs.scene, &dataset, || Ok(alone()? >= 500))?;
    let status = jobs.status("job")?;
    ensure!(status["fallbacks"].as_u64() > before["fallbacks"].as_u64(), "{status}");
    // Wrong bytes reach nobody: the files come from the servers.
    for (copy, length) in jobs.copies()? {
        let file = File::options().write(true).open(copy)?;
        file.write_all_at(&vec![0x5a; length as usize], file.metadata()?.len() - length)?;
    }
    let damaged = || Ok(jobs.status("job")?["tiers"][0]["damaged"].as_u64() > Some(5));
    read_alone(&jobs.scene, &dataset, damaged)
}

#[test]
fn files_come_alone_from_the_disk_of_another_node() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let tiers = format!("memory:12MiB,{}:256MiB", folder.path().display());
    let mut nodes = Nodes::new(47, 1, &["--tiers", &tiers, "--policy", "oneshot"])?;
    nodes.wait_until(0, |status| status["partial"] == false)?;
    nodes.add(&["--memory", "12MiB"])?;
    nodes.await_links()?;
    let dataset = open_at(&nodes.scene, "2", None)?;
    let count = |node: usize, field: &str| anyhow::Ok(nodes.status(node)?[field].as_u64());
    let read = |status: &Value| status["tiers"][0]["bytes_read"].as_u64();
    let before = read(&nodes.status(0)?);
    read_alone(&nodes.scene, &dataset, || Ok(count(1, "files_from_peers")? >= Some(500)))?;
    ensure!(count(0, "files_to_peers")? >= Some(500), "{}", nodes.status(0)?);
    ensure!(read(&nodes.status(0)?) > before, "nothing came from the disk: {}", nodes.status(0)?);
    ensure!(count(1, "fallbacks")? == Some(0), "files came from the servers");
    Ok(())
}

#[test]
fn a_folder_removed_in_use_costs_speed_and_no_read() -> Result<()> {
    let jobs = Jobs::new(&["job"])?;
    let tiers = jobs.tiers("12MiB", 64 * MIB);
    let start = ["agent", "start", "dl://ds", "--policy", "oneshot", "--tiers", &tiers];
    run(jobs.dlcmd("job")?.args(start))?.code(0)?;
    jobs.await_copies("job")?;
    std::fs::remove_dir_all(jobs.disk())?;
    jobs.scene.get_with(jobs.dlcmd("job")?, "dl://ds")?;
    for epoch in ["0", "1"] {
        let read = ["shuffle", "dl://ds", "--read", "--group-size", "2", "--epoch", epoch];
        run(jobs.dlcmd("job")?.args(read))?.code(0)?;
    }
    let before = jobs.number("job", "chunks_from_servers")?;
    std::thread::sleep(Duration::from_secs(3));
    let after = jobs.status("job")?;
    let fetched = after["chunks_from_servers"].as_u64().context("a number")? - before;
    ensure!(fetched <= 30, "{fetched} chunks fetched again and again: {after}");
    ensure!(after["tiers"][0]["state"] == "resting", "{after}");
    Ok(())
}

#[test]
fn a_missing_folder_is_named_and_a_job_goes_on_without() -> Result<()> {
    let jobs = Jobs::new(&["job"])?;
    let missing = jobs.scene.path("missing");
    let tiers = format!("memory:16MiB,{}:1GiB", missing.display());
    for action in [&["agent", "start", "dl://ds"][..], &["agent", "run"]] {
        let refused = run(jobs.dlcmd("job")?.args(action).args(["--tiers", &tiers]))?.code(2)?;
        ensure!(refused.stderr.contains("make it first"), "{}", refused.stderr);
    }
    let mut get = jobs.dlcmd("job")?;
    get.env("DIESEL_AGENT_TIERS", &tiers);
    jobs.scene.get_with(get, "dl://ds")?;
    let status = jobs.status("job")?;
    ensure!(status["notes"].to_string().contains("there is no folder"), "{status}");
    ensure!(status["memory_bytes"] == 16 * MIB && status["fallbacks"] == 0, "{status}");
    ensure!(!missing.exists(), "the agent made the folder");
    Ok(())
}

#[test]
fn clean_removes_what_no_agent_uses() -> Result<()> {
    let jobs = Jobs::new(&["first", "second"])?;
    jobs.fill("first")?;
    let clean = |arguments: &[&str]| {
        let mut command = jobs.dlcmd("none")?;
        let ended = run(command.args(["agent", "clean"]).arg(jobs.disk()).args(arguments))?;
        anyhow::Ok((ended.code, ended.text() + &ended.stderr))
    };
    let (code, told) = clean(&["--dry-run"])?;
    ensure!(code == 0 && told.contains("dl://ds (") && told.contains("would be removed"), "{told}");
    let (code, told) = clean(&["dl://other"])?;
    ensure!(code == 0 && told.contains(": kept"), "{told}");
    let (code, told) = clean(&["--older", "1d"])?;
    ensure!(code == 0 && told.contains(": kept") && !jobs.copies()?.is_empty(), "{told}");
    jobs.start("second", &jobs.tiers("12MiB", 64 * MIB))?;
    let (code, told) = clean(&["dl://ds"])?;
    ensure!(code == 4 && told.contains("in use by an agent"), "{code} {told}");
    jobs.scene.get_with(jobs.dlcmd("second")?, "dl://ds")?;
    ensure!(jobs.number("second", "chunks_from_servers")? == 0, "{}", jobs.status("second")?);
    jobs.stop("second")?;
    let (code, told) = clean(&["dl://ds", "--json"])?;
    ensure!(code == 0 && told.contains("\"removed\""), "{told}");
    ensure!(read_dir(jobs.disk())?.count() == 0, "files are left");
    let (code, told) = clean(&[])?;
    ensure!(code == 0 && told.contains("holds no copies"), "{told}");
    Ok(())
}
