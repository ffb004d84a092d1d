//! Feeds bytes to [`dl_fuzz::manifest`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::manifest(bytes));
