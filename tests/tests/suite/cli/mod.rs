//! What dlcmd promises to the person and the script that call it, sentence by sentence.
//!
//! Must hold: each sentence of the contract has a test with that sentence as its name.

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
