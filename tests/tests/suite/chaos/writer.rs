//! A writer that writes, overwrites and deletes below its own folder, and overwrites shared files.
//!
//! Must hold: each change is reported to the history. A file with an unacknowledged change is not
//! changed again. Shared files are never deleted, and their bytes name the writer.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use dl_format::{Attributes, FilePath};
use dl_tests::dice::Dice;
use dl_tests::history::{Content, HistoryChecker, PendingWrite};
use dl_tests::program::{Ended, dlcmd, run};
use dl_tests::shift::ClockShift;
use libdiesel::Dataset;

/// The number of shared files: few, so that writers often collide.
const SHARED: usize = 3;

/// The client of a writer.
pub(super) enum Access {
    /// libdiesel, in this process.
    Library(Dataset),
    /// dlcmd.
    Programs(Programs),
}

/// Runs dlcmd with a shifted clock.
pub(super) struct Programs {
    servers: String,
    variables: Vec<(String, String)>,
    folder: PathBuf,
}

/// The count of all puts by dlcmd.
static PUTS: AtomicU64 = AtomicU64::new(0);

impl Programs {
    /// A dlcmd client with `folder` for its files.
    pub(super) fn new(servers: &[String], clock: &ClockShift, folder: PathBuf) -> Self {
        Self { servers: servers.join(","), variables: clock.variables(), folder }
    }

    fn run(&self, arguments: &[&str]) -> Result<Ended> {
        let mut command = dlcmd()?;
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        run(command.args(["--server", &self.servers]).args(arguments))
    }

    /// Puts files; returns whether all were acknowledged.
    fn put(&self, files: &[(FilePath, Vec<u8>)]) -> Result<bool> {
        // Each put has a new modification time: dlcmd skips files with equal size and time.
        let count = PUTS.fetch_add(1, Ordering::Relaxed);
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(count);
        for (path, bytes) in files {
            let file = self.folder.join(path.to_string());
            fs::create_dir_all(file.parent().context("a file has a folder")?)?;
            fs::write(&file, bytes)?;
            File::options().write(true).open(&file)?.set_modified(modified)?;
        }
        let ended = self.run(&["put", &self.folder.display().to_string(), "dl://chaos"])?;
        fs::remove_dir_all(&self.folder)?;
        Ok(ended.code == 0)
    }

    /// Deletes a file; returns whether the delete was acknowledged. "Not found" is an error if the
    /// file must exist.
    fn delete(&self, path: &FilePath, is_there: bool) -> Result<bool> {
        let ended = self.run(&["rm", &format!("dl://chaos/{path}")])?;
        ensure!(ended.code != 2, "{ended:?}");
        ensure!(ended.code != 3 || !is_there, "{path} is there: {ended:?}");
        Ok(ended.code == 0 || ended.code == 3)
    }
}

pub(super) struct Writer {
    access: Access,
    history: Arc<HistoryChecker>,
    folder: u8,
    dice: Dice,
    own: BTreeSet<FilePath>,
    made: u32,
    round: u32,
}

impl Writer {
    /// Continues with the files of the history below `folder`.
    pub(super) fn new(
        access: Access,
        history: Arc<HistoryChecker>,
        folder: u8,
        dice: Dice,
    ) -> Self {
        let below = format!("{folder}/");
        let mut own: BTreeSet<FilePath> = history.paths().into_iter().collect();
        own.retain(|path| path.as_bytes().starts_with(below.as_bytes()));
        Self { access, history, folder, dice, own, made: 0, round: 0 }
    }

    /// Puts or deletes files; returns the count of acknowledged shared files.
    pub(super) fn step(&mut self) -> Result<u32> {
        self.round += 1;
        let paths = self.choose()?;
        if self.dice.once_in(4) {
            self.delete(&paths)?;
            return Ok(0);
        }
        let mut files = Vec::new();
        for path in paths {
            let length = self.dice.below(20_000);
            self.own.insert(path.clone());
            files.push((path, self.dice.bytes(length)));
        }
        files.push(self.shared()?);
        self.put(&files)
    }

    /// New paths, and known paths without unacknowledged changes.
    fn choose(&mut self) -> Result<Vec<FilePath>> {
        let is_known = |path: &&FilePath| self.history.is_settled(path);
        let known: Vec<FilePath> = self.own.iter().filter(is_known).cloned().collect();
        let mut paths: Vec<FilePath> =
            (0..4.min(known.len())).map(|_| self.dice.pick(&known).clone()).collect();
        for _ in 0..1 + self.dice.below(12) {
            self.made += 1;
            let (folder, made) = (self.folder, self.made);
            paths.push(FilePath::new(format!("{folder}/{}/{made}", made % 7))?);
        }
        paths.sort_unstable();
        paths.dedup();
        Ok(paths)
    }

    /// A random shared file with new bytes.
    fn shared(&self) -> Result<(FilePath, Vec<u8>)> {
        let path = FilePath::new(format!("shared/{}", self.dice.below(SHARED)))?;
        let line = format!("{path} by writer {} in round {}\n", self.folder, self.round);
        Ok((path, line.repeat(1 + self.dice.below(500)).into_bytes()))
    }

    fn put(&mut self, files: &[(FilePath, Vec<u8>)]) -> Result<u32> {
        let begin = |(path, bytes): &(FilePath, Vec<u8>)| {
            self.history.begin(path, Some(Content::of(bytes)))
        };
        let begun: Vec<PendingWrite> = files.iter().map(begin).collect();
        let acknowledged = match &self.access {
            Access::Library(dataset) => put(dataset, files)?,
            Access::Programs(programs) => vec![programs.put(files)?; files.len()],
        };
        let mut shared = 0;
        for (begun, is_acknowledged) in begun.into_iter().zip(acknowledged) {
            if is_acknowledged {
                shared += u32::from(!self.own.contains(begun.path()));
                self.history.acknowledge(begun);
            }
        }
        Ok(shared)
    }

    fn delete(&self, paths: &[FilePath]) -> Result<()> {
        let known: Vec<FilePath> =
            paths.iter().filter(|path| self.own.contains(*path)).cloned().collect();
        let begin = |path| self.history.begin(path, None);
        match &self.access {
            Access::Library(dataset) => {
                let begun: Vec<PendingWrite> = known.iter().map(begin).collect();
                if dataset.delete(&known).is_ok() {
                    begun.into_iter().for_each(|begun| self.history.acknowledge(begun));
                }
            }
            Access::Programs(programs) => {
                for path in &known {
                    let is_there = self.history.check(path, None, self.history.now()).is_err();
                    let begun = begin(path);
                    if programs.delete(path, is_there)? {
                        self.history.acknowledge(begun);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Puts files; returns for each whether the write was acknowledged.
fn put(dataset: &Dataset, files: &[(FilePath, Vec<u8>)]) -> Result<Vec<bool>> {
    let mut taken = Vec::new();
    for (path, bytes) in files {
        taken.push(dataset.put(path, Attributes::default(), bytes).is_ok());
    }
    let flushed = dataset.flush()?;
    let is_failed = |path| flushed.failed.iter().any(|write| write.paths.contains(path));
    let files = files.iter().zip(taken);
    Ok(files.map(|((path, _), is_taken)| is_taken && !is_failed(path)).collect())
}
