//! Feeds bytes to [`dl_fuzz::repaired_object`].
//!
//! Must hold: checksums are made right over damaged fields first, so that the checks behind them are
//! met: what these let through keeps what an undamaged object does.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::repaired_object(bytes));
