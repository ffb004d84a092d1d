//! Recovery of metadata from the chunk store, on request and after a loss.
//!
//! Must hold: no object of the chunk store is lost.

pub(crate) mod recover;
pub(crate) mod watch;
