//! Waiting for a descriptor.
//!
//! Must hold: a watched descriptor stays open and stays the same.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use dl_node::Socket;
use tokio::io::unix::AsyncFd;

/// The owner of a descriptor. The descriptor stays the same as long as the owner lives.
pub(crate) trait OwnsDescriptor: AsRawFd {}

impl OwnsDescriptor for OwnedFd {}
impl OwnsDescriptor for Arc<Socket> {}

/// Registers a descriptor for readiness events.
pub(crate) fn watch<T: OwnsDescriptor>(owner: T) -> io::Result<AsyncFd<T>> {
    #[expect(unsafe_code, reason = "tokio can't know that a descriptor stays the same")]
    // SAFETY: the owner keeps its descriptor open until it is dropped, and always gives the same one.
    let watched = unsafe { AsyncFd::register(owner) };
    watched.map_err(io::Error::from)
}
