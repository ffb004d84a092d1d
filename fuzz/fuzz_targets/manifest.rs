//! Feeds bytes to [`dl_fuzz::manifest`].
//!
//! Must hold: an accepted manifest encodes to its own bytes, and its pieces end at its length.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::manifest(bytes));
