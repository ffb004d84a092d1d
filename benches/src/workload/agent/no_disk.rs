//! Jobs whose local disk is of no use, and files alone from a disk, each beside a job without a disk.
//!
//! Must hold: all sides have the same memory, and a store without a limit.

use std::path::Path;

use anyhow::{Result, ensure};

use super::disk::{IN_MEMORY, LENGTH, Setup, copies, epoch, wait_for_copies};
use super::reader::{Command, Kind, ReaderProcess};
use crate::measure::{Bar, Bench, in_turns};

/// A quota without room for a chunk, as a part of the dataset.
const NO_ROOM: f64 = 0.0;

/// Duration of random reads.
const MILLISECONDS: u64 = 2_000;

impl Setup<'_> {
    /// Epochs with disks that are full or fail, beside no disk.
    pub(super) fn useless(&self) -> Result<Vec<Bench>> {
        let (full, failing) = (self.tier("tier-full")?, self.filled("tier-failing")?);
        for copy in copies(&failing)? {
            // A read of a folder is an error.
            std::fs::remove_file(&copy)?;
            std::fs::create_dir(&copy)?;
        }
        let names = ["with a full disk", "with a failing disk", "without a disk"];
        let [full, failing, without] = in_turns(self.settings.runs(), names, |number| {
            let rate = |tier: Option<(&Path, f64)>| {
                let node = self.node("useless", self.bytes(IN_MEMORY), tier)?;
                let mut reader = ReaderProcess::start(&node.reader(LENGTH, 0))?;
                reader.run(Command::Ready)?;
                epoch(&mut reader, 2 * number, 0)?;
                let rate = epoch(&mut reader, 2 * number + 1, 0)?.rate();
                ensure!(node.status()?.bytes_from_disk == 0, "the disk gave chunks");
                anyhow::Ok(rate)
            };
            Ok([rate(Some((&full, NO_ROOM)))?, rate(Some((&failing, 1.3)))?, rate(None)?])
        })?;
        let settings = self.settings(&format!(
            "{IN_MEMORY} of them fit into memory; second epochs, without a pause; a server without a limit"
        ));
        let bench = |name: &str, side| {
            let (name, sides) = (format!("agent disk: {name}"), [side, without.clone()]);
            Bench::new(name, &settings, "files/s", sides, Bar::AtLeastTimes(0.95))
        };
        Ok(vec![bench("a full disk", full), bench("a failing disk", failing)])
    }

    /// Reads in no order with a disk that has all chunks, beside no disk.
    pub(super) fn alone(&self) -> Result<Vec<Bench>> {
        let tier = self.filled("tier-alone")?;
        let names = ["get_into by number, with all chunks on disk", "the same without a disk"];
        let sides = in_turns(self.settings.runs(), names, |number| {
            let rate = |tier: Option<(&Path, f64)>| {
                let node = self.node("alone", self.bytes(IN_MEMORY), tier)?;
                let mut reader = ReaderProcess::start(&node.reader(LENGTH, number))?;
                reader.run(Command::Ready)?;
                // Memory is full afterwards.
                epoch(&mut reader, 0, 0)?;
                reader.run(Command::Read(Kind::Get, MILLISECONDS / 4))?;
                anyhow::Ok(reader.run(Command::Read(Kind::Get, MILLISECONDS))?.rate())
            };
            Ok([rate(Some((&tier, 1.3)))?, rate(None)?])
        })?;
        let settings = self.settings(&format!(
            "{IN_MEMORY} of them fit into memory; files in random order, one at a time; a server on the \
             same machine"
        ));
        Ok(vec![Bench::new("agent disk: files alone", settings, "files/s", sides, Bar::None)])
    }

    /// A folder with all chunks.
    fn filled(&self, name: &str) -> Result<std::path::PathBuf> {
        let tier = self.tier(name)?;
        let node = self.node("filled", self.bytes(IN_MEMORY), Some((&tier, 1.3)))?;
        node.prefetch()?;
        wait_for_copies(&node, self.chunks)?;
        Ok(tier)
    }
}
