//! What the tests that cross crates share: the tests themselves stand in one binary,
//! `tests/suite`, because each further one links every crate again.

#![forbid(unsafe_code)]

pub mod workspace;
