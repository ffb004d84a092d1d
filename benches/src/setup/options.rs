//! Options of the program.
//!
//! Must hold: the folders for data and for read files are fresh, and end with the settings.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use tempfile::TempDir;

use super::signals::end_with_all;
use super::{Tree, TreeShape};

/// Options of all workloads.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Size of each workload relative to the size that the bars assume
    #[arg(long, global = true, default_value_t = 1.0)]
    scale: f64,

    /// Runs of each side; the sides take turns
    #[arg(long, global = true, default_value_t = 3)]
    runs: usize,

    /// Folder of the server data and the source trees, on a file system like that of a server
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,

    /// Folder of the read files, on a tmpfs
    #[arg(long, global = true, value_name = "DIR", default_value = "/dev/shm")]
    tmpfs: PathBuf,

    /// Folder for the curves as SVG
    #[arg(long, global = true, value_name = "DIR")]
    plots: Option<PathBuf>,

    /// Print one JSON object for each bench
    #[arg(long, global = true)]
    pub json: bool,

    /// Exit with status 1 for a missed bar
    #[arg(long, global = true)]
    pub check: bool,
}

/// Options, and the folders; drop removes the folders.
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
    /// A folder can't be made, or a size is invalid.
    pub fn new(options: &Options) -> Result<Self> {
        let Options { scale, runs, dir, tmpfs, plots, .. } = options;
        ensure!(*runs > 0, "--runs must be at least 1");
        ensure!(scale.is_finite() && *scale > 0.0, "--scale must be above 0");
        let fresh = |dir: &Path| {
            let made = tempfile::Builder::new().prefix("dl-bench-").tempdir_in(dir);
            made.with_context(|| format!("make a folder in {}", dir.display()))
        };
        let (disk, tmpfs, plots) = (fresh(dir)?, fresh(tmpfs)?, plots.clone());
        // Folders of single programs are removed with the folder of the bench.
        let _ = tempfile::env::override_temp_dir(disk.path());
        end_with_all(vec![disk.path().to_owned(), tmpfs.path().to_owned()])?;
        Ok(Self { scale: *scale, runs: *runs, disk, tmpfs, plots })
    }

    /// Folder of the data.
    pub fn folder(&self) -> &Path {
        self.disk.path()
    }

    /// Folder of the curves, with `--plots`.
    pub(crate) fn plots(&self) -> Option<&Path> {
        self.plots.as_deref()
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs
    }

    /// Path of a new folder on disk.
    pub(crate) fn on_disk(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    /// Path of a new folder in memory.
    pub(crate) fn in_memory(&self, name: &str) -> PathBuf {
        self.tmpfs.path().join(name)
    }

    /// `count` times the scale.
    pub(crate) fn scaled(&self, count: u32) -> u32 {
        // A count is above zero and far below the limit of a double.
        ((f64::from(count) * self.scale) as u32).max(1)
    }

    /// Tree of 200,000 files of 4 KiB in 1,000 folders, named as in ImageNet; made once.
    pub(crate) fn small(&self) -> Result<Tree> {
        let shape = TreeShape { files: self.scaled(200_000), per_folder: 200, sizes: (4096, 4096) };
        Tree::at(self.on_disk("small"), shape)
    }

    /// Tree of 12,000 files of 20 to 500 KiB.
    pub(crate) fn mixed(&self) -> Result<Tree> {
        let sizes = (20 << 10, 500 << 10);
        let shape = TreeShape { files: self.scaled(12_000), per_folder: 200, sizes };
        Tree::at(self.on_disk("mixed"), shape)
    }
}
