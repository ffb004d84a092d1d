//! The stores, limits and counters of all requests.
//!
//! Must hold: no other server needs the state.

pub(crate) mod context;
pub(crate) mod disk_reserve;
pub(crate) mod name_cache;
pub(crate) mod replaced;
