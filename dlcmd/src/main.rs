//! The `dlcmd` program: a thin wrapper of the library, which tests can call.
//!
//! Must hold: the program has no logic; its exit code comes from the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    dl_runtime::allocator::bound();
    dlcmd::main()
}
