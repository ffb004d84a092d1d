//! Chunks where several servers share them: real servers that speak S3 and Azure's protocol, with a
//! network between that goes wrong, and one directory.
//!
//! Must hold: the contract of a store holds on each server, whatever the network does, and a
//! server that is gone is told and not waited for.

mod azure;
mod conformance;
mod faults;
mod programs;
mod shared;
