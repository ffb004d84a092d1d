//! Feeds bytes to [`dl_fuzz::identity_record`].
//!
//! Must hold: an accepted record encodes to its own bytes, also after its checksum was repaired.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::identity_record(bytes));
