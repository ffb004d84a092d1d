//! Workloads on the real programs, each measured beside something known, in one run.
//!
//! Must hold: both sides of a ratio take turns and do the same work on the same data, cold starts
//! are not counted on one side only, and what a figure means is printed with it.

#![forbid(unsafe_code)]

mod measure;
mod setup;
mod workload;

pub use measure::{Bar, Bench, Machine, Side, print, print_json};
pub use setup::{Options, Settings};
pub use workload::{
    AgentParts, AgentReader, PeersParts, PeersReader, Reader, Stream, Worker, Workload, read,
    read_cached, stream, trace, work,
};
