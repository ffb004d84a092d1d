//! Feeds bytes to [`dl_fuzz::entry_set`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::entry_set(bytes));
