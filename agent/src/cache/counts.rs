//! Counts of an agent's work.
//!
//! Must hold: the counts of a dataset include ended connections.

/// Counts of chunks, bytes and files.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) chunks_from_servers: u64,
    pub(crate) bytes_from_servers: u64,
    pub(crate) chunks_from_peers: u64,
    pub(crate) bytes_from_peers: u64,
    pub(crate) chunks_from_disk: u64,
    pub(crate) bytes_from_disk: u64,
    pub(crate) files_from_disk: u64,
    pub(crate) chunks_to_peers: u64,
    pub(crate) files_from_peers: u64,
    pub(crate) files_to_peers: u64,
    pub(crate) failed_fetches: u64,
    /// Only of ended connections.
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) hit_bytes: u64,
    pub(crate) fallbacks: u64,
    pub(crate) fallback_bytes: u64,
    pub(crate) waited_micros: u64,
}

impl Counts {
    /// The sum over all datasets.
    pub(crate) fn of_all(counts: &[Self]) -> Self {
        counts.iter().fold(Self::default(), |all, one| Self {
            chunks_from_servers: all.chunks_from_servers + one.chunks_from_servers,
            bytes_from_servers: all.bytes_from_servers + one.bytes_from_servers,
            chunks_from_peers: all.chunks_from_peers + one.chunks_from_peers,
            bytes_from_peers: all.bytes_from_peers + one.bytes_from_peers,
            chunks_from_disk: all.chunks_from_disk + one.chunks_from_disk,
            bytes_from_disk: all.bytes_from_disk + one.bytes_from_disk,
            files_from_disk: all.files_from_disk + one.files_from_disk,
            chunks_to_peers: all.chunks_to_peers + one.chunks_to_peers,
            files_from_peers: all.files_from_peers + one.files_from_peers,
            files_to_peers: all.files_to_peers + one.files_to_peers,
            failed_fetches: all.failed_fetches + one.failed_fetches,
            hits: all.hits + one.hits,
            misses: all.misses + one.misses,
            hit_bytes: all.hit_bytes + one.hit_bytes,
            fallbacks: all.fallbacks + one.fallbacks,
            fallback_bytes: all.fallback_bytes + one.fallback_bytes,
            waited_micros: all.waited_micros + one.waited_micros,
        })
    }
}
