//! Chunks where several servers share them: two real S3 servers with a network between that goes
//! wrong, and one directory.
//!
//! Must hold: the contract of a store holds on both servers, whatever the network does, and a
//! server that is gone is told and not waited for.

mod conformance;
mod faults;
mod programs;
mod shared;
