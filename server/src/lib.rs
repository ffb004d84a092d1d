//! The DIESEL server: verifies and stores chunks, keeps the metadata over them, and turns small
//! reads into large ones (paper, 4).
//!
//! Must hold: nothing is kept only in a process. Any server over the same stores answers any
//! request, and one that is killed loses nothing that was acknowledged.

#![forbid(unsafe_code)]

mod answer;
mod browse;
mod catalog;
mod commit;
pub mod config;
mod error;
mod executor;
mod guard;
mod headers;
mod identity;
mod mend;
mod names;
mod parts;
mod read;
mod recover;
mod room;
mod serve;
mod service;

pub use error::Error;
pub use parts::{Limits, Parts};
pub use room::Room;
pub use serve::{prepare, serve};
