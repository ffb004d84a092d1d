//! Source trees, named as ImageNet's: `n01440764/n01440764_10026.JPEG`.
//!
//! Must hold: a shape gives the same names, sizes and bytes on every machine. All files are written
//! back before a measurement, so that no side pays for the write-back.

use std::fs::{File, create_dir_all, read};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use dl_runtime::{Random, SeededRandom};

/// Number and sizes of the files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TreeShape {
    pub(crate) files: u32,
    pub(crate) per_folder: u32,
    /// Smallest and largest size in bytes.
    pub(crate) sizes: (usize, usize),
}

/// A tree on disk, with its files in the page cache.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    shape: TreeShape,
}

impl Tree {
    /// Opens the tree, and makes it for the first caller.
    pub(crate) fn at(root: PathBuf, shape: TreeShape) -> Result<Self> {
        let tree = Self { root, shape };
        if !tree.root.exists() {
            tree.make().with_context(|| format!("make the files in {}", tree.root.display()))?;
        }
        Ok(tree)
    }

    pub(crate) fn files(&self) -> u32 {
        self.shape.files
    }

    /// Paths below the root, in creation order.
    pub(crate) fn paths(&self) -> impl Iterator<Item = String> {
        let per_folder = self.shape.per_folder;
        (0..self.shape.files).map(move |file| {
            let folder = 1_440_764 + file / per_folder * 7;
            format!("n{folder:08}/n{folder:08}_{}.JPEG", 10_026 + file % per_folder * 13)
        })
    }

    fn make(&self) -> Result<()> {
        let (least, most) = self.shape.sizes;
        let random = SeededRandom::new(1);
        let pool = bytes(most + (1 << 20));
        let mut made = PathBuf::new();
        for path in self.paths() {
            let path = self.root.join(path);
            let folder = path.parent().unwrap_or(Path::new(""));
            if folder != made {
                create_dir_all(folder)?;
                folder.clone_into(&mut made);
            }
            let length = least + random.u64() as usize % (most - least + 1);
            let start = random.u64() as usize % (1 << 20);
            File::create_new(&path)?.write_all(&pool[start..start + length])?;
        }
        // A later write-back would count on a side of a ratio.
        rustix::fs::sync();
        Ok(())
    }
}

/// Incompressible bytes.
pub(crate) fn bytes(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    SeededRandom::new(7).fill(&mut bytes);
    bytes
}

/// Shuffles `items`; the same seed gives the same order.
pub(crate) fn shuffle<T>(items: &mut [T], seed: u64) {
    let random = SeededRandom::new(seed);
    for last in (1..items.len()).rev() {
        items.swap(last, random.u64() as usize % (last + 1));
    }
}

/// Opens, reads and closes files of 4 KiB in sequence.
pub(crate) fn read_files(root: &Path, paths: &[String]) -> Result<()> {
    for path in paths {
        ensure!(read(root.join(path))?.len() == 4096, "{path} has another length");
    }
    Ok(())
}
