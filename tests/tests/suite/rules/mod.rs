//! The rules of CONTRIBUTING.md, checked against the sources of the whole repository.
//!
//! Each module tests that the repository follows a rule. Where a rule could pass unnoticed, a
//! planted breach must be found. A message names the place, the rule and the remedy.

mod circles;
mod commands;
mod configuration;
mod edges;
mod fuzzed;
mod layers;
mod lints;
mod metrics;
mod names;
mod openings;
mod paths;
mod promises;
mod prose;
mod pure;
mod sizes;
mod source;
mod spans;
mod words;
mod wrappers;

/// Fails with all breaches at once, a line each.
fn hold(rule: &str, breaches: &[String]) {
    let listed = breaches.join("\n  ");
    assert!(breaches.is_empty(), "{rule}\n  {listed}");
}
