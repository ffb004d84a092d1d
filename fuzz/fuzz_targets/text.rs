//! Feeds bytes to [`dl_fuzz::text`].
//!
//! Must hold: an accepted id or key prints as its own text; a path prints without NUL, line feed or
//! escape.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::text(bytes));
