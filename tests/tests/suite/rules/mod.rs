//! The rules of CONTRIBUTING.md, checked against the sources of the whole repository.
//!
//! Each module checks a rule with two kinds of tests: the repository follows the rule, and a
//! planted breach is found. A message names the place, the rule and the remedy.

mod circles;
mod commands;
mod configuration;
mod edges;
mod fuzzed;
mod layers;
mod lints;
mod metrics;
mod openings;
mod paths;
mod promises;
mod prose;
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
