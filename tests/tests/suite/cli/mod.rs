//! The contract of dlcmd with users and scripts.
//!
//! Must hold: each statement of the contract has a test, named after the statement.

mod common;
mod get;
mod hidden;
mod list;
mod put;
mod rm;
mod safe;
mod sizes;
mod told;
mod watched;
