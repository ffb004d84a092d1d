//! A dataset in the memory of an agent, and the same files in the file system.
//!
//! Must hold: all chunks are in the agent before the first read. The agent ends with the bench.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::place::Place;
use super::{DATASET, Reads, paths};
use crate::setup::{Server, Settings, bytes, shuffle};
use crate::workload::agent::node::{Node, put};

/// A dataset and its copy.
pub(super) struct Files {
    pub(super) place: Place,
    pub(super) folder: PathBuf,
    /// Folder of the copy.
    pub(super) local: PathBuf,
    /// Random order.
    pub(super) order: Vec<String>,
    pub(super) length: usize,
    _node: Node,
    pub(super) server: Server,
}

impl Files {
    /// Puts `files` files of `length` bytes, and fills the agent.
    pub(super) fn new(settings: &Settings, name: &str, files: u32, length: usize) -> Result<Self> {
        let folder = settings.on_disk(name);
        let server = Server::start(&folder.join("data"))?;
        put(&server.address, DATASET, files, length)?;
        let (local, mut order) = (folder.join("local"), paths(files));
        write_all(&local, &order, &bytes(length))?;
        shuffle(&mut order, 7);
        let memory = u64::from(files) * length as u64 * 2 + (64 << 20);
        let node = Node::start(DATASET, &server.address, DATASET, &folder, memory, "oneshot")?;
        node.wait()?;
        node.wait_for_huge_pages()?;
        let place = Place::new(&server.address, DATASET, &folder)?.of_task(DATASET);
        Ok(Self { place, folder, local, order, length, _node: node, server })
    }

    pub(super) fn reads(&self, readers: usize) -> Reads<'_> {
        Reads { order: &self.order, length: self.length, readers }
    }
}

/// Writes files of the same bytes below a folder.
pub(super) fn write_all(root: &Path, files: &[String], data: &[u8]) -> Result<()> {
    for path in files {
        let path = root.join(path);
        if let Some(above) = path.parent().filter(|above| !above.exists()) {
            fs::create_dir_all(above)?;
        }
        fs::write(path, data)?;
    }
    Ok(())
}
