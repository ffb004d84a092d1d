//! Comparison of contents: the bytes of a local file with its record, and for `put --checksum` with
//! the bytes stored in the dataset.
//!
//! Must hold: a file counts as whole only if all its bytes were read back and equal its source.
//! Memory is bounded. Servers without an answer are not taken for damage.

use std::io::{self, Read, Write};
use std::sync::Arc;

use dl_format::{Crc32c, FilePath, FileRecord};
use dl_runtime::Shutdown;
use libdiesel::{Dataset, Kind, ReadItem};

use crate::exit::Failure;
use crate::local::{Entry, Problem, ReadFailure, Root};

/// Bytes read at once to compute a checksum.
const CHECKSUM_BUFFER: usize = 1 << 20;
/// A larger file is read back alone, piece by piece.
const WHOLE_BYTES: u64 = 4 << 20;

/// A local file with the size, time and mode of the dataset's file.
#[derive(Debug)]
pub(super) struct SameAttributes {
    pub(super) root: Arc<Root>,
    pub(super) path: FilePath,
    pub(super) entry: Entry,
    pub(super) record: FileRecord,
}

/// The state of stored bytes.
#[derive(Debug)]
pub(super) enum Stored {
    /// The bytes equal the source.
    Whole,
    /// The bytes are damaged or lost.
    Damaged,
    /// The state can't be determined now.
    Unknown(libdiesel::Error),
}

/// Reads files of the dataset back, many with one request, and returns the state of each.
pub(super) fn read_back(
    dataset: &Dataset,
    files: &[SameAttributes],
    shutdown: &Shutdown,
) -> Result<Vec<Stored>, Failure> {
    let mut stored: Vec<Stored> = files.iter().map(|_| Stored::Whole).collect();
    let mut small: Vec<usize> = Vec::new();
    // Copies in a fast store are bypassed: they prove nothing about the chunk store.
    let item = |file: &SameAttributes| {
        let (path, record) = (file.path.clone(), Some(file.record));
        ReadItem { path, record, pass_copies: true, check_headers: true }
    };
    let mut ended = Ok(());
    for (number, (file, stored)) in files.iter().zip(&mut stored).enumerate() {
        match file.record.length {
            0..=WHOLE_BYTES => small.push(number),
            _ => {
                let read = dataset.read_to(item(file), &mut Discard { shutdown }).map(|_| ());
                *stored = judge(read)?;
            }
        }
    }
    // Adjacent files are read with one range.
    small.sort_unstable_by_key(|number| {
        files.get(*number).map(|file| (file.record.holder.chunk, file.record.offset))
    });
    let items = small.iter().filter_map(|number| files.get(*number)).map(item).collect();
    dataset.read_files(items, &mut |number, read| {
        let stored = small.get(number).and_then(|number| stored.get_mut(*number));
        let (Some(stored), true) = (stored, ended.is_ok()) else { return };
        // The library compared the bytes with the checksum of the source.
        match judge(read.map(|_| ())) {
            Ok(judged) => *stored = judged,
            Err(failure) => ended = Err(failure),
        }
    });
    ended.map(|()| stored)
}

/// Exhaustive on purpose: a new kind needs a decision.
fn judge(read: Result<(), libdiesel::Error>) -> Result<Stored, Failure> {
    let Err(error) = read else { return Ok(Stored::Whole) };
    match error.kind() {
        Kind::Corrupt | Kind::NotFound => Ok(Stored::Damaged),
        Kind::Unavailable | Kind::Internal | Kind::Invalid | Kind::Conflict | Kind::Denied => {
            Ok(Stored::Unknown(error))
        }
        Kind::Unreachable
        | Kind::NeedsRecovery
        | Kind::Cancelled
        | Kind::TimedOut
        | Kind::Full
        | Kind::Local => Err(error.into()),
    }
}

/// A sink for the bytes of a large file, which fails after a stop.
struct Discard<'a> {
    shutdown: &'a Shutdown,
}

impl Write for Discard<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.shutdown.is_requested() {
            return Err(io::Error::other("stopped"));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the bytes of a local file match `record`.
pub(super) fn has_checksum(
    root: &Root,
    path: &[u8],
    entry: Entry,
    record: &FileRecord,
) -> Result<bool, Problem> {
    let mut file = root.open_file(path, entry)?;
    let most = usize::try_from(file.size()).unwrap_or(usize::MAX).min(CHECKSUM_BUFFER);
    let mut buffer = vec![0; most];
    let mut crc = Crc32c::default();
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(crc == record.crc),
            Ok(read) => {
                let read = buffer.get(..read).unwrap_or_default();
                crc = crc.then(Crc32c::of(read), read.len() as u64);
            }
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            // A changing file is sent in its later state.
            Err(_) if matches!(file.failure(), Some(ReadFailure::Changed | ReadFailure::Size)) => {
                return Ok(false);
            }
            Err(why) => return Err(Problem::Failed(why)),
        }
    }
}
