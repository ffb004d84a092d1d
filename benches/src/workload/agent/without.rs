//! Epochs of a task whose agent can't serve all of them, beside the same epochs without a task.
//!
//! Must hold: both sides read the same files in the same order from the same server, in turns. The
//! dataset is larger than the memory of each agent, and so is a group.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::node::{Node, put};
use super::reader::{AgentReader, Command, ReaderProcess};
use super::runs;
use crate::measure::{Bar, Bench, in_turns};
use crate::setup::{Server, Settings, program};

const LENGTH: usize = 4 << 10;
const DATASET: &str = "without";
const BYTES: u32 = 640 << 20;

/// More chunks than the largest agent holds.
const GROUP: u32 = 100;

/// Refuses `memfd_create` to a program.
const WITHOUT_MEMFD: &str = include_str!("../../../../tests/tests/suite/agent/without_memfd.py");

/// The reason why the agent can't serve.
#[derive(Debug, Clone, Copy)]
enum State {
    NoFolder,
    Memory(u64),
    NoMemfd,
}

const STATES: [(&str, State); 4] = [
    ("no folder", State::NoFolder),
    ("an agent of 16 MiB", State::Memory(16 << 20)),
    ("an agent of 256 MiB", State::Memory(256 << 20)),
    ("no memfd", State::NoMemfd),
];

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("agent-without");
    let server = Server::start(&folder.join("data"))?;
    let files = settings.scaled(BYTES) / LENGTH as u32;
    put(&server.address, DATASET, files, LENGTH)?;
    let row = |(name, state)| {
        let folder = folder.join(format!("{state:?}"));
        fs::create_dir_all(&folder)?;
        epochs(settings, &server.address, &folder, files, name, state)
    };
    STATES.into_iter().map(row).collect()
}

/// Epochs in one state.
fn epochs(
    settings: &Settings,
    server: &str,
    folder: &Path,
    files: u32,
    name: &str,
    state: State,
) -> Result<Bench> {
    let (dataset, task) = (DATASET, "without");
    let (folder_of, server_of) = (folder.to_owned(), server.to_owned());
    let unstarted =
        || Node { server: server_of, dataset, folder: folder_of, task, namespace: None };
    let mut agent_program = None;
    let node = match state {
        State::NoFolder => {
            fs::write(folder.join("run"), "no folder")?;
            unstarted()
        }
        State::Memory(memory) => Node::start(task, server, dataset, folder, memory, "on-demand")?,
        State::NoMemfd => {
            agent_program = Some(program_without_memfd(folder)?);
            unstarted()
        }
    };
    let of_task = AgentReader { agent_program, ..node.reader(LENGTH, 0) };
    let without = AgentReader { task: None, ..of_task.clone() };
    let mut readers = [ReaderProcess::start(&of_task)?, ReaderProcess::start(&without)?];
    let names = ["with --task", "without --task"];
    let sides = in_turns(runs(settings), names, |epoch| {
        let [one, other] = &mut readers;
        Ok([read(one, epoch, files)?, read(other, epoch, files)?])
    })?;
    let settings =
        format!("{files} files of 4 KiB, groups of {GROUP} chunks, the server on the same cores");
    let name = format!("agent epoch with {name}");
    Ok(Bench::new(name, settings, "files/s", sides, Bar::AtLeastTimes(0.95)))
}

/// Reads an epoch; returns files a second.
fn read(reader: &mut ReaderProcess, epoch: u64, files: u32) -> Result<f64> {
    let command = Command::Epoch { epoch, rank: 0, world: 1, group: GROUP, rest: 0 };
    let answer = reader.run(command)?;
    ensure!(answer.files == u64::from(files), "{} files were read", answer.files);
    Ok(answer.rate())
}

/// A program that starts the agent without shared memory. Without Python, no agent starts at all.
fn program_without_memfd(folder: &Path) -> Result<PathBuf> {
    let (filter, started) = (folder.join("without_memfd.py"), folder.join("dlcmd"));
    fs::write(&filter, WITHOUT_MEMFD)?;
    let (filter, dlcmd) = (filter.display(), program("dlcmd")?);
    let script = format!("#!/bin/sh\nexec python3 '{filter}' '{}' \"$@\"\n", dlcmd.display());
    fs::write(&started, script)?;
    fs::set_permissions(&started, fs::Permissions::from_mode(0o700))?;
    Ok(started)
}
