//! The stores, limits and counters of all requests.
//!
//! Must hold: no other server needs the state.

pub(crate) mod name_cache;
pub(crate) mod parts;
pub(crate) mod replaced;
pub(crate) mod room;
