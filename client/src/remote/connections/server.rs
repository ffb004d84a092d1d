//! A server of a client, with its connections.
//!
//! Must hold: the connections of a server take turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dl_proto::MESSAGE_BYTES_MAX;
use dl_proto::pb::diesel_client::DieselClient;
use dl_runtime::{Clock, Deadline};

use super::attempt::{Connection, Identity, Try};
use crate::remote::endpoint::endpoint;
use crate::remote::flow::{Flow, Moment};
use crate::remote::options::ConnectOptions;
use crate::remote::wire::Wire;

/// Time for which requests avoid a failed server while there are others.
const AVOID: Duration = Duration::from_secs(2);
/// The same for a silent server, which costs a try all of its time.
const AVOID_SILENT: Duration = Duration::from_secs(30);

pub(super) struct Server {
    pub(super) address: Arc<str>,
    connections: Vec<Connection>,
    turn: AtomicUsize,
    /// Whether a request must wait for the answer to a probe: before the end of a first try, and
    /// after a silent try.
    pub(super) needs_probe: AtomicBool,
    avoid_until: Moment,
    /// When bytes last went to the server or came from there.
    transfer: Arc<Moment>,
}

impl Server {
    /// Fails for an invalid address, or for certificates of no use.
    pub(super) fn new(address: &str, options: &ConnectOptions) -> Result<Self, String> {
        let endpoint = endpoint(address, options)?;
        let connection = |_| {
            DieselClient::new(Wire(endpoint.connect_lazy()))
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
        };
        Ok(Self {
            address: address.into(),
            connections: (0..options.connections_per_server.max(1)).map(connection).collect(),
            turn: AtomicUsize::new(0),
            needs_probe: AtomicBool::new(true),
            avoid_until: Moment::default(),
            transfer: Arc::default(),
        })
    }

    pub(super) fn width(&self) -> usize {
        self.connections.len()
    }

    pub(super) fn next_connection(&self) -> Connection {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.connections[turn % self.connections.len()].clone()
    }

    pub(super) fn begin(
        &self,
        identity: &Arc<Identity>,
        clock: &Arc<dyn Clock>,
        deadline: Deadline,
    ) -> Try {
        let flow = Flow::new(Arc::clone(clock), Arc::clone(&self.transfer));
        Try::new(&self.address, identity, clock, deadline, flow)
    }

    pub(super) fn is_avoided(&self, now: Duration) -> bool {
        self.avoid_until.get() > now
    }

    /// Makes requests avoid the server for a while.
    pub(super) fn avoid(&self, now: Duration, is_silent: bool) {
        let time = if is_silent { AVOID_SILENT } else { AVOID };
        self.avoid_until.set(now.saturating_add(time));
    }
}
