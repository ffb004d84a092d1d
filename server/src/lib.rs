//! The DIESEL server: verifies and stores chunks, keeps the metadata over them, and turns small
//! reads into large ones (paper, 4).
//!
//! Must hold: nothing is kept only in a process. Any server over the same stores answers any
//! request, and one that is killed loses nothing that was acknowledged.

#![forbid(unsafe_code)]

mod admission;
mod answer;
mod auth;
mod browse;
mod catalog;
mod chunks;
mod commit;
pub mod config;
mod connections;
mod error;
mod executor;
mod frames;
mod gate;
mod grpc;
mod headers;
mod http;
mod identity;
mod inflight;
mod leftovers;
mod listener;
mod live;
mod memory;
mod metrics;
mod moved;
mod names;
mod parts;
mod plan;
mod purge;
mod read;
mod rebuild;
mod recover;
mod replaced;
mod reservation;
mod roll;
mod room;
mod serve;
mod service;
mod settings;
mod shown;
mod snapshot;
mod socket;
mod source;
mod spill;
mod survey;
mod tasks;
#[cfg(test)]
mod testing;
mod tls;
mod turns;
mod unsent;
mod verify;

pub use auth::People;
pub use error::Error;
pub use http::HttpPort;
pub use parts::{Limits, Parts, dataset_of};
pub use replaced::Replaced;
pub use roll::Roll;
pub use room::Room;
pub use serve::{Doors, prepare, start};
pub use settings::{Live, Settings};
pub use source::{Followed, Source, SourceError};
pub use tls::{Certificate, open_tls};
