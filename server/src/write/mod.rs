//! The write path.
//!
//! Must hold: an object is durable and in the log before it is acknowledged.

pub(crate) mod commit;
