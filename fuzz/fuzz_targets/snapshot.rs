//! Feeds bytes to [`dl_fuzz::snapshot`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::snapshot(bytes));
