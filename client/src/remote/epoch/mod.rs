//! The files of an epoch from the servers (paper, 4.3): in whole chunks, those of one group while the
//! files of the group before it are handed out.
//!
//! Must hold: memory of two groups; a file that can't be had does not keep the next one from being
//! read; while no server answers, the error says so and the file can be asked for again.

mod chunk_bytes;
mod fetch;
mod group;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use fetch::{open, read_of_servers};
