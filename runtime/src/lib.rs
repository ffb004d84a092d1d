//! A process's surroundings, behind interfaces that tests control: time, randomness, tasks, blocking
//! work, memory, locks, copies with checksums, the request to stop, retries, logs, texts of addresses,
//! PEM, sizes and times as typed, errors of stores and injected faults.
//!
//! Must hold: no other crate reads a clock, blocks a thread or draws randomness by itself (except for the
//! keys of hash maps, which have no visible effect), so that a test gives the same result every time.

pub mod address;
pub mod allocator;
pub mod blocking;
mod buffers;
mod clock;
mod copying;
pub mod fault;
mod lock;
mod masked;
pub mod pem;
mod random;
mod retry;
mod shutdown;
pub mod storage;
mod tasks;
pub mod telemetry;
pub mod units;

pub use buffers::Buffers;
pub use clock::{BoxFuture, Clock, ManualClock, SystemClock, since_boot};
pub use copying::copy_checked;
pub use lock::locked;
pub use masked::masked;
pub use random::{OsRandom, Random, SeededRandom};
pub use retry::{Backoff, Deadline, Elapsed, retry};
pub use shutdown::Shutdown;
pub use tasks::{spawn, spawn_for_all, spawn_on};
