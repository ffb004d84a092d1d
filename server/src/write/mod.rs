//! The write path.
//!
//! Must hold: an object is durable and in the log before the acknowledgement.

pub(crate) mod commit;
