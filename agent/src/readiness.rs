//! Waiting for a descriptor.
//!
//! Must hold: the descriptor stays open, and the same, for as long as it is waited for.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use libdiesel::agent::Socket;
use tokio::io::unix::AsyncFd;

/// The owner of a descriptor. The descriptor stays the same as long as the owner lives.
pub(crate) trait OwnsDescriptor: AsRawFd {}

impl OwnsDescriptor for OwnedFd {}
impl OwnsDescriptor for Arc<Socket> {}

/// A descriptor whose readiness can be waited for.
pub(crate) fn watch<T: OwnsDescriptor>(owner: T) -> io::Result<AsyncFd<T>> {
    #[expect(unsafe_code, reason = "tokio can't know that a descriptor stays the same")]
    // SAFETY: the owner keeps its descriptor open until it is dropped, and always gives the same one.
    let watched = unsafe { AsyncFd::register(owner) };
    watched.map_err(io::Error::from)
}
