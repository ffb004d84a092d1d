//! Feeds bytes to [`dl_fuzz::identity_record`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::identity_record(bytes));
