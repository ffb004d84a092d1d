//! The bytes of an archive: its format, its end, and limits.
//!
//! Must hold: the bytes between two members are limited. Each byte of an archive is read, so that a
//! compressed archive is checked, and the writer of a pipe ends.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::exit::Failure;
use crate::text::shown;

/// Bytes read at once from an archive.
pub(super) const BUFFER: usize = 1 << 20;

/// Maximum bytes between two members: headers, names and extensions.
const HEADERS_MAX: u64 = 1 << 20;

pub(super) const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Other formats: the first bytes, and the program that reads the format.
const COMPRESSED: [(&[u8], &str); 4] = [
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz"),
    (&[0x04, 0x22, 0x4d, 0x18], "lz4"),
    // A number for the size of blocks stands between.
    (b"BZh", "bzip2"),
];
/// The begin of a block in bzip2, behind its 4 first bytes.
const BZIP2_BLOCK: [u8; 6] = [0x31, 0x41, 0x59, 0x26, 0x53, 0x59];

pub(super) fn open(archive: &OsStr) -> Result<File, Failure> {
    let name = shown(Path::new(archive));
    File::open(archive).map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => Failure::not_found(format!("open {name}: it is not there")),
        _ => Failure::local(format!("open {name}"), why),
    })
}

/// The program that reads a compressed archive, by its first bytes.
pub(super) fn compressed_by(magic: &[u8]) -> Option<&'static str> {
    let (_, program) = COMPRESSED.iter().find(|(first, _)| magic.starts_with(first))?;
    let is_block = magic.get(4..).is_some_and(|rest| rest.starts_with(&BZIP2_BLOCK));
    (*program != "bzip2" || is_block).then_some(*program)
}

/// Reads to the end; whether all bytes are 0.
pub(super) fn is_zero(bytes: &mut impl Read) -> io::Result<bool> {
    let (mut buffer, mut is_zero) = (vec![0; BUFFER], true);
    loop {
        match bytes.read(&mut buffer)? {
            0 => return Ok(is_zero),
            read => is_zero &= buffer.iter().take(read).all(|byte| *byte == 0),
        }
    }
}

/// An archive that notes whether its end was read, and limits the bytes between members.
pub(super) struct ToEnd<'a> {
    bytes: &'a mut dyn Read,
    pub(super) is_over: bool,
    left: &'a Left,
}

/// Bytes left until the next member, if limited.
#[derive(Debug)]
pub(super) struct Left(Cell<Option<u64>>);

impl Default for Left {
    fn default() -> Self {
        Self(Cell::new(Some(HEADERS_MAX)))
    }
}

impl Left {
    /// Begins the limit again.
    pub(super) fn limit(&self) {
        self.0.set(Some(HEADERS_MAX));
    }

    /// Lifts the limit, for the bytes of a member.
    pub(super) fn lift(&self) {
        self.0.set(None);
    }

    fn take(&self, bytes: usize) -> io::Result<()> {
        let Some(left) = self.0.get() else { return Ok(()) };
        let left = left.checked_sub(bytes as u64);
        let why = || io::Error::other("the headers of its next member exceed 1 MiB");
        self.0.set(Some(left.ok_or_else(why)?));
        Ok(())
    }
}

impl<'a> ToEnd<'a> {
    pub(super) fn new(bytes: &'a mut dyn Read, left: &'a Left) -> Self {
        Self { bytes, is_over: false, left }
    }
}

impl Read for ToEnd<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.read(buffer)?;
        self.is_over |= read == 0 && !buffer.is_empty();
        self.left.take(read)?;
        Ok(read)
    }
}

/// A member that keeps the failure of its archive, and ends after Ctrl-C.
pub(super) struct Watched<'a, R> {
    entry: &'a mut R,
    shutdown: &'a dl_runtime::Shutdown,
    pub(super) failed: Option<io::Error>,
}

impl<'a, R> Watched<'a, R> {
    pub(super) fn new(entry: &'a mut R, shutdown: &'a dl_runtime::Shutdown) -> Self {
        Self { entry, shutdown, failed: None }
    }
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.shutdown.is_requested() {
            return Err(io::Error::other("stopped"));
        }
        let read = match self.entry.read(buffer) {
            Ok(0) if !buffer.is_empty() => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            read => read,
        };
        read.inspect_err(|why| {
            if why.kind() != io::ErrorKind::Interrupted {
                self.failed = Some(io::Error::new(why.kind(), why.to_string()));
            }
        })
    }
}
