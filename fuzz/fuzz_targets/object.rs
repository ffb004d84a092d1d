//! Feeds bytes to [`dl_fuzz::object`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::object(bytes));
