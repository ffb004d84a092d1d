//! The rules of CONTRIBUTING.md, held against the sources of the whole repository.
//!
//! Each module keeps one rule and has two kinds of test: that the repository keeps the rule, and
//! that a planted breach of it is found. A breach says where, which rule, and what to do.

mod circles;
mod commands;
mod configuration;
mod edges;
mod fuzzed;
mod layers;
mod lints;
mod metrics;
mod openings;
mod packages;
mod paths;
mod promises;
mod sizes;
mod source;
mod spans;
mod words;
mod wrappers;

/// Fails with all breaches at once, one a line, so that one run is enough to mend them.
fn hold(rule: &str, breaches: &[String]) {
    let listed = breaches.join("\n  ");
    assert!(breaches.is_empty(), "{rule}\n  {listed}");
}
