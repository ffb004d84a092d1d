//! DatasetRecovery of metadata from the chunk store, on request and after a loss.
//!
//! Must hold: nothing that the chunk store has is lost.

pub(crate) mod recover;
pub(crate) mod watch;
