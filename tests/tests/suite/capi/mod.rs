//! The library for C: its header, its symbols, and programs in C and C++ against real servers.

mod header;
mod programs;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use dl_tests::program::program;

/// The folder in which `make programs` installs the library.
fn prefix() -> Result<PathBuf> {
    let prefix = program("dlcmd")?.with_file_name("capi");
    ensure!(prefix.join("lib/libdiesel.so").exists(), "no {}: make programs", prefix.display());
    Ok(prefix)
}
