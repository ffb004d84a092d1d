//! The fuzz targets' entry points, so that a toolchain without a fuzzer runs them too.

#[expect(unreachable_pub, reason = "it is the library of another package")]
#[path = "../../../fuzz/src/lib.rs"]
mod fuzz;

pub(crate) use fuzz::{DECODERS, repair};
