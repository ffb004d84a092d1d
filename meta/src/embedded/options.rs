//! Settings of the embedded metadata store.
//!
//! Must hold: the defaults fit into the memory of a small server.

use std::time::Duration;

/// Settings of an [`Embedded`] store.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// Most bytes of the file in memory.
    pub cache_bytes: usize,
    /// Most bytes in memory for rows of looked-up files, in addition to the cache.
    pub row_bytes: usize,
    /// Most bytes of headers that are acknowledged but not yet durable in the file; beyond, appends wait.
    pub tail_bytes: usize,
    /// The age at which acknowledged headers are made durable.
    pub sync_interval: Duration,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 32 << 20,
            row_bytes: 32 << 20,
            tail_bytes: 32 << 20,
            sync_interval: Duration::from_secs(1),
        }
    }
}
