//! The files of an epoch from the servers (paper, 4.3), in whole chunks. The chunks of a group are
//! fetched during the reading of the group before.
//!
//! Must hold: memory holds at most two groups. A failed file does not block the next file. Without
//! a server, a read gives an error, and may be repeated later.

mod chunk_bytes;
mod fetch;
mod group;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use fetch::{EpochReader, read_separately};
