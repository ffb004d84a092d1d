//! Errors of decoding and of packing.
//!
//! Must hold: no error repeats the wrong bytes. Data of a newer version is distinguished from
//! damaged data.

use crate::path::InvalidPath;

/// Invalid bytes: the field, its offset and the problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} at byte {offset}: {problem}")]
pub struct DecodeError {
    /// The field of docs/FORMAT.md.
    pub field: &'static str,
    /// Its distance from the start of the object, in bytes.
    pub offset: u64,
    /// The problem.
    pub problem: &'static str,
}

impl DecodeError {
    pub(crate) fn new(field: &'static str, offset: usize, problem: &'static str) -> Self {
        Self { field, offset: offset as u64, problem }
    }

    /// Whether a newer version of this software may be able to read the bytes.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.problem, NEWER_VERSION | NEWER_FEATURE)
    }
}

pub(crate) const NEWER_VERSION: &str = "written by a newer version; update this program";
pub(crate) const NEWER_FEATURE: &str = "needs a feature this version lacks; update this program";

/// The reason why data can't be put into a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The open chunk has no room; seal it and use a fresh one.
    #[error("the chunk is full")]
    Full,
    /// The file is too large for any chunk; write it in parts.
    #[error("the file is larger than a chunk")]
    TooLarge,
    /// The file has too many parts for a header; use larger chunks.
    #[error(
        "the file has more parts than a header holds: with chunks of 4 MiB a file has at most some \
         84 GiB, with chunks of 64 MiB (a ChunkShape of libdiesel) 1.3 TiB"
    )]
    TooManyParts,
    /// The length of the source differs from the announced length.
    #[error("the source gave another number of bytes than it had promised")]
    LengthChanged,
    /// The version is impossible in a committed chunk.
    #[error("a rewritten file's version needs a stamp and an entry number below 65536")]
    Origin,
    /// The object would be empty; don't write it.
    #[error("there is nothing to write")]
    Empty,
    /// An invalid chunk size or alignment.
    #[error(
        "a chunk size is a power of two from 1 MiB to 64 MiB, an alignment one from 1 to 4096 bytes"
    )]
    Shape,
    /// An invalid path.
    #[error("the path is not one a dataset can hold")]
    Path(#[from] InvalidPath),
}
