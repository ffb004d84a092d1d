//! The tests that cross crates, in one binary so that the crates are linked once.

#![forbid(unsafe_code)]

mod cli;
mod crash;
mod model;
mod process;
mod rules;
mod semantics;
