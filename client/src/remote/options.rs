//! Settings of a client, and reports of waiting requests.
//!
//! Must hold: Debug shows no key.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dl_format::ChunkShape;

use crate::snapshot::SnapshotCache;
use crate::task::TaskOptions;

/// Receives a report before each new try of a request, and after 5 seconds without bytes from or to
/// the server of a short request. The callback runs on the thread of the request: it must return
/// soon, and make no calls of the library.
pub type OnRetry = Arc<dyn Fn(&Retry) + Send + Sync>;

/// Receives notes for the user about the cache of the node, such as the reason for reads without the
/// cache. The callback must return soon, and make no calls of the library.
pub type OnNote = Arc<dyn Fn(&str) + Send + Sync>;

/// A request about to be tried again, or waiting for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// The operation, as an imperative: "write".
    pub action: &'static str,
    /// The object: a path, a dataset, a chunk, a server.
    pub subject: String,
    /// The last reply of each server tried, or its silence, with the server's address.
    pub reason: String,
    /// Time since the begin of the first try.
    pub waited: Duration,
    /// Time until the call fails.
    pub left: Duration,
}

/// Settings of a client: addresses, user, times and limits.
#[derive(Clone)]
pub struct ConnectOptions {
    /// The user.
    pub user: String,
    /// The key of the user, for servers with users. Never shown.
    pub key: Option<String>,
    /// Addresses: `host:port` or `http://host:port`, in plain text, or `https://host:port`. All
    /// servers must serve the same datasets.
    pub servers: Vec<String>,
    /// The trusted certificates (PEM) for https; by default, those of the machine.
    pub ca: Option<Vec<u8>>,
    /// The certificate for servers that require client certificates.
    pub certificate: Option<ClientCertificate>,
    /// Allows the key to travel in plain text to other machines.
    pub plain_text_key: bool,
    /// Time for `connect` to reach a server.
    pub connect_timeout: Duration,
    /// Time for a request with all its tries; more while the bytes of a large request or answer
    /// flow. With [`task`](Self::task), the wait for the agent counts.
    pub request_timeout: Duration,
    /// Connections to each server, at least 1.
    pub connections_per_server: usize,
    /// Chunks in flight for a dataset handle, at least 1: the limit bounds the memory of a writer.
    /// The number is for chunks of the usual 4 MiB or less. For larger chunks fewer are allowed,
    /// with the same memory.
    pub in_flight_chunks: usize,
    /// The cache for snapshots of opened datasets. None to ask the servers instead, as is best for
    /// writers and for few requests.
    pub snapshots: Option<SnapshotCache>,
    /// The training job of the process. Processes of a job on a machine share a cache, filled by an
    /// agent, and opened datasets answer from a snapshot. None to read from the servers.
    pub task: Option<TaskOptions>,
    /// Called when a call waits for a server.
    pub on_retry: Option<OnRetry>,
    /// Called with facts that the user of a task should know, such as a missing cache of the node, or a
    /// version older than the newest.
    pub on_note: Option<OnNote>,
}

/// The certificate of a client, for servers that require certificates.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The certificate, with the chain to its CA (PEM).
    pub certificate: Vec<u8>,
    /// The private key (PEM). Never shown.
    pub key: Vec<u8>,
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").finish_non_exhaustive()
    }
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            user: String::new(),
            key: None,
            servers: vec!["127.0.0.1:7420".to_owned()],
            ca: None,
            certificate: None,
            plain_text_key: false,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(60),
            connections_per_server: 2,
            in_flight_chunks: 8,
            snapshots: None,
            task: None,
            on_retry: None,
            on_note: None,
        }
    }
}

impl ConnectOptions {
    /// Time for a request. A read of a task may have waited before for the agent, and for its
    /// chunk.
    pub(crate) fn time_of_a_request(&self) -> Duration {
        let before = self.task.as_ref().map_or(Duration::ZERO, |task| task.patience * 2);
        self.request_timeout.saturating_sub(before).max(self.request_timeout / 2)
    }

    /// Hands over a note for the user.
    pub(crate) fn note(&self, text: &str) {
        tracing::warn!("{text}");
        self.on_note.as_ref().inspect(|take| take(text));
    }

    /// The number of chunks of up to `size` bytes in flight.
    pub(crate) fn in_flight(&self, size: u32) -> usize {
        let usual = ChunkShape::default().size();
        let times = usize::try_from(size.div_ceil(usual)).unwrap_or(usize::MAX);
        self.in_flight_chunks.checked_div(times).unwrap_or_default().max(1)
    }
}

/// An address without its login, which may be a key.
pub(crate) fn masked(address: &str) -> String {
    match address.rsplit_once('@') {
        Some((_, host)) => {
            let schemes = ["https://", "http://"];
            let scheme = schemes.into_iter().find(|scheme| address.starts_with(scheme));
            format!("{}***@{host}", scheme.unwrap_or_default())
        }
        None => address.to_owned(),
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("user", &self.user)
            .field("key", &self.key.as_ref().map(|_| "(not shown)"))
            .field("servers", &self.servers.iter().map(|server| masked(server)).collect::<Vec<_>>())
            .field("certificate", &self.certificate)
            .field("plain_text_key", &self.plain_text_key)
            .field("connect_timeout", &self.connect_timeout)
            .field("request_timeout", &self.request_timeout)
            .field("connections_per_server", &self.connections_per_server)
            .field("in_flight_chunks", &self.in_flight_chunks)
            .field("snapshots", &self.snapshots)
            .field("task", &self.task)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_flight_is_bounded_for_any_chunk_size() {
        let options = ConnectOptions::default();
        let in_flight = [1, 1 << 20, 4 << 20, (4 << 20) + 1, 16 << 20, 64 << 20]
            .map(|size| options.in_flight(size));
        assert_eq!(in_flight, [8, 8, 8, 4, 2, 1]);
    }

    #[test]
    fn the_key_is_never_shown() {
        let key = Some("sesame".to_owned());
        let certificate =
            Some(ClientCertificate { certificate: Vec::new(), key: b"sesame".to_vec() });
        let options = ConnectOptions { key, certificate, ..ConnectOptions::default() };
        let shown = format!("{options:?}").replace(&format!("{:?}", b"sesame"), "sesame");
        assert!(!shown.contains("sesame"), "{shown}");
    }
}
