//! Feeds bytes to [`dl_fuzz::object`].
//!
//! Must hold: entries of a header that is taken neither overlap nor reach behind the object; a commit
//! gives a good object, and changes no byte that the client sealed.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::object(bytes));
