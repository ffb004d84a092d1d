//! Feeds bytes to [`dl_fuzz::lease`].
//!
//! Must hold: a lease that is taken encodes to the bytes it came from.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::lease(bytes));
