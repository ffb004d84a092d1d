//! The mount: a dataset as a read-only file system (paper, 5 and 6.3 to 6.6).
//!
//! Three processes: a command that waits until files can be read, a *holder* that keeps the
//! connection with the kernel, and a *server* that answers requests. The holder starts the next
//! server when one ends, so a killed server is a pause for readers.
//!
//! Must hold: the kernel decides who enters. No process here waits for an answer of its own mount.

mod abi;
mod channel;
mod following;
#[doc(hidden)]
pub mod fuzzing;
mod holder;
pub mod layer;
mod messages;
mod mounting;
mod server;
mod serving;
mod source;
mod status;
mod tree;

pub use holder::{Mount, Stopper, hold};
pub use messages::{FromServer, Report};
pub use mounting::{Mounted, Place, TYPE, absolute, mount_at, mounts, unmount_at};
pub use server::Counted;
pub use serving::serve;
pub use source::{Refused, Source};
pub use status::{MountStatus, end_of, refresh, status_of};
pub use tree::Owner;
