//! Feeds bytes to [`dl_fuzz::repaired_object`].
//!
//! Must hold: checksums over damaged fields are repaired first, to reach the checks behind them.
//! Accepted objects have the properties of undamaged objects.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::repaired_object(bytes));
