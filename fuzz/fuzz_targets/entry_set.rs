//! Feeds bytes to [`dl_fuzz::entry_set`].
//!
//! Must hold: an accepted bitmap is the only bitmap of its set: inserting its entries one by one
//! gives the same set.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::entry_set(bytes));
