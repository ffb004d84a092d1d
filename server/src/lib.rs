//! The DIESEL server: verifies and stores chunks, keeps their metadata, and merges small reads (paper, 4).
//!
//! Must hold: no state is only in a process. Any server over the same stores answers any request, and a killed
//! server loses no acknowledged write.

#![forbid(unsafe_code)]

mod answers;
mod api;
mod auth;
pub mod config;
mod datasets;
mod error;
mod housekeeping;
mod live;
mod memory;
mod metrics;
mod net;
mod read;
mod recovery;
mod serve;
mod settings;
mod shared;
mod snapshot;
mod source;
mod status;
mod tasks;
#[cfg(test)]
mod testing;
mod write;

pub use api::http::HttpPort;
pub use auth::People;
pub use error::Error;
pub use net::tls::{Certificate, open_tls};
pub use serve::{Doors, prepare, start};
pub use settings::{Live, Settings};
pub use shared::context::{Limits, ServerContext, dataset_of};
pub use shared::disk_reserve::DiskReserve;
pub use shared::name_cache::NameCache;
pub use shared::replaced::Replaced;
pub use source::{Followed, Source, SourceError};
