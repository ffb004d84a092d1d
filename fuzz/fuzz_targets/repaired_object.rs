//! Feeds bytes to [`dl_fuzz::repaired_object`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::repaired_object(bytes));
