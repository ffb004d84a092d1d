//! Verification of a whole snapshot before a snapshot of foreign origin is trusted.
//!
//! Must hold: a verified snapshot answers every question without an error and like the fold.

use crate::checksum::Crc32c;
use crate::decode::is_zero;
use crate::error::DecodeError;
use crate::path::check;

use super::list::Names;
use super::names::wrong;
use super::read::Snapshot;
use super::section::SnapshotSection;
use super::tree::split;
use super::write::snapshot_hash;
use crate::layout::{PATH_MAX, SNAPSHOT_BUCKET_FILES, SNAPSHOT_BUCKET_LEN, SNAPSHOT_EXTENT_LEN};

/// Limits of visited buckets, on average for each file, and in addition for the first files
/// together. Hashes fill hardly more than one bucket.
const BUCKETS: u64 = 8;
const AT_FIRST: u64 = 10_000;

impl<B: AsRef<[u8]>> Snapshot<B> {
    /// Checks every byte: the sections' checksums, and their consistency. A verified snapshot
    /// answers every question without an error, and like the fold.
    ///
    /// # Errors
    /// The first problem.
    pub fn verify(&self) -> Result<(), DecodeError> {
        self.verify_checksums()?;
        self.verify_chunks()?;
        self.verify_index()?;
        self.verify_files()?;
        self.verify_extents()?;
        self.verify_directories()
    }

    /// Checks the sections' checksums.
    ///
    /// # Errors
    /// The first damaged section.
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
        let (mut before, mut is_first, mut looked_at) = (Vec::new(), true, 0);
        while let Some((number, path)) = names.next()? {
            check(path).map_err(|_| wrong("a path that no file has"))?;
            let file = self.file(number)?;
            let first = self.chunk(file.chunk).map(|(_, first)| first);
            if first == Some(number) {
                chunk = file.chunk;
                is_first = true;
            }
            let wrong = |problem| DecodeError::new("snapshot record", number.0 as usize, problem);
            if file.chunk != chunk {
                return Err(wrong("names another chunk than its number"));
            }
            if !is_first && sort_key(&before) >= sort_key(path) {
                return Err(wrong("files of a chunk are not sorted"));
            }
            is_first = false;
            before.clear();
            before.extend_from_slice(path);
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
            let found = self.find_counting(path, snapshot_hash(path), &mut looked_at)?;
            if found != Some(number) {
                return Err(wrong("is not found by its path"));
            }
            if looked_at > u64::from(number.0).saturating_mul(BUCKETS).saturating_add(AT_FIRST) {
                return Err(wrong("is found by far too many buckets, as those before it"));
            }
        }
        if bytes == self.file_bytes() {
            Ok(())
        } else {
            Err(DecodeError::new("file bytes", 0, "not the sum of the files"))
        }
    }

    /// Each file was found, so no file is missing: there must be no other entries either.
    fn verify_index(&self) -> Result<(), DecodeError> {
        let index = self.section(SnapshotSection::Index);
        let buckets = index.len() / SNAPSHOT_BUCKET_LEN;
        let wrong = |problem| DecodeError::new("snapshot index", index.len(), problem);
        if !index.len().is_multiple_of(SNAPSHOT_BUCKET_LEN) {
            return Err(wrong("the last bucket is cut off"));
        }
        let behind = (buckets as u64).checked_sub(self.home_buckets);
        let most = (self.files() as usize / SNAPSHOT_BUCKET_FILES).saturating_add(1) as u64;
        if behind.is_none_or(|behind| behind > most) {
            return Err(wrong("it has another number of buckets than its files need"));
        }
        let mut files = 0_usize;
        for bucket in (0..buckets as u64).map_while(|number| self.bucket(number)) {
            let count = bucket.count();
            if count > SNAPSHOT_BUCKET_FILES {
                return Err(wrong("a bucket holds more than it can"));
            }
            if bucket.goes_on() && count < SNAPSHOT_BUCKET_FILES {
                return Err(wrong("a bucket that has room goes on in the next one"));
            }
            files = files.saturating_add(count);
        }
        if files == self.files() as usize { Ok(()) } else { Err(wrong("it holds other files")) }
    }

    fn verify_extents(&self) -> Result<(), DecodeError> {
        let (rows, rest) =
            self.section(SnapshotSection::Extents).as_chunks::<SNAPSHOT_EXTENT_LEN>();
        let files = rows.iter().filter_map(|row| row.first_chunk()).copied();
        let mut files = files.map(u32::from_le_bytes);
        if rest.is_empty() && files.clone().is_sorted() && files.all(|file| file < self.files()) {
            Ok(())
        } else {
            Err(DecodeError::new("snapshot extents", 0, "are not those of files, in their order"))
        }
    }

    /// Checks that every file lies in exactly one run, in its directory, and that no directory is
    /// empty.
    fn verify_directories(&self) -> Result<(), DecodeError> {
        let wrong = |problem| DecodeError::new("snapshot directories", 0, problem);
        // The parent of each directory.
        let mut parents = vec![0_u32];
        let mut files = 0_u64;
        for number in 0..self.directories {
            let children = self.children(number)?.numbers();
            if number as usize >= parents.len() || children.start as usize != parents.len() {
                return Err(wrong("directories are not numbered level by level"));
            }
            let mut before = None;
            for child in children.clone() {
                let name = self.directory_name(child).ok_or(wrong("a name is not there"))?;
                if before.is_some_and(|before| before >= name) {
                    return Err(wrong("directories are not sorted by name"));
                }
                before = Some(name);
                parents.push(number);
            }
            let runs = self.runs_of(number)?;
            if number > 0 && runs.is_empty() && children.is_empty() {
                return Err(wrong("a directory holds nothing"));
            }
            if runs.is_empty() {
                continue;
            }
            let path = self.path_of_directory(number, &parents)?;
            let mut next = 0;
            for run in runs {
                if run.start < next || run.is_empty() {
                    return Err(wrong("runs are empty, or not in the order of their files"));
                }
                next = run.end;
                files = files.saturating_add(run.len() as u64);
                let mut names: Names<'_, B> = self.names(run)?;
                let mut before = Vec::new();
                while let Some((_, file)) = names.next()? {
                    let (directory, name) = split(file);
                    // No name is empty.
                    if before.as_slice() >= name {
                        return Err(wrong("files of a run are not sorted"));
                    }
                    before.clear();
                    before.extend_from_slice(name);
                    if directory != path {
                        return Err(wrong("a file is in another directory than its path says"));
                    }
                    if !children.is_empty() && self.child(number, name)?.is_some() {
                        return Err(wrong("a path is a file and a directory"));
                    }
                }
            }
        }
        if files == u64::from(self.files()) && parents.len() == self.directories as usize {
            Ok(())
        } else {
            Err(wrong("files or directories are missing"))
        }
    }

    /// The path of a directory with files; longer paths than files may have are an error.
    fn path_of_directory(&self, mut number: u32, parents: &[u32]) -> Result<Vec<u8>, DecodeError> {
        let mut components = Vec::new();
        let mut length = 0_usize;
        while number > 0 {
            let name = self.directory_name(number).unwrap_or_default();
            length = length.saturating_add(name.len()).saturating_add(1);
            if length > PATH_MAX {
                return Err(DecodeError::new("snapshot directories", 0, "a path is too long"));
            }
            components.push(name);
            number = parents.get(number as usize).copied().unwrap_or_default();
        }
        components.reverse();
        Ok(components.join(&b'/'))
    }
}

/// The sort key of files in a chunk: the folder, then the path.
fn sort_key(path: &[u8]) -> (&[u8], &[u8]) {
    (split(path).0, path)
}
