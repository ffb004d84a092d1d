//! Workloads on the real programs, each measured beside a known reference in one run.
//!
//! Must hold: both sides of a ratio take turns and do the same work on the same data. Cold starts
//! never count on one side only. The report prints the meaning of each figure with the figure.

#![forbid(unsafe_code)]

mod measure;
mod setup;
mod workload;

pub use measure::{Bar, Bench, Machine, Side, print, print_json};
pub use setup::{Options, Settings};
pub use workload::{AgentPart, PeersPart, Workload, play};
