//! Purge and verify, on servers over stores and a clock that a test holds in its hands.
//!
//! Must hold: whatever is purged, cut off and purged again, the files are those of a plain map, with
//! the metadata kept or rebuilt, and the space of what is gone is given back.

mod azure;
mod cut;
mod halt;
mod killed;
mod leased;
mod readers;
mod scene;
mod space;
mod together;
mod tombstones;
mod verify;
