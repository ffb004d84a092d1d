//! Traces of agents and workers on the machine, and machines with missing features.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::program::{Ended, Server, program, run};
use dl_tests::{folder, skip};
use rustix::process::{Signal, kill_process};

use super::worker::Worker;
use super::{Scene, wait_for_end};

/// About ten chunks.
const FILES: u32 = 1_000;

/// The entries of a folder of the process below `/proc`.
fn of_process(worker: &Worker, what: &str) -> Result<BTreeSet<String>> {
    let folder = PathBuf::from(format!("/proc/{}/{what}", worker.process.id()));
    let entries = fs::read_dir(&folder)?.map(|entry| {
        let entry = entry?;
        let target = fs::read_link(entry.path()).unwrap_or_default();
        Ok(format!("{} {}", entry.file_name().to_string_lossy(), target.display()))
    });
    entries.collect()
}

#[test]
fn a_worker_has_no_thread_and_no_descriptor_but_its_socket() -> Result<()> {
    let mut scene = Scene::stamped(FILES)?;
    scene.start_agent(&["--policy", "oneshot"])?;
    scene.wait_until(|status| status["partial"] == false)?;
    scene.kill_server()?;
    let mut worker = scene.worker(1)?;
    let (threads, before) = (of_process(&worker, "task")?, of_process(&worker, "fd")?);
    for line in ["open", "all", "keep 3", "all"] {
        worker.ask(line)?;
    }
    ensure!(
        threads.len() == 1 && of_process(&worker, "task")? == threads,
        "the worker has other threads"
    );
    let after = of_process(&worker, "fd")?;
    let new: Vec<_> = after.difference(&before).collect();
    ensure!(before.is_subset(&after), "{before:?} became {after:?}");
    ensure!(new.len() == 1 && new.iter().all(|one| one.contains("socket:")), "new: {new:?}");
    worker.end()?;
    Ok(())
}

/// Other processes with `text` in a file of their folder below `/proc`.
fn processes_with(file: &str, text: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_process = name.bytes().all(|byte| byte.is_ascii_digit());
        if is_process && name != std::process::id().to_string() {
            // A process may end meanwhile, or belong to another user.
            let bytes = fs::read(Path::new("/proc").join(&name).join(file)).unwrap_or_default();
            if String::from_utf8_lossy(&bytes).contains(text) {
                found.push(name);
            }
        }
    }
    Ok(found)
}

/// The inodes of the cache's shared memory in the maps of a worker.
fn memory_of(worker: &Worker) -> Result<HashSet<String>> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", worker.process.id()))?;
    let maps = maps.lines().filter(|line| line.contains("memfd:diesel-"));
    Ok(maps.filter_map(|line| line.split_whitespace().nth(4).map(str::to_owned)).collect())
}

#[test]
fn killed_processes_leave_nothing_behind() -> Result<()> {
    let mut scene = Scene::stamped(FILES)?;
    let mut workers = vec![scene.worker(1)?, scene.worker(2)?];
    let mut memory = HashSet::new();
    for worker in &mut workers {
        worker.ask("open")?;
        worker.ask("all")?;
        worker.ask("keep 2")?;
        memory.extend(memory_of(worker)?);
    }
    ensure!(memory.len() >= 4, "arena, table and two pages: {memory:?}");
    let here = scene.path("").display().to_string();
    ensure!(processes_with("environ", &here)?.len() == 3, "workers and agent");
    let agent = scene.agent()?;
    scene.kill_server()?;
    kill_process(agent, Signal::KILL)?;
    workers.iter_mut().try_for_each(|worker| worker.process.kill())?;
    wait_for_end(agent, Duration::from_secs(5))?;

    ensure!(processes_with("environ", &here)?.is_empty(), "a process is left");
    for inode in memory {
        let holders = processes_with("maps", &format!(" {inode} "))?;
        ensure!(holders.is_empty(), "{holders:?} hold memory {inode}");
    }
    ensure!(fs::read_dir(scene.path("run"))?.count() == 3, "a socket, a lock and a log");
    scene.server = Some(Server::start_with(&scene.path("data"), &scene.address, &[])?);
    let mut worker = scene.worker(3)?;
    worker.ask("open")?;
    ensure!(worker.ask("all")? == format!("{FILES} read"), "files are missing");
    ensure!(scene.agent()? != agent, "another agent");
    worker.end()?;
    Ok(())
}

/// Checks that a reader has read everything, with a single note about the missing cache.
fn has_read_without_the_cache(ended: Ended) -> Result<()> {
    let ended = ended.code(0)?;
    let told: serde_json::Value = serde_json::from_str(ended.text().trim())?;
    ensure!(told["files"] == FILES, "{told}");
    let notes = ended.stderr.matches("cache").count();
    ensure!(notes == 1 && ended.stderr.lines().count() == 1, "one note: {}", ended.stderr);
    Ok(())
}

const READ: [&str; 4] = ["--json", "shuffle", "dl://ds", "--read"];

/// A command under a Python program that restricts its process and then becomes the command.
pub(super) fn restricted(command: &Command, program: &str) -> Command {
    let mut python = Command::new("python3");
    python.args(["-c", program]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => python.env(name, value),
            None => python.env_remove(name),
        };
    }
    python
}

#[test]
fn without_shared_memory_readers_note_it_and_use_the_servers() -> Result<()> {
    let scene = Scene::stamped(FILES)?;
    let mut dlcmd = scene.dlcmd()?;
    match run(&mut restricted(dlcmd.args(READ), include_str!("without_memfd.py"))) {
        Ok(ended) if !ended.stderr.contains("no filter") => has_read_without_the_cache(ended),
        refused => skip(format_args!("this machine permits no system call filter: {refused:?}")),
    }
}

#[test]
fn an_unusable_socket_folder_is_noted_once() -> Result<()> {
    let scene = Scene::stamped(FILES)?;
    fs::write(scene.path("file"), "no folder")?;
    fs::create_dir(scene.path("open"))?;
    fs::set_permissions(scene.path("open"), fs::Permissions::from_mode(0o755))?;
    for folder in ["file", "file/below", "open", "missing/below"] {
        let mut command = scene.dlcmd()?;
        command.env("DIESEL_RUNTIME_DIR", scene.path(folder));
        has_read_without_the_cache(run(command.args(READ))?).context(folder)?;
    }
    Ok(())
}

/// A shell command in a new process id namespace, as in a container.
fn in_container(scene: &Scene, script: &str) -> Result<Command> {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "sh", "-ec", script]);
    command.env_remove("DIESEL_TASK").env("DIESEL_SERVER", &scene.address);
    command.env("DIESEL_RUNTIME_DIR", scene.path("run")).env("XDG_CACHE_HOME", scene.path("cache"));
    command.env("dlcmd", program("dlcmd")?).env("got", scene.path("got"));
    Ok(command)
}

#[test]
fn a_container_finds_its_task_and_reads_from_an_agent_outside() -> Result<()> {
    let mut scene = Scene::new(21)?;
    let probe = run(&mut in_container(&scene, "true")?)?;
    if probe.code != 0 {
        return skip(format_args!("this machine permits no container: {}", probe.stderr));
    }
    // The leader of the session is outside the container.
    let alone = "$dlcmd agent start dl://ds; $dlcmd --json agent status; $dlcmd agent stop";
    run(&mut in_container(&scene, alone)?)?.code(0)?;

    scene.start_agent(&["--policy", "oneshot"])?;
    scene.wait_until(|status| status["partial"] == false)?;
    scene.kill_server()?;
    run(&mut in_container(&scene, "$dlcmd --task job get dl://ds $got")?)?.code(0)?;
    folder::compare(&scene.path("src"), &scene.path("got"))
}
