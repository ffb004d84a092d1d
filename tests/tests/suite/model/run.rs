//! A random history: two servers, a client, a map.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_format::layout;
use dl_tests::dice::Dice;
use libdiesel::admin::{Finding, PurgeRequest, RecoverRequest, VerifyRequest};
use libdiesel::format::Deletions;
use libdiesel::{
    Attributes, ChunkShape, Client, Dataset, DatasetName, DirPath, FilePath, Kind, ListEntry,
    SnapshotCache, StatItem,
};
use tempfile::TempDir;

use super::plain::{Plain, Stands};
use super::servers::{Chaos, Metadata, SETTLED, Servers};

/// Only a few paths, so that a history uses each often; some paths are folders of other paths.
const PATHS: [&[u8]; 22] = [
    b"a",
    b"a/b",
    b"a/b/c",
    b"a-b",
    b"a.b",
    b"a0",
    b"b",
    b"b/1",
    b"b/2",
    b"b/3/x",
    b"b/3/y",
    b"\xff\xfe",
    b"\xff\xfe/z",
    b"new\nline",
    b"sp ace",
    "grün/blau".as_bytes(),
    b"\\",
    b"e/m/p/t/y",
    b"c/d",
    b"c/d/e",
    b"c",
    b"~",
];

pub(super) struct Run {
    servers: Servers,
    client: Client,
    dataset: Dataset,
    name: DatasetName,
    plain: Plain,
    dice: Dice,
    snapshots: TempDir,
    /// Count of objects moved or removed by purges.
    purged: u64,
}

impl Run {
    pub(super) fn start(seed: u64, metadata: Metadata, chaos: Option<Chaos>) -> Result<Self> {
        let servers = Servers::start(metadata, chaos)?;
        let client = servers.client()?;
        let name = DatasetName::new("model")?;
        let dataset = client.create_dataset(&name, shape()?)?;
        let (plain, dice) = (Plain::default(), Dice::new(seed));
        let snapshots = tempfile::tempdir()?;
        Ok(Self { servers, client, dataset, name, plain, dice, snapshots, purged: 0 })
    }

    /// Returns the count of purged objects, and checks that each server has answered its share of
    /// requests.
    pub(super) fn end(self) -> Result<u64> {
        let answered = self.servers.answered()?;
        let (least, most) = (answered.iter().min(), answered.iter().max());
        let (least, most) = least.zip(most).context("there are servers")?;
        // With faults, the client avoids a failing server for a moment.
        let is_even = self.servers.fail() || least * 4 > *most;
        ensure!(*least > 0 && is_even, "the servers answered {answered:?}");
        Ok(self.purged)
    }

    pub(super) fn steps(&mut self, count: usize) -> Result<()> {
        for number in 0..count {
            self.servers.set_chaos(true);
            let what = self.step();
            self.servers.set_chaos(false);
            let what = what.with_context(|| format!("step {number}"))?;
            self.compare().with_context(|| format!("after step {number}, {what}"))?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<&'static str> {
        match self.dice.below(100) {
            0..45 => self.put().map(|()| "put"),
            45..60 => self.delete().map(|()| "delete"),
            60..66 => self.delete_folder().map(|()| "delete a folder"),
            66..76 => self.stat(&self.dataset).map(|()| "stat"),
            76..86 => self.get().map(|()| "get"),
            86..90 => self.list(&self.dataset).map(|()| "list"),
            90..92 => self.purge().map(|()| "purge"),
            92..95 => self.recover().map(|()| "recover"),
            95..98 => self.lose_metadata().map(|()| "lose the metadata"),
            _ => self.start_over().map(|()| "delete the dataset"),
        }
    }

    fn put(&mut self) -> Result<()> {
        let mut files = BTreeMap::new();
        for _ in 0..1 + self.dice.below(6) {
            let length = match self.dice.below(20) {
                0..4 => 0,
                4..16 => self.dice.below(10_000),
                16..19 => self.dice.below(600_000),
                _ => (2 << 20) + self.dice.below(2 << 20),
            };
            files.insert(self.dice.pick(&PATHS).to_vec(), self.dice.bytes(length));
        }
        for (path, data) in &files {
            let attributes = Attributes { mode: 0o640, mtime: data.len() as i64 };
            if self.dice.once_in(4) {
                let length = data.len() as u64;
                let mut reader = data.as_slice();
                self.dataset.put_reader(&file(path)?, attributes, length, &mut reader)?;
            } else {
                self.dataset.put(&file(path)?, attributes, data)?;
            }
        }
        let flushed = self.dataset.flush()?.check()?;
        ensure!(flushed.files == files.len() as u64, "{} acknowledged", flushed.files);
        self.plain.files.extend(files);
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        let paths: Vec<_> = (0..4).map(|_| self.dice.pick(&PATHS).to_vec()).collect();
        let typed = paths.iter().map(|path| file(path)).collect::<Result<Vec<_>>>()?;
        let deleted = self.dataset.delete(&typed)?;
        let is_file = |path: &&Vec<u8>| matches!(self.plain.at(path), Stands::File(_));
        let mut there: Vec<_> = paths.iter().filter(is_file).cloned().collect();
        there.sort();
        there.dedup();
        ensure!(deleted.deleted == there.len() as u64, "{deleted:?}, expected {there:?}");
        self.plain.files.retain(|path, _| !there.contains(path));
        Ok(())
    }

    fn delete_folder(&mut self) -> Result<()> {
        let folder = *self.dice.pick(&[&b"a"[..], b"b", b"b/3", b"c", b"\xff\xfe"]);
        let prefix = [folder, b"/"].concat();
        let mut deletions = Deletions::default();
        let listing = self.dataset.list(&DirPath::new(folder.to_vec())?, true, false);
        if self.plain.list(folder).is_empty() {
            // Every server knows of the folder's absence.
            let error = listing.err().context("a folder that is not there was listed")?;
            ensure!(matches!(error.kind(), Kind::NotFound | Kind::Invalid), "{error:?}");
            return Ok(());
        }
        for entry in listing? {
            if let ListEntry::File(_, Some(record)) = entry? {
                deletions.insert(&record.version);
            }
        }
        self.dataset.delete_versions(deletions)?;
        let seen = self.plain.visible();
        let is_gone = |path: &Vec<u8>| path.starts_with(&prefix) && seen.contains_key(path);
        self.plain.files.retain(|path, _| !is_gone(path));
        Ok(())
    }

    fn stat(&self, dataset: &Dataset) -> Result<()> {
        let paths = PATHS.iter().map(|path| file(path)).collect::<Result<Vec<_>>>()?;
        for (path, item) in PATHS.iter().zip(dataset.stat_many(&paths)?) {
            let is_right = match (self.plain.at(path), &item) {
                (Stands::File(bytes), StatItem::File(record)) => {
                    record.length == bytes.len() as u64
                        && record.attributes.mtime == bytes.len() as i64
                        && record.attributes.mode == 0o640
                        && record.crc == libdiesel::format::Crc32c::of(bytes)
                }
                (Stands::Folder, StatItem::Folder) | (Stands::Nothing, StatItem::Missing) => true,
                _ => false,
            };
            ensure!(is_right, "{:?} is {item:?}", String::from_utf8_lossy(path));
        }
        Ok(())
    }

    fn get(&mut self) -> Result<()> {
        let path = *self.dice.pick(&PATHS);
        let one = self.dataset.get(&file(path)?);
        self.is_right(path, one)?;
        let paths = PATHS.iter().map(|path| file(path)).collect::<Result<Vec<_>>>()?;
        for (path, got) in PATHS.iter().zip(self.dataset.get_many(&paths)?) {
            self.is_right(path, got)?;
        }
        Ok(())
    }

    fn is_right(&self, path: &[u8], got: Result<bytes::Bytes, libdiesel::Error>) -> Result<()> {
        let is_right = match (self.plain.at(path), &got) {
            (Stands::File(expected), Ok(bytes)) => expected == bytes,
            (Stands::Folder, Err(error)) => error.kind() == Kind::Conflict,
            (Stands::Nothing, Err(error)) => error.kind() == Kind::NotFound,
            _ => false,
        };
        let got = got.map(|bytes| bytes.len());
        ensure!(is_right, "{:?} gives {got:?}", String::from_utf8_lossy(path));
        Ok(())
    }

    fn list(&self, dataset: &Dataset) -> Result<()> {
        for folder in [&b""[..], b"a", b"a/b", b"b", b"c", b"e/m"] {
            let expected = self.plain.list(folder);
            if expected.is_empty() && !folder.is_empty() {
                continue;
            }
            let mut found = Vec::new();
            for entry in dataset.list(&DirPath::new(folder.to_vec())?, false, true)? {
                found.push(match entry? {
                    ListEntry::File(path, _) => path.as_bytes().to_vec(),
                    ListEntry::Folder(path) => [path.as_bytes(), b"/"].concat(),
                });
            }
            ensure!(found == expected, "{found:?} is listed, not {expected:?}");
        }
        Ok(())
    }

    fn recover(&mut self) -> Result<()> {
        let request = RecoverRequest { dataset: Some(self.name.clone()), since: None };
        let recovered = self.client.recover(request, &mut |_| ())?;
        ensure!(recovered.iter().all(|one| one.problems.is_empty()), "{recovered:?}");
        Ok(())
    }

    /// All servers crash and the metadata are lost; new servers start.
    fn lose_metadata(&mut self) -> Result<()> {
        self.servers.set_chaos(false);
        self.servers.begin_anew()?;
        self.client = self.servers.client()?;
        self.servers.set_chaos(true);
        if let Err(error) = self.client.dataset(&self.name) {
            ensure!(error.kind() == Kind::NeedsRecovery, "{error:?}");
        }
        self.client.recover(RecoverRequest { dataset: None, since: None }, &mut |_| ())?;
        self.dataset = self.client.dataset(&self.name)?;
        Ok(())
    }

    /// Purges settled objects and checks the dataset with verify.
    fn purge(&mut self) -> Result<()> {
        self.servers.set_chaos(false);
        if !self.servers.fail() {
            std::thread::sleep(SETTLED);
        }
        let request = PurgeRequest {
            dataset: Some(self.name.clone()),
            grace: Duration::ZERO,
            dry_run: false,
            force: false,
        };
        let purged = self.client.purge(request, &mut |_| ())?;
        ensure!(purged.iter().all(|one| one.problems.is_empty()), "{purged:?}");
        self.purged += purged.iter().map(|one| one.rewritten + one.removed).sum::<u64>();
        let (request, mut found) =
            (VerifyRequest { dataset: self.name.clone(), checksums: true }, Vec::new());
        self.client.verify(&request, &mut |_| (), &mut |one| found.push(one))?;
        let hidden = self.plain.files.len() - self.plain.visible().len();
        let is_hidden = |one: &Finding| one.problem.contains(" is a file and a folder;");
        ensure!(found.iter().all(is_hidden), "{found:?}");
        ensure!(found.len() == hidden, "{hidden} files are hidden, not {found:?}");
        self.servers.set_chaos(true);
        Ok(())
    }

    fn start_over(&mut self) -> Result<()> {
        self.client.delete_dataset(&self.name)?;
        let old = self.dataset.clone();
        self.dataset = self.client.create_dataset(&self.name, shape()?)?;
        self.plain = Plain::default();
        for path in PATHS {
            let dead = old.stat(&file(path)?).err().context("a dead dataset answers")?;
            ensure!(dead.kind() == Kind::NotFound, "{dead:?}");
        }
        Ok(())
    }

    /// Compares the map with the servers' answers and with a snapshot.
    fn compare(&self) -> Result<()> {
        self.compare_with(&self.dataset).context("by the servers")?;
        let cache = SnapshotCache::new(self.snapshots.path(), 10 << 20);
        let reader = self.client.dataset(&self.name)?.with_snapshot(&cache)?;
        ensure!(reader.snapshot().is_some(), "the reader has no snapshot");
        self.compare_with(&reader).context("by a snapshot")?;
        self.stat(&reader).and_then(|()| self.list(&reader)).context("by a snapshot")
    }

    fn compare_with(&self, dataset: &Dataset) -> Result<()> {
        let mut listed = Vec::new();
        for entry in dataset.list(&DirPath::ROOT, true, false)? {
            match entry? {
                ListEntry::File(path, _) => listed.push(path),
                ListEntry::Folder(path) => anyhow::bail!("{path} in a listing of files"),
            }
        }
        let mut found = BTreeMap::new();
        for (path, bytes) in listed.iter().zip(dataset.get_many(&listed)?) {
            found.insert(path.as_bytes().to_vec(), bytes?.to_vec());
        }
        let expected = self.plain.visible();
        let brief = |files: &BTreeMap<Vec<u8>, Vec<u8>>| {
            let files = files.iter();
            let line = |(path, data): (&Vec<u8>, &Vec<u8>)| {
                format!("{} {}", String::from_utf8_lossy(path), data.len())
            };
            files.map(line).collect::<Vec<_>>()
        };
        ensure!(found == expected, "{:?} is there, not {:?}", brief(&found), brief(&expected));
        Ok(())
    }
}

/// The smallest chunks, so that a few files make many chunks.
fn shape() -> Result<ChunkShape> {
    Ok(ChunkShape::new(layout::CHUNK_SIZE_MIN, layout::ALIGNMENT_DEFAULT)?)
}

fn file(path: &[u8]) -> Result<FilePath> {
    Ok(FilePath::new(path.to_vec())?)
}
