//! Feeds bytes to [`dl_fuzz::manifest`].
//!
//! Must hold: a manifest that is taken encodes to the bytes it came from, and its pieces end where its
//! length says.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::manifest(bytes));
