//! Killed and stopped processes under readers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::since_boot;
use dl_tests::dice::Dice;
use dl_tests::{folder, rounds, skip, soon, tell};
use rustix::process::{Signal, kill_process};

use super::{Scene, fill_mixed, no_mount, open_direct};

/// Readers of each kind.
const READERS: usize = 4;

/// Longest read despite a kill: a loaded machine needs more than the usual 30 ms to start a program.
const LONGEST: Duration = Duration::from_secs(2);

/// Reads that go on until told to stop.
struct Readers {
    is_over: Arc<AtomicBool>,
    longest: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<Result<u64>>>,
}

impl Readers {
    /// Readers past the page cache, so each read asks the server; and a program that reads all.
    fn start(scene: &Scene) -> Result<Self> {
        let files: BTreeMap<PathBuf, Vec<u8>> = folder::paths(&scene.path("src"))?
            .into_iter()
            .filter(|path| path.is_file())
            .map(|path| {
                let bytes = fs::read(&path)?;
                Ok((path.strip_prefix(scene.path("src"))?.to_owned(), bytes))
            })
            .collect::<Result<_>>()?;
        ensure!(files.len() > 100, "{} files", files.len());
        let files = Arc::new(files);
        let (is_over, longest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut threads: Vec<_> = (0..READERS)
            .map(|seed| {
                let (root, files) = (scene.mnt(), Arc::clone(&files));
                let (is_over, longest) = (Arc::clone(&is_over), Arc::clone(&longest));
                thread::spawn(move || read_until(&root, &files, seed as u64, &is_over, &longest))
            })
            .collect();
        for _ in 0..READERS {
            let (root, is_over) = (scene.mnt(), Arc::clone(&is_over));
            threads.push(thread::spawn(move || run_until(&root, &is_over)));
        }
        Ok(Self { is_over, longest, threads })
    }

    /// Ends the readers; gives the number of their reads, and the longest.
    fn end(self) -> Result<(u64, Duration)> {
        self.is_over.store(true, Ordering::Relaxed);
        let reads = self.threads.into_iter().map(|thread| thread.join().expect("no panic"));
        let reads: u64 = reads.collect::<Result<Vec<_>>>()?.into_iter().sum();
        Ok((reads, Duration::from_micros(self.longest.load(Ordering::Relaxed))))
    }
}

fn read_until(
    root: &Path,
    files: &BTreeMap<PathBuf, Vec<u8>>,
    seed: u64,
    is_over: &AtomicBool,
    longest: &AtomicU64,
) -> Result<u64> {
    let (dice, mut reads) = (Dice::new(seed), 0);
    let files: Vec<_> = files.iter().collect();
    while !is_over.load(Ordering::Relaxed) {
        let (path, bytes) = *dice.pick(&files);
        let began = since_boot();
        let mut file = open_direct(&root.join(path))?;
        let from = dice.below(bytes.len() + 1);
        let length = (bytes.len() - from).min(100_000);
        let mut read = vec![0; length];
        file.seek(SeekFrom::Start(from as u64))?;
        file.read_exact(&mut read).with_context(|| format!("read {}", path.display()))?;
        longest.fetch_max(since_boot().saturating_sub(began).as_micros() as u64, Ordering::Relaxed);
        ensure!(read == bytes[from..from + length], "{} has other bytes", path.display());
        reads += 1;
    }
    Ok(reads)
}

/// Runs programs that read all files.
fn run_until(root: &Path, is_over: &AtomicBool) -> Result<u64> {
    let script = "tar cf - . | md5sum; find . | wc -l; ls -lR | md5sum";
    let (mut first, mut runs) = (None, 0);
    while !is_over.load(Ordering::Relaxed) {
        let ended = Command::new("sh").args(["-c", script]).current_dir(root).output()?;
        ensure!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        let before = first.get_or_insert_with(|| text.clone());
        ensure!(*before == text, "{before} before, {text} now");
        runs += 1;
    }
    Ok(runs)
}

/// Keeps S-82.
#[test]
fn readers_of_a_killed_server_go_on() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    scene.mount("dl://ds", &[])?;
    let readers = Readers::start(&scene)?;
    let kills = rounds(30, 200);
    for _ in 0..kills {
        thread::sleep(Duration::from_millis(300));
        // The last server may still be starting.
        if scene.process("server")?.is_some() {
            scene.kill("server")?;
        }
    }
    let status = scene.status()?;
    let (reads, longest) = readers.end()?;
    tell(format_args!("{reads} reads, {} servers, longest read {longest:?}", status["starts"]));
    ensure!(status["starts"].as_u64() > Some(kills / 2), "{status}");
    ensure!(longest < LONGEST, "a read took {longest:?}");
    scene.umount()
}

/// Keeps S-82.
#[test]
fn readers_go_on_while_the_next_program_takes_the_mount_over() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    scene.mount("dl://ds", &[])?;
    let holder = scene.process("holder")?.context("a holder")?;
    let readers = Readers::start(&scene)?;
    let upgrades = rounds(5, 50);
    for upgrade in 0..upgrades {
        let wanted = Some(upgrade + 2);
        kill_process(holder, Signal::HUP)?;
        let is_new = || Ok(scene.status()?["starts"].as_u64() == wanted);
        soon("the next program serves", is_new)?;
        thread::sleep(Duration::from_millis(200));
    }
    let (reads, longest) = readers.end()?;
    tell(format_args!("{reads} reads, {upgrades} programs, longest read {longest:?}"));
    ensure!(longest < LONGEST, "a read took {longest:?}");
    ensure!(scene.process("holder")? == Some(holder), "the process stays");
    scene.umount()
}

#[test]
fn readers_outlive_the_agent_and_the_server_of_the_dataset() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let mut scene = Scene::new(fill_mixed)?;
    scene.mount("dl://ds", &[])?;
    // All chunks are in the memory of the node.
    folder::compare(&scene.path("src"), &scene.mnt())?;
    let readers = Readers::start(&scene)?;
    thread::sleep(Duration::from_millis(500));
    kill_process(scene.agent()?, Signal::KILL)?;
    thread::sleep(Duration::from_secs(1));
    // Reads go on in the memory of the old agent; the next server starts a new agent.
    scene.kill("server")?;
    thread::sleep(Duration::from_secs(1));
    for (process, pause) in [("server", 700), ("holder", 700)] {
        let process = scene.process(process)?.context("it runs")?;
        kill_process(process, Signal::STOP)?;
        thread::sleep(Duration::from_millis(pause));
        kill_process(process, Signal::CONT)?;
    }
    let agent = scene.agent()?;
    kill_process(agent, Signal::STOP)?;
    scene.kill("server")?;
    thread::sleep(Duration::from_secs(1));
    kill_process(agent, Signal::CONT)?;
    readers.end()?;
    // Names and attributes need no server; the chunks are there.
    scene.kill_server()?;
    scene.kill("server")?;
    folder::compare(&scene.path("src"), &scene.mnt())?;
    scene.umount()
}

/// Keeps S-82.
#[test]
fn a_mount_without_holder_serves_on_and_the_next_mount_heals() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    scene.mount("dl://ds", &[])?;
    let (holder, server) = (scene.process("holder")?, scene.process("server")?);
    kill_process(holder.context("a holder")?, Signal::KILL)?;
    folder::compare(&scene.path("src"), &scene.mnt())?;
    ensure!(scene.status()?["state"] == "without a holder", "{}", scene.status()?);
    scene.mount("dl://ds", &[])?;
    ensure!(scene.status()?["state"] == "held", "{}", scene.status()?);
    let server = server.context("a server")?;
    soon("the old server ends", || Ok(rustix::process::test_kill_process(server).is_err()))?;
    // Both at once: the place is dead until the next mount.
    let server = scene.process("server")?.context("a server")?;
    scene.kill("holder")?;
    kill_process(server, Signal::KILL)?;
    soon("the mount is dead", || Ok(File::open(scene.mnt().join("large")).is_err()))?;
    scene.mount("dl://ds", &[])?;
    folder::compare(&scene.path("src"), &scene.mnt())?;
    scene.umount()
}

/// Keeps S-81.
#[test]
fn inodes_and_listings_are_the_same_for_each_server() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    let inodes = || -> Result<BTreeMap<PathBuf, u64>> {
        let paths = folder::paths(&scene.mnt())?.into_iter();
        paths.map(|path| Ok((path.clone(), fs::symlink_metadata(&path)?.ino()))).collect()
    };
    let order = || -> Result<Vec<std::ffi::OsString>> {
        let entries = fs::read_dir(scene.mnt())?;
        Ok(entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<_>>()?)
    };
    scene.mount("dl://ds", &[])?;
    let before = (inodes()?, order()?);
    let distinct: std::collections::BTreeSet<_> = before.0.values().collect();
    ensure!(distinct.len() == before.0.len() && distinct.iter().all(|inode| **inode < 1 << 32));
    scene.kill("server")?;
    ensure!((inodes()?, order()?) == before, "another server, other numbers");
    scene.umount()?;
    scene.mount("dl://ds", &[])?;
    ensure!((inodes()?, order()?) == before, "another mount, other numbers");
    scene.umount()
}
