//! Feeds bytes to [`dl_fuzz::name_record`].
//!
//! Must hold: a record that is taken encodes to the bytes it came from, also when its checksum was made
//! right before.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::name_record(bytes));
