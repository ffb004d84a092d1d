//! What was read ahead, as single reads see it.
//!
//! Must hold: none is no failure: the file is read as usual then. That a file can't be had is told
//! apart from that no server can be reached.

use bytes::Bytes;

use crate::error::Error;

/// Files of a snapshot that may be there before they are asked for.
pub(crate) trait Ahead: std::fmt::Debug + Send + Sync {
    /// The file of this number, or why it can't be had; the outer error is that of the way to the
    /// servers. None for a file that is read as usual.
    fn read(&self, number: u32) -> Option<Result<Result<Bytes, Error>, Error>>;
}
