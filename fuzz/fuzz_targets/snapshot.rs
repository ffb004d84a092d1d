//! Feeds bytes to [`dl_fuzz::snapshot`].
//!
//! Must hold: a verified snapshot finds its files by path and answers without an error. An opened
//! snapshot may answer with an error, and never panics.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::snapshot(bytes));
