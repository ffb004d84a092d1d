//! What the world does to a process, behind doors that tests can hold: time, randomness,
//! tasks, blocking work, memory, the processor's own copy, the request to stop, retries, logs,
//! texts of addresses, PEM and injected faults.
//!
//! Must hold: no other crate reads a clock, blocks a thread or draws randomness by itself (the keys
//! of hash maps aside, which nobody sees), so that a test which owns these doors gives the same
//! result every time.

pub mod address;
pub mod allocator;
pub mod blocking;
mod buffers;
mod clock;
mod copying;
pub mod fault;
mod masked;
pub mod pem;
mod random;
mod retry;
mod shutdown;
mod tasks;
pub mod telemetry;

pub use buffers::Buffers;
pub use clock::{BoxFuture, Clock, ManualClock, SystemClock, since_boot};
pub use copying::copy_checked;
pub use masked::masked;
pub use random::{OsRandom, Random, SeededRandom};
pub use retry::{Backoff, Deadline, Elapsed, retry};
pub use shutdown::Shutdown;
pub use tasks::{spawn, spawn_for_all, spawn_on};
