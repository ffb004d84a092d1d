//! The read path of files and chunks.
//!
//! Must hold: small reads of a chunk become few large reads, and a failure costs its own files alone.

pub(crate) mod browse;
pub(crate) mod chunks;
pub(crate) mod executor;
pub(crate) mod files;
pub(crate) mod moved;
pub(crate) mod plan;
