//! Random trees in a mount beside their model: the same trees in the local file system.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::{rounds, skip, tell};
use libdiesel::ChunkShape;
use rustix::fs::{RawDir, SeekFrom, seek};

use super::{Scene, no_mount, open_direct};

/// Operations on each tree.
const OPERATIONS: usize = 3_000;

/// Longest read: more than a part of a large file.
const READ_MAX: usize = 3 << 20;

/// A name of any bytes, mostly short.
fn name(dice: &Dice) -> PathBuf {
    let length = if dice.once_in(20) { 255 } else { 1 + dice.below(6) };
    let byte = |byte: u8| if byte == 0 || byte == b'/' { b'a' } else { byte };
    let bytes: Vec<u8> = dice.bytes(length).into_iter().map(byte).collect();
    let is_dots = bytes == b"." || bytes == b"..";
    std::ffi::OsString::from_vec(if is_dots { b"a".to_vec() } else { bytes }).into()
}

/// A tree: files of no bytes, of a few, of several parts; and a folder of many names.
struct Tree {
    /// The paths below the root; the root is empty.
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Tree {
    fn fill(root: &Path, dice: &Dice) -> Result<Self> {
        let mut tree = Self { folders: vec![PathBuf::new()], files: Vec::new() };
        for _ in 0..30 {
            let folder = dice.pick(&tree.folders).join(name(dice));
            // A folder without files is not in the dataset.
            if fs::create_dir(root.join(&folder)).is_ok() {
                tree.add(root, folder.join(name(dice)), &dice.bytes(9))?;
                tree.folders.push(folder);
            }
        }
        for _ in 0..100 {
            let file = dice.pick(&tree.folders).join(name(dice));
            let length = match dice.below(10) {
                0 => 0,
                1 => dice.below(5 << 20),
                _ => dice.below(20_000),
            };
            tree.add(root, file, &dice.bytes(length))?;
        }
        let many = tree.folders.last().cloned().unwrap_or_default();
        for number in 0..rounds(3_000, 70_000) {
            let file = many.join(format!("file {number}"));
            tree.add(root, file, b"x")?;
        }
        Ok(tree)
    }

    /// Adds a file, unless its place is taken.
    fn add(&mut self, root: &Path, file: PathBuf, bytes: &[u8]) -> Result<()> {
        match File::create_new(root.join(&file)) {
            Err(why) if why.kind() == ErrorKind::AlreadyExists => Ok(()),
            created => {
                io::Write::write_all(&mut created?, bytes)?;
                self.files.push(file);
                Ok(())
            }
        }
    }

    /// A path: of a file, of a folder, or of nothing.
    fn any(&self, dice: &Dice) -> PathBuf {
        match dice.below(8) {
            0..4 => dice.pick(&self.files).clone(),
            4..6 => dice.pick(&self.folders).clone(),
            6 => dice.pick(&self.folders).join(name(dice)),
            _ => dice.pick(&self.files).join(name(dice)),
        }
    }
}

/// What a program can know of a path.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Folder(Vec<(Vec<u8>, bool)>),
    File { length: u64, mode: u32, mtime: (i64, i64) },
    Bytes(Vec<u8>),
}

type Outcome = std::result::Result<Seen, Option<i32>>;

fn stat(path: &Path) -> io::Result<Seen> {
    let found = fs::symlink_metadata(path)?;
    if found.is_dir() {
        return Ok(Seen::Folder(Vec::new()));
    }
    let mtime = (found.mtime(), found.mtime_nsec());
    Ok(Seen::File { length: found.len(), mode: found.mode(), mtime })
}

fn list(path: &Path) -> io::Result<Seen> {
    let entry = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.file_name().into_vec(), entry.file_type()?.is_dir()))
    };
    let mut entries = fs::read_dir(path)?.map(entry).collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    Ok(Seen::Folder(entries))
}

/// The bytes from an offset on, up to the end of the file.
fn read(file: &File, from: u64, length: usize) -> io::Result<Seen> {
    let (mut bytes, mut done) = (vec![0; length], 0);
    loop {
        match file.read_at(&mut bytes[done..], from + done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    bytes.truncate(done);
    Ok(Seen::Bytes(bytes))
}

/// The names of a folder from a position on, with the positions behind them.
fn names_from(folder: &File, position: u64) -> Result<Vec<(Vec<u8>, u64)>> {
    seek(folder, SeekFrom::Start(position))?;
    let mut buffer = Vec::with_capacity(2_000);
    let (mut listing, mut names) = (RawDir::new(folder, buffer.spare_capacity_mut()), Vec::new());
    while let Some(entry) = listing.next() {
        let entry = entry?;
        names.push((entry.file_name().to_bytes().to_vec(), entry.next_entry_cookie()));
    }
    Ok(names)
}

/// Lists a folder from some of its positions on.
fn seek_in(folder: &Path, dice: &Dice) -> Result<()> {
    let folder = File::open(folder)?;
    let all = names_from(&folder, 0)?;
    for _ in 0..3 {
        let place = dice.below(all.len());
        let rest = names_from(&folder, all[place].1)?;
        ensure!(rest == all[place + 1..], "another listing from {} on", all[place].1);
    }
    Ok(())
}

/// The same operation in the mount and in the model.
fn compare(scene: &Scene, tree: &Tree, dice: &Dice) -> Result<()> {
    let path = tree.any(dice);
    let (model, mount) = (scene.path("src").join(&path), scene.mnt().join(&path));
    let (name, seen): (_, [io::Result<Seen>; 2]) = match dice.below(10) {
        0..3 => ("stat", [stat(&model), stat(&mount)]),
        // Long folders are listed in part.
        3 => ("list", [list(&model), list(&mount)]),
        4 if mount.is_dir() && dice.once_in(4) => return seek_in(&mount, dice),
        _ => {
            // O_DIRECT is no mode for folders.
            let is_direct = dice.once_in(3) && !model.is_dir();
            let length = model.metadata().map_or(0, |found| found.len());
            let from = dice.below(length as usize + 10) as u64;
            let most = if dice.once_in(10) { READ_MAX } else { 5_000 };
            let count = dice.below(most);
            let opened = if is_direct { open_direct(&mount) } else { File::open(&mount) };
            let model = File::open(&model).and_then(|file| read(&file, from, count));
            ("read", [model, opened.and_then(|file| read(&file, from, count))])
        }
    };
    let [model, mount]: [Outcome; 2] = seen.map(|seen| seen.map_err(|why| why.raw_os_error()));
    let shown = |outcome: &Outcome| match outcome {
        Ok(Seen::Bytes(bytes)) => format!("{} bytes", bytes.len()),
        other => format!("{other:?}"),
    };
    ensure!(model == mount, "{name} {path:?}: {}, in the mount {}", shown(&model), shown(&mount));
    Ok(())
}

/// Keeps S-81: also across servers.
#[test]
fn a_mount_is_as_its_model() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    for seed in 0..rounds(4, 60) {
        let dice = Dice::new(seed);
        let mut filled = None;
        let scene = Scene::shaped(ChunkShape::new(1 << 20, 64)?, |root| {
            filled = Some(Tree::fill(root, &dice)?);
            Ok(())
        })?;
        let tree = filled.context("a tree was made")?;
        // Memory for all, and for less.
        scene.mount("dl://ds", &["--memory", if dice.once_in(2) { "256MiB" } else { "16MiB" }])?;
        for operation in 0..OPERATIONS {
            if dice.once_in(OPERATIONS / 2) {
                scene.kill("server")?;
            }
            compare(&scene, &tree, &dice)
                .with_context(|| format!("seed {seed}, operation {operation}"))?;
        }
        let bytes = tree.files.iter().map(|file| file.as_os_str().as_bytes().len()).sum::<usize>();
        tell(format_args!("seed {seed}: {} files, {bytes} bytes of paths", tree.files.len()));
        scene.umount()?;
    }
    Ok(())
}
