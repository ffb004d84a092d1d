//! The `dlcmd` program. All it does is in the library beside it, where tests reach it.
//!
//! Must hold: nothing is decided here: its exit code is that of the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    dl_runtime::allocator::bound();
    dlcmd::main()
}
