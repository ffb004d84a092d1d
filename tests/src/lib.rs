//! Helpers of the end-to-end tests: servers in this process or as programs, a client without
//! retries, folders of files. All tests are modules of one binary, `tests/suite`: each additional
//! binary would link every crate again.

#![forbid(unsafe_code)]

pub mod azure;
pub mod ca;
pub mod cgroup;
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
pub mod scene;
pub mod shift;
mod skipped;
pub mod slow_link;
pub mod wire;
pub mod workspace;

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_runtime::Deadline;

pub use self::skipped::skip;

/// The time limit of [`soon`].
const TIMEOUT: Duration = Duration::from_secs(60);

/// Prints a measurement or another note of a test. nextest shows the output of a passing test only
/// if its name contains `heavy`.
pub fn tell(text: impl Display) {
    // A closed stdout must not fail a test.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// `short` in a usual run, `long` under `make torture`.
pub fn rounds<T>(short: T, long: T) -> T {
    if std::env::var_os("DIESEL_TORTURE").is_some() { long } else { short }
}

/// Waits until a condition holds.
///
/// # Errors
/// As the condition, or when it does not hold within a minute.
pub fn soon(what: impl Display, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let clock = cluster::clock();
    let deadline = Deadline::after(&*clock, TIMEOUT);
    while !is_so()? {
        ensure!(!deadline.remaining(&*clock).is_zero(), "not within {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
