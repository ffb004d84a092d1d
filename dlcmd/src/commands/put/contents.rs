//! Comparisons of contents: the bytes of a file here with its record, and for `put --checksum` with
//! the bytes that the dataset gives back.
//!
//! Must hold: a file counts as whole only when all its bytes were read back, and they are those of
//! its source; memory is bounded; servers that can't answer now are not taken for damage.

use std::io::{self, Read, Write};
use std::sync::Arc;

use dl_format::{Crc32c, FilePath, FileRecord};
use dl_runtime::Shutdown;
use libdiesel::{Dataset, Kind, ReadItem};

use crate::exit::Failure;
use crate::local::{Entry, Problem, Root, Trouble};

/// Bytes that are read at once to checksum a file.
const CHECKSUM_BUFFER: usize = 1 << 20;
/// A file of more bytes is read back alone, piece by piece.
const WHOLE_BYTES: u64 = 4 << 20;

/// A file that has the size, time and mode of the file in the dataset.
#[derive(Debug)]
pub(super) struct Alike {
    pub(super) root: Arc<Root>,
    pub(super) path: FilePath,
    pub(super) entry: Entry,
    pub(super) record: FileRecord,
}

/// What became of the bytes that were stored.
#[derive(Debug)]
pub(super) enum Stored {
    /// They are those that were put.
    Whole,
    /// They are damaged or lost.
    Broken,
    /// Nobody can tell now.
    Unknown(libdiesel::Error),
}

/// Reads files of the dataset back, many with one request, and gives what became of each.
///
/// # Errors
/// Those that end the command.
pub(super) fn read_back(
    dataset: &Dataset,
    files: &[Alike],
    shutdown: &Shutdown,
) -> Result<Vec<Stored>, Failure> {
    let mut stored: Vec<Stored> = files.iter().map(|_| Stored::Whole).collect();
    let mut small: Vec<usize> = Vec::new();
    // What a copy in a fast store says is not what there will be when that copy is gone.
    let item = |file: &Alike| {
        let (path, record) = (file.path.clone(), Some(file.record));
        ReadItem { path, record, pass_copies: true, check_headers: true }
    };
    let mut ended = Ok(());
    for (number, (file, stored)) in files.iter().zip(&mut stored).enumerate() {
        match file.record.length {
            0..=WHOLE_BYTES => small.push(number),
            _ => {
                let read = dataset.read_to(item(file), &mut Nowhere { shutdown }).map(|_| ());
                *stored = judge(read)?;
            }
        }
    }
    // Those that lie together are read as one.
    small.sort_unstable_by_key(|number| {
        files.get(*number).map(|file| (file.record.holder.chunk, file.record.offset))
    });
    let items = small.iter().filter_map(|number| files.get(*number)).map(item).collect();
    dataset.read_files(items, &mut |number, read| {
        let stored = small.get(number).and_then(|number| stored.get_mut(*number));
        let (Some(stored), true) = (stored, ended.is_ok()) else { return };
        // The library has compared the bytes with the checksum, which is that of the source.
        match judge(read.map(|_| ())) {
            Ok(judged) => *stored = judged,
            Err(failure) => ended = Err(failure),
        }
    });
    ended.map(|()| stored)
}

/// Exhaustive on purpose: a new kind must decide.
fn judge(read: Result<(), libdiesel::Error>) -> Result<Stored, Failure> {
    let Err(error) = read else { return Ok(Stored::Whole) };
    match error.kind() {
        Kind::Corrupt | Kind::NotFound => Ok(Stored::Broken),
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

/// Where the bytes of a large file go, until the command is to stop.
struct Nowhere<'a> {
    shutdown: &'a Shutdown,
}

impl Write for Nowhere<'_> {
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

/// Whether the file's bytes are those of `record`.
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
            // It will be sent as it is then.
            Err(_) if matches!(file.trouble(), Some(Trouble::Changed | Trouble::Size)) => {
                return Ok(false);
            }
            Err(why) => return Err(Problem::Failed(why)),
        }
    }
}
