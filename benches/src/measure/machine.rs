//! Hardware and software under the figures.
//!
//! Must hold: every field comes from the kernel. The file system is the data folder's.

use std::fmt;
use std::fs::read_to_string;
use std::path::Path;
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use serde::Serialize;

/// This machine.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    processor: String,
    cores: usize,
    memory_gib: u64,
    kernel: String,
    /// File system of the data folder.
    file_system: String,
}

impl Machine {
    /// Reads the facts of the machine from /proc; `folder` holds the data.
    ///
    /// # Errors
    /// /proc lacks a fact.
    pub fn look(folder: &Path) -> Result<Self> {
        let field = |file: &str, name: &str| -> Result<String> {
            let text = read_to_string(file).with_context(|| format!("read {file}"))?;
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let value = line.with_context(|| format!("find {name} in {file}"))?;
            Ok(value.trim_start_matches([' ', '\t', ':']).trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal")?;
        let memory: u64 = memory.trim_end_matches(" kB").parse().context("read the memory")?;
        Ok(Self {
            processor: field("/proc/cpuinfo", "model name")?,
            cores: available_parallelism().context("count the cores")?.get(),
            memory_gib: memory >> 20,
            kernel: read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            file_system: file_system(folder)?,
        })
    }
}

/// The type and options of the mount of `folder`.
fn file_system(folder: &Path) -> Result<String> {
    let folder = folder.canonicalize()?;
    let mounts = read_to_string("/proc/mounts").context("read /proc/mounts")?;
    let holding = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let at = fields.next().filter(|at| folder.starts_with(at))?;
        Some((at.len(), format!("{} ({})", fields.next()?, fields.next()?)))
    });
    let nearest = holding.max_by_key(|(length, _)| *length);
    Ok(nearest.context("find the file system")?.1)
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, cores, memory_gib, kernel, file_system } = self;
        write!(
            f,
            "machine: {processor}, {cores} cores, {memory_gib} GiB, Linux {kernel}, data on \
             {file_system}"
        )
    }
}
