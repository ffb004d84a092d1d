//! What can be wrong with bytes, and with what a caller asks to be packed.
//!
//! Must hold: no error repeats the bytes that are wrong; what a newer version may be able to read is
//! told apart from what is damaged.

use crate::path::InvalidPath;

/// Bytes that are not what they should be: which field, where, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} at byte {offset}: {problem}")]
pub struct DecodeError {
    /// The field of docs/FORMAT.md.
    pub field: &'static str,
    /// Its distance from the start of the object, in bytes.
    pub offset: u64,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl DecodeError {
    pub(crate) fn new(field: &'static str, offset: usize, problem: &'static str) -> Self {
        Self { field, offset: offset as u64, problem }
    }

    /// Whether a newer version of this software might read the bytes.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.problem, NEWER_VERSION | NEWER_FEATURE)
    }
}

pub(crate) const NEWER_VERSION: &str = "written by a newer version; update this program";
pub(crate) const NEWER_FEATURE: &str = "needs a feature this version lacks; update this program";

/// What can't be put into a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The open chunk has no room; seal it and use a fresh one.
    #[error("the chunk is full")]
    Full,
    /// A file of this size never fits into one chunk; write it in parts.
    #[error("the file is larger than a chunk")]
    TooLarge,
    /// A file of so many parts fits no header; use larger chunks.
    #[error(
        "the file has more parts than a header holds: with chunks of 4 MiB a file has at most some \
         84 GiB, with chunks of 64 MiB (a ChunkShape of libdiesel) 1.3 TiB"
    )]
    TooManyParts,
    /// The source gave another number of bytes than it had promised.
    #[error("the source gave another number of bytes than it had promised")]
    LengthChanged,
    /// A version that no committed chunk can have given a file.
    #[error("a rewritten file's version needs a stamp and an entry number below 65536")]
    Origin,
    /// An object would hold nothing; don't write it.
    #[error("there is nothing to write")]
    Empty,
    /// A size or an alignment that no dataset can have.
    #[error(
        "a chunk size is a power of two from 1 MiB to 64 MiB, an alignment one from 1 to 4096 bytes"
    )]
    Shape,
    /// A path that breaks the rules.
    #[error("the path is not one a dataset can hold")]
    Path(#[from] InvalidPath),
}
