//! The stores, limits and counters that all requests share.
//!
//! Must hold: another server needs nothing of this state.

pub(crate) mod name_cache;
pub(crate) mod parts;
pub(crate) mod replaced;
pub(crate) mod room;
