//! Feeds bytes to [`dl_fuzz::object`].
//!
//! Must hold: entries of an accepted header neither overlap nor exceed the object. A commit gives a
//! valid object, and changes no byte sealed by the client.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::object(bytes));
