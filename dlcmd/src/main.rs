//! The `dlcmd` program. All it does is in the library beside it, where tests reach it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    dl_runtime::allocator::bound();
    dlcmd::main()
}
