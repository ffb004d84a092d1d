//! The memory of the processes of a mount.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use dl_tests::cgroup::Cgroup;
use dl_tests::dice::Dice;
use dl_tests::program::memory;
use dl_tests::{folder, rounds, skip, soon, tell};

use super::{Scene, no_mount, read_direct};

/// Growth of private memory over a walk through all names.
const GROWTH_MAX: u64 = 2 << 20;

/// Limit of the cgroup of a server.
const LIMIT: u64 = 96 << 20;

const READERS: u64 = 4;

/// The id of a process of the mount, and its private memory in bytes.
fn private(scene: &Scene, process: &str) -> Result<(i32, u64)> {
    let id = scene.process(process)?.context("the process runs")?.as_raw_nonzero().get();
    Ok((id, memory(id, &["RssAnon"])?))
}

#[test]
fn heavy_names_cost_the_processes_of_a_mount_no_memory() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let count = rounds(200_000, 10_000_000);
    let file = |number: u32| format!("train/n{:08}/n_{}.JPEG", number / 1_300, number % 1_300);
    let scene = Scene::of_files((0..count).map(file), b"x")?;
    scene.mount("dl://ds", &[])?;
    let measured = || anyhow::Ok([private(&scene, "server")?, private(&scene, "holder")?]);
    let before = measured()?;
    for script in ["find . -type f | wc -l", "ls -lR | grep -c JPEG"] {
        let ended = Command::new("sh").args(["-c", script]).current_dir(scene.mnt()).output()?;
        let said = String::from_utf8_lossy(&ended.stdout);
        ensure!(said.trim() == count.to_string(), "{script}: {ended:?}");
        let after = measured()?;
        for (name, ((id, before), (same, after))) in
            ["server", "holder"].into_iter().zip(before.into_iter().zip(after))
        {
            ensure!(id == same, "another {name} runs");
            let figures = format!("{} KiB before, {} KiB after", before >> 10, after >> 10);
            tell(format_args!("{count} names, {script}: {name} {figures}"));
            ensure!(after < before + GROWTH_MAX, "{name}: {figures}");
        }
    }
    scene.umount()
}

/// Files of a megabyte, twice the memory of the agent.
fn fill(root: &Path) -> Result<()> {
    let dice = Dice::new(17);
    (0..128).try_for_each(|file| folder::write(root, format!("{file:03}"), dice.bytes(1 << 20)))
}

#[test]
fn heavy_a_server_reads_much_more_than_its_memory() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let Some(cgroup) = Cgroup::new(LIMIT) else {
        return skip("this machine permits no cgroup with a memory limit");
    };
    let scene = Scene::new(fill)?;
    scene.mount("dl://ds", &["--memory", "64MiB"])?;
    // The agent runs, outside of the cgroup; the next server has all of its memory inside.
    scene.agent()?;
    let (holder, _) = private(&scene, "holder")?;
    cgroup.add(holder)?;
    let (first, _) = private(&scene, "server")?;
    scene.kill("server")?;
    soon("the next server runs", || {
        Ok(scene.process("server")?.is_some_and(|id| id.as_raw_nonzero().get() != first))
    })?;
    let starts = scene.status()?["starts"].clone();
    let (most, read) = (rounds(512_u64, 2_048) << 20, AtomicU64::new(0));
    thread::scope(|scope| {
        let reader = |seed| {
            let (scene, read) = (&scene, &read);
            scope.spawn(move || read_until(scene, &Dice::new(seed), read, most))
        };
        let readers: Vec<_> = (0..READERS).map(reader).collect();
        readers.into_iter().try_for_each(|reader| reader.join().ok().context("no panic")?)
    })?;
    let (server, anonymous) = private(&scene, "server")?;
    let mapped = memory(server, &["RssShmem"])?;
    tell(format_args!(
        "{} MiB read: the cgroup of {} MiB had at most {} MiB; the server {} KiB of its own, and \
         {} MiB of the agent's memory mapped",
        read.into_inner() >> 20,
        LIMIT >> 20,
        cgroup.peak()? >> 20,
        anonymous >> 10,
        mapped >> 20
    ));
    ensure!(cgroup.kills()? == 0, "processes were killed");
    ensure!(scene.status()?["starts"] == starts, "the server ended: {}", scene.status()?);
    scene.umount()
}

/// Reads files in any order, past the page cache.
fn read_until(scene: &Scene, dice: &Dice, read: &AtomicU64, most: u64) -> Result<()> {
    while read.load(Ordering::Relaxed) < most {
        let name = format!("{:03}", dice.below(128));
        let bytes = read_direct(&scene.mnt().join(&name))?;
        ensure!(bytes == std::fs::read(scene.path("src").join(&name))?, "{name} has other bytes");
        read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}
