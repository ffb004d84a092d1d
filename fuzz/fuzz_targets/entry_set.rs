//! Feeds bytes to [`dl_fuzz::entry_set`].
//!
//! Must hold: a bitmap that is taken is the only one of its set: its entries, put in one after the
//! other, give the same set again.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::entry_set(bytes));
