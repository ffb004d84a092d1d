//! What the tests that cross crates share: servers in this process and as processes, a client
//! without retries, folders to put and compare. The tests themselves stand in one binary,
//! `tests/suite`, because each further one links every crate again.

#![forbid(unsafe_code)]

pub mod azure;
pub mod book;
pub mod ca;
pub mod cluster;
pub mod dice;
pub mod etcd;
pub mod folder;
pub mod http;
pub mod line;
mod listen;
pub mod net;
pub mod point;
pub mod program;
pub mod proxy;
pub mod relay;
pub mod s3;
pub mod shift;
mod skipped;
pub mod wire;
pub mod workspace;

use std::fmt::Display;
use std::io::Write;

pub use self::skipped::skip;

/// Whether the long loops and large sizes were asked for (`make torture`).
pub fn is_torture() -> bool {
    std::env::var_os("DIESEL_TORTURE").is_some()
}

/// Tells whoever reads the output of a test, such as what was measured. nextest shows that of tests
/// which pass where their name says `heavy`.
pub fn tell(text: impl Display) {
    // A test does not fail because nobody listens.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// `short` in a usual run, `long` in `make torture`.
pub fn rounds<T>(short: T, long: T) -> T {
    if is_torture() { long } else { short }
}
