//! Feeds bytes to [`dl_fuzz::text`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::text(bytes));
