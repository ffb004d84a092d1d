//! A place for mounts of a dataset.
//!
//! Must hold: a mount ends with its value, and its agent soon after.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::setup::{dlcmd_at, finish, shell};

/// Names all files below a folder, with their attributes.
const LIST_ALL: &str = "ls -lR \"$1\" > /dev/null";

/// A folder, and how to mount a dataset there.
pub(super) struct Place {
    server: String,
    dataset: &'static str,
    folder: PathBuf,
    runtime: PathBuf,
    task: Option<&'static str>,
    memory: Option<&'static str>,
    dir: PathBuf,
}

/// A mount.
pub(super) struct Mounted<'a> {
    place: &'a Place,
}

#[derive(Deserialize)]
struct Shown {
    server: u32,
}

impl Place {
    /// A place for mounts that each have a task and an agent of their own.
    pub(super) fn new(server: &str, dataset: &'static str, folder: &Path) -> Result<Self> {
        let dir = folder.join("mnt");
        fs::create_dir_all(&dir)?;
        let (folder, runtime) = (folder.to_owned(), folder.join("run"));
        let (task, memory) = (None, None);
        Ok(Self { server: server.to_owned(), dataset, folder, runtime, task, memory, dir })
    }

    /// Mounts belong to a task.
    pub(super) fn of_task(self, task: &'static str) -> Self {
        Self { task: Some(task), ..self }
    }

    /// Each agent has this memory.
    pub(super) fn with_memory(self, memory: &'static str) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// No agent can start, for lack of a folder.
    pub(super) fn without_agent(self) -> Self {
        Self { runtime: "/proc/nowhere".into(), ..self }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn dlcmd(&self) -> Result<Command> {
        let mut command = dlcmd_at(&self.server)?;
        command.args(self.task.into_iter().flat_map(|task| ["--task", task]));
        command.env("DIESEL_RUNTIME_DIR", &self.runtime);
        command.env("XDG_CACHE_HOME", self.folder.join("cache"));
        Ok(command)
    }

    /// Mounts the dataset, with an empty page cache.
    pub(super) fn mount(&self) -> Result<Mounted<'_>> {
        let address = format!("dl://{}", self.dataset);
        let mut command = self.dlcmd()?;
        command.args(["mount", &address]).arg(&self.dir);
        finish(command.args(self.memory.into_iter().flat_map(|memory| ["--memory", memory])))?;
        Ok(Mounted { place: self })
    }
}

impl Mounted<'_> {
    /// Process id of the server.
    pub(super) fn server(&self) -> Result<u32> {
        let shown = self.place.dlcmd()?.args(["--json", "mounts"]).arg(&self.place.dir).output()?;
        let shown: Shown = serde_json::from_slice(&shown.stdout).context("list the mount")?;
        Ok(shown.server)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // The end of the bench must not fail.
        let umount = || finish(self.place.dlcmd()?.arg("umount").arg(&self.place.dir));
        if umount().is_err() {
            let lazily =
                || finish(self.place.dlcmd()?.args(["umount", "--lazy"]).arg(&self.place.dir));
            let _ = lazily();
        }
    }
}

/// Makes the kernel know all names of a mount.
pub(super) fn learn_names(dir: &Path) -> Result<()> {
    finish(&mut shell(LIST_ALL, [dir]))
}
