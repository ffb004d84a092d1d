//! Purge and verification.
//!
//! Must hold: no live file is lost or changed.

pub(crate) mod purge;
pub(crate) mod turns;
pub(crate) mod verify;
