//! The end-to-end tests, in a single binary so that the crates are linked once.

#![forbid(unsafe_code)]

mod agent;
mod buckets;
mod capi;
mod chaos;
mod cli;
mod copying;
mod crash;
mod doors;
mod model;
mod mount;
mod order;
mod process;
mod purge;
mod rules;
mod semantics;
mod snapshots;
