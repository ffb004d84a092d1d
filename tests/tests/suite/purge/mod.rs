//! Purge and verify on servers over stores and a clock of the test.
//!
//! Must hold: after every purge, cut or complete, the files equal a plain map, with kept or rebuilt
//! metadata, and the space of deleted files is freed.

mod cut;
mod halt;
mod killed;
mod leased;
mod merge;
mod readers;
mod scene;
mod space;
mod together;
mod tombstones;
mod verify;
