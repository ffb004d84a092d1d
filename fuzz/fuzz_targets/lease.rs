//! Feeds bytes to [`dl_fuzz::lease`].
//!
//! Must hold: an accepted lease encodes to its own bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::lease(bytes));
