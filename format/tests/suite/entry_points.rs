//! The fuzz targets' entry points, run also by toolchains without a fuzzer.

#[expect(unreachable_pub, reason = "it is the library of another package")]
#[path = "../../../fuzz/src/lib.rs"]
mod fuzz;

pub(crate) use fuzz::{DECODERS, repair, repair_snapshot};
