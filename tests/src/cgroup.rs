//! Cgroups with a memory limit, for processes of tests.
//!
//! Must hold: a cgroup ends with its test, when its processes have ended.

use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// Files of a version of cgroups.
#[derive(Debug)]
struct Files {
    root: &'static str,
    limit: &'static str,
    kills: &'static str,
    peak: &'static str,
}

const VERSIONS: [Files; 2] = [
    Files {
        root: "/sys/fs/cgroup",
        limit: "memory.max",
        kills: "memory.events",
        peak: "memory.peak",
    },
    Files {
        root: "/sys/fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        kills: "memory.oom_control",
        peak: "memory.max_usage_in_bytes",
    },
];

/// A cgroup for a test.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
    files: &'static Files,
}

impl Cgroup {
    /// A cgroup with a memory limit in bytes; none if the machine refuses.
    pub fn new(limit: u64) -> Option<Self> {
        VERSIONS.iter().find_map(|files| {
            let name = format!("diesel-test-{}", std::process::id());
            let folder = Path::new(files.root).join(name);
            fs::create_dir(&folder).ok()?;
            let cgroup = Self { folder, files };
            cgroup.set(files.limit, limit).ok()?;
            // Some kernels count no swap.
            let _ = cgroup.set("memory.swap.max", 0);
            let _ = cgroup.set("memory.memsw.limit_in_bytes", limit);
            Some(cgroup)
        })
    }

    fn set(&self, file: &str, number: impl Display) -> Result<()> {
        let mut file = OpenOptions::new().write(true).open(self.folder.join(file))?;
        Ok(file.write_all(number.to_string().as_bytes())?)
    }

    /// The file for the ids of processes that join.
    pub fn processes(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Moves a process; memory that the process already has stays with the earlier cgroup.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn add(&self, process: impl Display) -> Result<()> {
        self.set("cgroup.procs", process)
    }

    /// Processes killed for lack of memory.
    ///
    /// # Errors
    /// When the kernel doesn't count such processes.
    pub fn kills(&self) -> Result<u64> {
        let events = fs::read_to_string(self.folder.join(self.files.kills))?;
        let line = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Ok(line.context("the file has a line oom_kill")?.trim().parse()?)
    }

    /// The largest memory so far, in bytes.
    ///
    /// # Errors
    /// When the kernel doesn't measure the peak.
    pub fn peak(&self) -> Result<u64> {
        Ok(fs::read_to_string(self.folder.join(self.files.peak))?.trim().parse()?)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            // The kernel still removes the killed processes.
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
