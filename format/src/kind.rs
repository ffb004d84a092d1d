//! The kinds of objects.
//!
//! Must hold: a number keeps its kind for ever, and an unknown number is refused.

use crate::layout::{KIND_CHUNK, KIND_PART, KIND_TOMBSTONE};

/// The kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// Files: their entries and their bytes.
    Chunk,
    /// An earlier part of a large file, without a name.
    Part,
    /// A list of deleted entries by chunk.
    Tombstone,
}

impl ObjectKind {
    pub(crate) fn from_number(number: u16) -> Option<Self> {
        match number {
            KIND_CHUNK => Some(Self::Chunk),
            KIND_PART => Some(Self::Part),
            KIND_TOMBSTONE => Some(Self::Tombstone),
            _ => None,
        }
    }

    pub(crate) fn number(self) -> u16 {
        match self {
            Self::Chunk => KIND_CHUNK,
            Self::Part => KIND_PART,
            Self::Tombstone => KIND_TOMBSTONE,
        }
    }
}
