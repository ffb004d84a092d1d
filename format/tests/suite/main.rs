//! The formats from outside: what goes in comes out, what is damaged does not, and the bytes of
//! today are the bytes of tomorrow.

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
