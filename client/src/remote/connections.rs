//! Connections to the servers, and the loop that tries a request until a server answers.
//!
//! Must hold: the servers take turns, and requests avoid a failed server for a while. A silent
//! server costs a part of the time of a request, never all of it; time in which a server takes bytes
//! of the request does not count. An error names each server tried, with its last reply.

mod attempt;
mod call;
mod replies;
mod server;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dl_runtime::{Backoff, Clock, Random, retry};
use tonic::Streaming;

use crate::error::{Error, Kind};
use crate::remote::failure::Failure;
use crate::remote::options::{ConnectOptions, OnRetry, Retry, masked};
use crate::remote::process::Process;
pub(crate) use attempt::{Connection, Try};
use attempt::{Identity, attended};
use call::{Call, Patience};
use server::Server;

/// Time for a server to answer the probe before a request, where there are other servers.
const PROBE_TIME: Duration = Duration::from_secs(4);

/// The servers of a client, seen from one process.
pub(crate) struct Connections {
    servers: Vec<Server>,
    turn: AtomicUsize,
    identity: Arc<Identity>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    on_retry: Option<OnRetry>,
    connect: Patience,
    usual: Patience,
    /// Whether a server has ever answered.
    is_met: Arc<AtomicBool>,
}

/// Hides addresses, user and key.
impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("servers", &self.servers.len()).finish_non_exhaustive()
    }
}

impl Connections {
    /// Opens nothing yet: a connection is made by its first request, and again after a break.
    /// `is_met` says whether a server has answered before.
    pub(crate) fn new(
        options: &ConnectOptions,
        process: &Process,
        is_met: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let invalid =
            |subject: &str, why: String| Error::new(Kind::Invalid, "connect to", subject, why);
        if options.servers.is_empty() {
            return Err(invalid("a server", "no address was given".to_owned()));
        }
        let identity = Identity::new(options).map_err(|why| {
            let servers: Vec<_> = options.servers.iter().map(|server| masked(server)).collect();
            invalid(&servers.join(", "), why)
        })?;
        let patience = |total| Patience::among(options.servers.len(), total);
        // Connections start tasks.
        let _inside = process.runtime.enter();
        let server = |address: &String| {
            Server::new(address, options).map_err(|why| invalid(&masked(address), why))
        };
        Ok(Self {
            servers: options.servers.iter().map(server).collect::<Result<_, _>>()?,
            // Spreads clients with the same start time.
            turn: AtomicUsize::new(process.random.u64() as usize),
            identity: Arc::new(identity),
            clock: Arc::clone(&process.clock),
            random: Arc::clone(&process.random),
            on_retry: options.on_retry.clone(),
            connect: patience(options.connect_timeout),
            usual: patience(options.time_of_a_request()).patient(),
            is_met,
        })
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// The time of requests with a fast answer.
    pub(crate) fn usual(&self) -> Patience {
        self.usual
    }

    /// The time of requests that make the server work through a whole dataset. The connection
    /// notices the death of a server meanwhile.
    pub(crate) fn long(&self) -> Patience {
        self.usual.long()
    }

    /// The number of requests that keep all connections busy.
    pub(crate) fn width(&self) -> usize {
        self.servers.iter().map(Server::width).sum()
    }

    /// Waits until a server answers and accepts the user.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        // The error text names each server.
        let subject = || match self.servers.len() {
            1 => "the server".to_owned(),
            count => format!("{count} servers"),
        };
        let probe = self
            .tried("connect to", subject, self.connect, false, |server, this| this.probe(server));
        probe.await?;
        self.is_met.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Tries a request at server after server until the request succeeds, fails for good, or runs
    /// out of time. Before the first answer of any server, the connect timeout applies.
    pub(crate) async fn call<T, Attempt: Future<Output = Result<T, Failure>>>(
        &self,
        action: &'static str,
        subject: impl Fn() -> String,
        patience: Patience,
        attempt: impl Fn(Connection, Try) -> Attempt,
    ) -> Result<T, Error> {
        if !self.is_met.load(Ordering::Relaxed) {
            Box::pin(self.check()).await?;
        }
        // Among several servers, a cheap probe finds a hanging server early.
        self.tried(action, subject, patience, self.servers.len() > 1, attempt).await
    }

    async fn tried<T, Attempt: Future<Output = Result<T, Failure>>>(
        &self,
        action: &'static str,
        subject: impl Fn() -> String,
        patience: Patience,
        probes: bool,
        attempt: impl Fn(Connection, Try) -> Attempt,
    ) -> Result<T, Error> {
        let clock = self.clock.as_ref();
        let call = Call::new(clock, self.on_retry.as_ref(), action, subject, patience);
        let done = retry(
            clock,
            self.random.as_ref(),
            Backoff::default(),
            || call.deadline(),
            |failure: &Failure| failure.kind.is_retryable(),
            || {
                call.report(Duration::ZERO);
                let (index, server) = self.next();
                let connection = server.next_connection();
                let this = server.begin(&self.identity, &self.clock, call.deadline());
                let probe = (probes && server.needs_probe.load(Ordering::Relaxed)).then(|| {
                    let limit = PROBE_TIME.min(patience.attempt);
                    (connection.clone(), this.within(limit))
                });
                let attempted = attempt(connection, this.within(patience.attempt));
                // On the heap: the future is stored twice below, within large futures of callers.
                let attempted = Box::pin(async move {
                    if let Some((connection, probe)) = probe {
                        probe.probe(connection).await?;
                    }
                    attempted.await
                });
                call.attend(index, server, this, attempted)
            },
        )
        .await;
        done.map_err(|last| call.error(last))
    }

    /// Waits for the next message of an answer, and reports silence as in a call.
    pub(crate) async fn next_of<T>(
        &self,
        this: &Try,
        action: &'static str,
        subject: &str,
        stream: &mut Streaming<T>,
    ) -> Result<Option<T>, Failure> {
        let report = |waited: Duration| {
            if let Some(on_retry) = &self.on_retry {
                let reason = this.at_server(Failure::silent_for(waited)).to_string();
                let left = self.usual.total.saturating_sub(waited);
                let subject = subject.to_owned();
                on_retry(&Retry { action, subject, reason, waited, left });
            }
        };
        this.restart();
        let message = Box::pin(this.message(stream));
        attended(&*self.clock, || this.last_sign(), message, report).await
    }

    fn next(&self) -> (usize, &Server) {
        let count = self.servers.len();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.monotonic();
        let in_turn = |step: usize| turn.wrapping_add(step) % count;
        let index = (0..count)
            .map(in_turn)
            .find(|index| !self.servers[*index].is_avoided(now))
            .unwrap_or(in_turn(0));
        (index, &self.servers[index])
    }
}
