//! Datasets: their names, their records, and the headers of their objects.
//!
//! Must hold: the names in the chunk store decide which datasets live.

pub(crate) mod catalog;
pub(crate) mod headers;
pub(crate) mod identity;
pub(crate) mod leftovers;
pub(crate) mod names;
pub(crate) mod small;
pub(crate) mod spill;
pub(crate) mod survey;
