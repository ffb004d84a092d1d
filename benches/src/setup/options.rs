//! What a person can choose.
//!
//! Must hold: folders for data and for what is read back are fresh, and go with the settings.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use tempfile::TempDir;

use super::{Tree, TreeShape};

/// Choices for all workloads.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Sizes of all workloads, as a share of those that the bars are for
    #[arg(long, global = true, default_value_t = 1.0)]
    scale: f64,

    /// Runs of each side, which take turns
    #[arg(long, global = true, default_value_t = 3)]
    runs: usize,

    /// Where the data of the servers and the source trees lie: a file system as servers have it
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,

    /// A tmpfs, for what is read back
    #[arg(long, global = true, value_name = "DIR", default_value = "/dev/shm")]
    tmpfs: PathBuf,

    /// Where to write the curves of workloads that have one, as SVG
    #[arg(long, global = true, value_name = "DIR")]
    plots: Option<PathBuf>,

    /// Print one JSON object for each bench
    #[arg(long, global = true)]
    pub json: bool,

    /// Exit with 1 when a bar is missed
    #[arg(long, global = true)]
    pub check: bool,
}

/// Choices, and folders that go when this is dropped.
#[derive(Debug)]
pub struct Settings {
    scale: f64,
    runs: usize,
    disk: TempDir,
    tmpfs: TempDir,
    plots: Option<PathBuf>,
}

impl Settings {
    /// Makes the folders.
    ///
    /// # Errors
    /// When that can't be done, and for sizes that make no sense.
    pub fn new(options: &Options) -> Result<Self> {
        let Options { scale, runs, dir, tmpfs, plots, .. } = options;
        ensure!(*runs > 0, "--runs must be at least 1");
        ensure!(scale.is_finite() && *scale > 0.0, "--scale must be above 0");
        let fresh = |dir: &Path| {
            let made = tempfile::Builder::new().prefix("dl-bench-").tempdir_in(dir);
            made.with_context(|| format!("make a folder in {}", dir.display()))
        };
        let (disk, tmpfs, plots) = (fresh(dir)?, fresh(tmpfs)?, plots.clone());
        Ok(Self { scale: *scale, runs: *runs, disk, tmpfs, plots })
    }

    /// Where the data lie.
    pub fn folder(&self) -> &Path {
        self.disk.path()
    }

    /// Where curves are wanted.
    pub(crate) fn plots(&self) -> Option<&Path> {
        self.plots.as_deref()
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs
    }

    /// A folder that is not there yet, on the disk.
    pub(crate) fn on_disk(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    /// A folder that is not there yet, in memory.
    pub(crate) fn in_memory(&self, name: &str) -> PathBuf {
        self.tmpfs.path().join(name)
    }

    /// `count` at full size, scaled.
    pub(crate) fn scaled(&self, count: u32) -> u32 {
        // Counts are far below what a double holds, and above zero.
        ((f64::from(count) * self.scale) as u32).max(1)
    }

    /// 200,000 files of 4 KiB in 1,000 folders, named as in ImageNet; made once.
    pub(crate) fn small(&self) -> Result<Tree> {
        let shape = TreeShape { files: self.scaled(200_000), per_folder: 200, sizes: (4096, 4096) };
        Tree::at(self.on_disk("small"), shape)
    }

    /// 12,000 files of 20 to 500 KiB.
    pub(crate) fn mixed(&self) -> Result<Tree> {
        let sizes = (20 << 10, 500 << 10);
        let shape = TreeShape { files: self.scaled(12_000), per_folder: 200, sizes };
        Tree::at(self.on_disk("mixed"), shape)
    }
}
