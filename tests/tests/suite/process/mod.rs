//! The programs under a user's conditions: killed, short of memory, with wrong input, restarted.
//!
//! Must hold: acknowledged files are read back byte for byte, and every request gets an answer.

mod archives;
mod away;
mod damaged;
mod deaf;
mod demo;
mod full;
mod guarded;
mod hostile;
mod in_turn;
mod kill;
mod loading;
mod memory;
mod names;
mod operations;
mod probes;
mod purge;
mod readers;
mod reads;
mod rebuild;
mod recover;
mod redis;
mod secrets;
mod set_back;
mod settings;
mod slow;
mod stalled;
mod start;
mod stopping;
mod tied;
mod tiny;
mod wrong;
