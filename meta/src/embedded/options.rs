//! Settings of the embedded metadata store.
//!
//! Must hold: the defaults fit into the memory of a small server.

use std::time::Duration;

/// Settings of an [`Embedded`] store.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// Most bytes of the file kept in memory.
    pub cache_bytes: usize,
    /// Most bytes of files that were looked up, kept in memory beside that.
    pub row_bytes: usize,
    /// Most bytes of headers that are acknowledged and not yet durable in the file; appends wait
    /// when there are more.
    pub tail_bytes: usize,
    /// How old the oldest of them gets before they are made durable.
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
