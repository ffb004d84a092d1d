//! How to reach the servers, and what is told while none answers.
//!
//! Must hold: Debug shows no key.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dl_format::ChunkShape;

use crate::snapshot::SnapshotCache;
use crate::task::TaskOptions;

/// Is told of every request right before it is tried again, and of one that a server leaves without
/// an answer for 5 seconds, where that is long and nothing else goes there or comes back. Called on whatever thread waits for
/// the request: it returns soon, and makes no calls of this library.
pub type OnRetry = Arc<dyn Fn(&Retry) + Send + Sync>;

/// Is told why a dataset is read without the cache of this node, when it is opened.
pub type OnUncached = Arc<dyn Fn(&str) + Send + Sync>;

/// A request that failed for now and is about to be tried again, or that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// What is being done, in the present tense: "write".
    pub action: &'static str,
    /// To what: a path, a dataset, a chunk, a server.
    pub subject: String,
    /// What each server that was tried said last, with its address, or that it says nothing.
    pub reason: String,
    /// How long ago the first try began.
    pub waited: Duration,
    /// How much longer it is tried before the call fails.
    pub left: Duration,
}

/// How to reach the servers, who is asking, and how much to have under way.
#[derive(Clone)]
pub struct ConnectOptions {
    /// Who is asking.
    pub user: String,
    /// Proves it, where the servers want a proof. Never shown.
    pub key: Option<String>,
    /// Each `host:port` or `http://host:port`, in plain text, or `https://host:port`; all serve the
    /// same datasets.
    pub servers: Vec<String>,
    /// The certificates (PEM) to trust where a server is named with https; otherwise the machine's.
    pub ca: Option<Vec<u8>>,
    /// Shown to servers that ask for a certificate.
    pub certificate: Option<ClientCertificate>,
    /// Lets the key travel in plain text to other machines.
    pub plain_text_key: bool,
    /// How long to try when every server refuses, before `connect` gives up.
    pub connect_timeout: Duration,
    /// How long a request may take, all its tries together; a request that brings or takes many
    /// bytes may take longer while they flow. With [`task`](Self::task), waits for the agent count.
    pub request_timeout: Duration,
    /// Connections kept to each server, at least one.
    pub connections_per_server: usize,
    /// Chunks of the usual 4 MiB that may be under way to the servers, per dataset handle, at least
    /// one: bounds the memory of a writer. Of larger ones as many as take no more together, of smaller
    /// ones no more than this.
    pub in_flight_chunks: usize,
    /// Where datasets that are opened find a snapshot, or keep the one they fetch, to answer from.
    /// None to ask the servers instead, as is best for writers and for few questions.
    pub snapshots: Option<SnapshotCache>,
    /// The training job that this process belongs to. Its processes on one machine read out of one
    /// cache, which an agent fills; a dataset that is opened then answers from a snapshot. None to read
    /// from the servers.
    pub task: Option<TaskOptions>,
    /// Who wants to know that a call waits for a server.
    pub on_retry: Option<OnRetry>,
    /// Who wants to know that there is a task and no agent, so that all files come from the servers.
    pub on_uncached: Option<OnUncached>,
}

/// What a client shows to servers that ask for a certificate.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The certificate, and those that lead to its CA (PEM).
    pub certificate: Vec<u8>,
    /// Its private key (PEM). Never shown.
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
            on_uncached: None,
        }
    }
}

impl ConnectOptions {
    /// How long a request may take. A read of a task may have waited before: to attach to the agent, and
    /// for its chunk.
    pub(crate) fn time_of_a_request(&self) -> Duration {
        let before = self.task.as_ref().map_or(Duration::ZERO, |task| task.patience * 2);
        self.request_timeout.saturating_sub(before).max(self.request_timeout / 2)
    }

    /// Chunks of up to `size` bytes that may be under way at once.
    pub(crate) fn in_flight(&self, size: u32) -> usize {
        let usual = ChunkShape::default().size();
        let times = usize::try_from(size.div_ceil(usual)).unwrap_or(usize::MAX);
        self.in_flight_chunks.checked_div(times).unwrap_or_default().max(1)
    }
}

/// An address as it may be told: a login in it may be a key.
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
    fn what_is_under_way_is_bounded_whatever_the_size_of_chunks() {
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
