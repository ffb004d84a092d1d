//! The formats from outside: written data is read back, damage is detected, and stored bytes never
//! change.

mod assembled;
mod build;
mod corruption;
mod document;
mod entry_points;
mod fold;
mod golden;
mod model;
mod mutation;
mod round_trip;
mod snapshot;
mod snapshot_bytes;
