//! Answers as streams, with the memory that they hold.
//!
//! Must hold: the memory of an answer is reserved before the answer is made, and given back when the last byte
//! has left the process.

pub(crate) mod answer;
pub(crate) mod listener;
pub(crate) mod reservation;
