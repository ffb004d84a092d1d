//! Checks all of a snapshot: before it is trusted that came from somewhere else.

use crate::checksum::Crc32c;
use crate::decode::is_zero;
use crate::error::DecodeError;
use crate::path::check;

use super::list::Names;
use super::names::wrong;
use super::read::Snapshot;
use super::section::SnapshotSection;
use crate::layout::{SNAPSHOT_BUCKET_FILES, SNAPSHOT_BUCKET_LEN};

impl<B: AsRef<[u8]>> Snapshot<B> {
    /// Checks every byte: the sections' checksums, and that they agree with each other. What passes
    /// answers every question about it without an error, and as the fold would.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn verify(&self) -> Result<(), DecodeError> {
        self.verify_checksums()?;
        self.verify_chunks()?;
        self.verify_files()?;
        self.verify_index()?;
        self.verify_directories()
    }

    /// Checks the sections' checksums: what passes is what was written.
    ///
    /// # Errors
    /// The first section that is damaged.
    pub fn verify_checksums(&self) -> Result<(), DecodeError> {
        let gaps = SnapshotSection::ALL.into_iter().map(Some).chain([None]);
        if !gaps.into_iter().all(|section| is_zero(self.padding(section))) {
            return Err(DecodeError::new("snapshot padding", 0, "must be zero"));
        }
        for section in SnapshotSection::ALL {
            if Crc32c::of(self.section(section)) != self.checksum(section) {
                let at = section as usize;
                return Err(DecodeError::new("section checksum", at, "does not match the bytes"));
            }
        }
        Ok(())
    }

    fn verify_chunks(&self) -> Result<(), DecodeError> {
        let wrong =
            |number: u32, problem| DecodeError::new("snapshot chunk", number as usize, problem);
        let (mut last, mut next) = (None, 0);
        for number in 0..self.chunks() {
            let (chunk, first) = self.chunk(number).ok_or(wrong(number, "is cut off"))?;
            if last.is_some_and(|last| last >= chunk.id) {
                return Err(wrong(number, "does not follow the one before it"));
            }
            if first.0 != next {
                return Err(wrong(number, "does not begin where the one before it ends"));
            }
            last = Some(chunk.id);
            let end = match number.checked_add(1).and_then(|next| self.chunk(next)) {
                Some((_, next)) => next.0,
                None => self.files(),
            };
            if end <= next || end > self.files() {
                return Err(wrong(number, "holds no files"));
            }
            next = end;
        }
        if next == self.files() {
            Ok(())
        } else {
            Err(wrong(self.chunks(), "files belong to no chunk"))
        }
    }

    fn verify_files(&self) -> Result<(), DecodeError> {
        let mut names = self.names(0..self.files())?;
        let (mut chunk, mut bytes) = (0, 0_u64);
        let mut before: Option<Vec<u8>> = None;
        while let Some((number, path)) = names.next()? {
            check(path).map_err(|_| wrong("a path that no file has"))?;
            let file = self.file(number)?;
            let first = self.chunk(file.chunk).map(|(_, first)| first);
            if first == Some(number) {
                chunk = file.chunk;
                before = None;
            }
            let wrong = |problem| DecodeError::new("snapshot record", number.0 as usize, problem);
            if file.chunk != chunk {
                return Err(wrong("names another chunk than its number"));
            }
            if before.is_some_and(|before| sort_key(&before) >= sort_key(path)) {
                return Err(wrong("files of a chunk are not sorted"));
            }
            before = Some(path.to_vec());
            let mut parts = 0_u64;
            for extent in self.extents(number)? {
                parts = parts.saturating_add(extent.length.into());
            }
            let whole = file.length.checked_sub(parts);
            let end = whole.and_then(|stored| stored.checked_add(file.offset.into()));
            if end.is_none_or(|end| end > u64::from(file.holder.object_length)) {
                return Err(wrong("lies outside of its chunk"));
            }
            bytes = bytes.saturating_add(file.length);
            if self.lookup(path)? != Some(number) {
                return Err(wrong("is not found by its path"));
            }
        }
        if bytes == self.file_bytes() {
            Ok(())
        } else {
            Err(DecodeError::new("file bytes", 0, "not the sum of the files"))
        }
    }

    /// Each file was found, so nothing is missing: there may be nothing else either.
    fn verify_index(&self) -> Result<(), DecodeError> {
        let index = self.section(SnapshotSection::Index);
        let buckets = index.len() / SNAPSHOT_BUCKET_LEN;
        let wrong = |problem| DecodeError::new("snapshot index", index.len(), problem);
        if !index.len().is_multiple_of(SNAPSHOT_BUCKET_LEN) {
            return Err(wrong("the last bucket is cut off"));
        }
        let mut files = 0_usize;
        for number in 0..buckets as u64 {
            let count = self.bucket(number).map_or(usize::MAX, |bucket| bucket.count());
            if count > SNAPSHOT_BUCKET_FILES {
                return Err(wrong("a bucket holds more than it can"));
            }
            files = files.saturating_add(count);
        }
        if files == self.files() as usize { Ok(()) } else { Err(wrong("it holds other files")) }
    }

    /// Every file lies in exactly one run, that of its directory, and every directory holds something.
    fn verify_directories(&self) -> Result<(), DecodeError> {
        let wrong = |problem| DecodeError::new("snapshot directories", 0, problem);
        let mut paths: Vec<Vec<u8>> = vec![Vec::new()];
        let mut files = 0_u64;
        for number in 0..self.directories {
            let path = paths.get(number as usize).cloned();
            let path = path.ok_or(wrong("a directory is in none"))?;
            if self.directory(&path)? != Some(number) {
                return Err(wrong("a directory is not found by its path"));
            }
            let mut next = 0;
            for run in self.runs_of(number)? {
                if run.start < next || run.is_empty() {
                    return Err(wrong("runs are empty, or not in the order of their files"));
                }
                next = run.end;
                files = files.saturating_add(run.len() as u64);
                let mut names: Names<'_, B> = self.names(run)?;
                while let Some((_, file)) = names.next()? {
                    if sort_key(file).0 != path {
                        return Err(wrong("a file is in another directory than its path says"));
                    }
                }
            }
            for child in self.children(number)?.numbers() {
                if child as usize != paths.len() {
                    return Err(wrong("directories are not numbered level by level"));
                }
                let name = self.directory_name(child).ok_or(wrong("a name is not there"))?;
                let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                let below = [&path, slash, name].concat();
                check(&below).map_err(|_| wrong("a path that no directory has"))?;
                paths.push(below);
            }
        }
        if files == u64::from(self.files()) && paths.len() == self.directories as usize {
            Ok(())
        } else {
            Err(wrong("files or directories are missing"))
        }
    }
}

/// What files of a chunk are sorted by: the folder, then the path.
fn sort_key(path: &[u8]) -> (&[u8], &[u8]) {
    let folder = path.iter().rposition(|byte| *byte == b'/').unwrap_or_default();
    (path.get(..folder).unwrap_or_default(), path)
}
