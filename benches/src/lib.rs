//! Workloads on the real programs, each beside a known reference in the same run.
//!
//! Must hold: both sides of a ratio take turns and do the same work on the same data. Cold starts never count
//! on one side only. The report prints each figure with its meaning.

#![forbid(unsafe_code)]

mod measure;
mod setup;
mod workload;

pub use measure::{Bar, Bench, Machine, Side, print, print_json};
pub use setup::{Options, Settings};
pub use workload::{AgentPart, MountPart, PeersPart, Workload, play};
