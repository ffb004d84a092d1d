//! Helpers of the end-to-end tests: servers in this process or as programs, a client without
//! retries, folders of files. All tests are modules of one binary, `tests/suite`: each additional
//! binary would link every crate again.

#![forbid(unsafe_code)]

pub mod azure;
pub mod ca;
pub mod cluster;
pub mod dice;
pub mod etcd;
pub mod folder;
pub mod history;
pub mod http;
mod listen;
pub mod net;
pub mod point;
pub mod program;
pub mod proxy;
pub mod relay;
pub mod s3;
pub mod shift;
mod skipped;
pub mod slow_link;
pub mod wire;
pub mod workspace;

use std::fmt::Display;
use std::io::Write;

pub use self::skipped::skip;

/// Whether long loops and large sizes are enabled (`make torture`).
pub fn is_torture() -> bool {
    std::env::var_os("DIESEL_TORTURE").is_some()
}

/// Prints a measurement or another note of a test. nextest shows the output of a passing test only
/// if its name contains `heavy`.
pub fn tell(text: impl Display) {
    // A closed stdout must not fail a test.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// `short` in a usual run, `long` under `make torture`.
pub fn rounds<T>(short: T, long: T) -> T {
    if is_torture() { long } else { short }
}
