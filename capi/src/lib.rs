//! The library for C (paper, Table 3): the functions of `include/diesel.h`, which is generated from
//! this crate.
//!
//! Must hold: no panic, signal or abort reaches the caller. A wrong argument is refused by its name,
//! as far as a pointer can be checked. Functions may be called by any thread, and after a fork.
#![expect(unreachable_pub, reason = "C programs reach the functions, and no Rust program does")]

mod arguments;
mod bytes;
mod context;
mod epoch;
mod failure;
mod list;
mod options;
mod read;
mod status;
mod tidy;
mod write;
