//! Feeds bytes to [`dl_fuzz::text`].
//!
//! Must hold: what is taken for an id or a key prints as the text it came from; a path prints without
//! NUL, line feed or escape.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::text(bytes));
