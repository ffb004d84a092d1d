//! A place for mounts of a dataset.
//!
//! Must hold: a mount ends with its value, and its agent soon after.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::setup::{dlcmd_at, finish};

/// A folder, and how to mount a dataset there.
pub(super) struct Place {
    server: String,
    dataset: &'static str,
    folder: PathBuf,
    task: Option<&'static str>,
    dir: PathBuf,
}

/// A mount.
pub(super) struct Mounted<'a> {
    place: &'a Place,
    /// The process id of its server.
    pub(super) server: u32,
}

#[derive(Deserialize)]
struct Shown {
    server: u32,
}

impl Place {
    pub(super) fn new(
        server: &str,
        dataset: &'static str,
        folder: &Path,
        task: Option<&'static str>,
    ) -> Result<Self> {
        let dir = folder.join("mnt");
        fs::create_dir_all(&dir)?;
        Ok(Self { server: server.to_owned(), dataset, folder: folder.to_owned(), task, dir })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn dlcmd(&self) -> Result<Command> {
        let mut command = dlcmd_at(&self.server)?;
        command.args(self.task.into_iter().flat_map(|task| ["--task", task]));
        command.env("DIESEL_RUNTIME_DIR", self.folder.join("run"));
        command.env("XDG_CACHE_HOME", self.folder.join("cache"));
        Ok(command)
    }

    /// Mounts the dataset, with an empty page cache.
    pub(super) fn mount(&self) -> Result<Mounted<'_>> {
        let address = format!("dl://{}", self.dataset);
        finish(self.dlcmd()?.args(["mount", &address]).arg(&self.dir))?;
        let shown = self.dlcmd()?.args(["--json", "mounts"]).arg(&self.dir).output()?;
        let shown: Shown = serde_json::from_slice(&shown.stdout).context("list the mount")?;
        Ok(Mounted { place: self, server: shown.server })
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
