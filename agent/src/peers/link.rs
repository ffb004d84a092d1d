//! The link to one other agent: a connection for this agent's requests.
//!
//! Must hold: after a request is cancelled, no byte of its answer is written into its slot. A
//! connection with an invalid message ends. Each request ends by its deadline.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use dl_format::MemberId;
use dl_runtime::{Clock, locked, spawn};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, mpsc};

use super::events::LinkEvents;
use super::frame::{Answer, COMES, HEAD, REQUESTS_MAX, Request, invalid_message};
use super::handshake::{self, JobKey};
use super::link_state::{Event, Kept, LinkState, Pending, Phase};
use super::tls::{Fingerprint, Identity, Reader, Writer};
use crate::descriptors::Descriptors;
use crate::place::ChunkBits;

/// Maximum of concurrent chunk transfers.
const TRANSFERS: usize = 2;

/// Maximum of unanswered requests: below the limit at which the other agent stops reading.
const OPEN_MAX: usize = REQUESTS_MAX - 16;

/// Time limit of an attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the other agent may not know this agent as a member: the servers tell it at once.
const UNKNOWN_MAX: Duration = Duration::from_secs(2);

/// Interval between attempts to connect, which an agent refuses before its dataset is open, and with
/// TLS from unknown members.
const RETRY_DELAY_UNKNOWN: Duration = Duration::from_millis(20);

/// Intervals between two attempts to connect.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(500);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);

/// Interval between two requests for the list of kept chunks, which also serve as signs of life,
/// and a shorter interval before the link is up; and the longest accepted silence.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const POLL_INTERVAL_EARLY: Duration = Duration::from_millis(20);
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// The configuration of a link.
#[derive(Debug)]
pub(super) struct LinkConfig {
    /// The current key: the servers give another secret after forgetting the job.
    pub(super) key: Arc<Mutex<Option<JobKey>>>,
    /// The id of this agent.
    pub(super) me: MemberId,
    /// The key of this agent, if it uses TLS.
    pub(super) identity: Option<Arc<Identity>>,
    /// The certificate of the other agent, if that agent uses TLS.
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) descriptors: Descriptors,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) events: Arc<LinkEvents>,
}

/// The link to another agent.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) member: MemberId,
    pub(crate) address: String,
    pub(super) clock: Arc<dyn Clock>,
    state: Mutex<LinkState>,
    pub(super) transfers: Semaphore,
    /// Permits for unanswered requests.
    pub(super) open: Semaphore,
    /// Notified when an attempt to connect has ended.
    tried: Notify,
    events: Arc<LinkEvents>,
    pub(crate) counts: LinkCounts,
}

/// Counts of a link.
#[derive(Debug, Default)]
pub(crate) struct LinkCounts {
    pub(crate) chunks: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Answers cancelled for slowness.
    pub(crate) slow: AtomicU64,
    /// Answers with damaged bytes.
    pub(crate) damaged: AtomicU64,
    /// Connections that broke or could not be made.
    pub(crate) failed: AtomicU64,
}

impl Link {
    fn new(
        member: MemberId,
        address: String,
        clock: Arc<dyn Clock>,
        events: Arc<LinkEvents>,
    ) -> Self {
        Self {
            member,
            address,
            state: Mutex::new(LinkState::new(clock.monotonic())),
            clock,
            transfers: Semaphore::new(TRANSFERS),
            open: Semaphore::new(OPEN_MAX),
            tried: Notify::new(),
            events,
            counts: LinkCounts::default(),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, LinkState> {
        locked(&self.state)
    }

    /// The state of the link, and the time of the last change.
    pub(crate) fn phase(&self) -> (Phase, Duration) {
        let state = self.state();
        (state.phase.clone(), state.since)
    }

    /// Whether the other agent keeps a chunk, and whether it has room for more.
    pub(crate) fn kept(&self, chunk: u32) -> (bool, bool) {
        let state = self.state();
        let can_keep = state.kept.can_keep && self.now() >= state.avoided_until;
        (state.kept.bits.holds(chunk), can_keep)
    }

    /// The chunks kept by the other agent; none without a connection.
    pub(super) fn kept_bits(&self) -> ChunkBits {
        let state = self.state();
        if state.phase == Phase::Up { state.kept.bits.clone() } else { ChunkBits::default() }
    }

    /// Waits until the first attempt to connect has ended, including the first list of kept chunks.
    pub(crate) async fn tried(&self) {
        // From here on the end of an attempt is not missed.
        let tried = self.tried.notified();
        if self.phase().0 == Phase::Connecting {
            tried.await;
        }
    }

    /// The usual time of a chunk, if known.
    pub(crate) fn usual(&self) -> Option<Duration> {
        self.state().usual()
    }

    /// Connects and serves repeatedly, until aborted by the last owner of the link.
    async fn run(self: Arc<Self>, way: LinkConfig) {
        let clock = Arc::clone(&self.clock);
        let mut pause = RETRY_DELAY_MIN;
        loop {
            let descriptor = way.descriptors.take();
            let connected = match &descriptor {
                Some(_) => self.connect(&way).await,
                None => Err(io::Error::other(
                    "all descriptors for other agents are in use: raise the limit (ulimit -n)",
                )),
            };
            let why = match connected {
                Ok((read, write)) => {
                    pause = RETRY_DELAY_MIN;
                    self.exchange(read, write).await
                }
                Err(why) => why,
            };
            drop(descriptor);
            if self.may_be_unknown(&why) {
                clock.sleep(RETRY_DELAY_UNKNOWN).await;
                continue;
            }
            if self.phase().0 != Phase::Gone {
                self.counts.failed.fetch_add(1, Ordering::Relaxed);
            }
            self.end(&why);
            clock.sleep(pause).await;
            pause = pause.saturating_mul(2).min(RETRY_DELAY_MAX);
        }
    }

    /// Whether the other agent closed a first connection because it does not know this agent yet.
    fn may_be_unknown(&self, why: &io::Error) -> bool {
        let closed = [
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::ConnectionReset,
        ];
        let (phase, since) = self.phase();
        let is_early = self.now().saturating_sub(since) < UNKNOWN_MAX;
        phase == Phase::Connecting && is_early && closed.contains(&why.kind())
    }

    async fn connect(&self, way: &LinkConfig) -> io::Result<(Reader, Writer)> {
        let connecting = async {
            let both = match (&way.identity, way.fingerprint) {
                (Some(identity), Some(fingerprint)) => Some((identity, fingerprint)),
                (None, None) => None,
                (Some(_), None) => {
                    return Err(io::Error::other("the other agent uses no TLS, this agent does"));
                }
                (None, Some(_)) => {
                    return Err(io::Error::other("the other agent uses TLS, this agent does not"));
                }
            };
            let mut stream = TcpStream::connect(&self.address).await?;
            stream.set_nodelay(true)?;
            let key = locked(&way.key).clone();
            let key = key.ok_or(io::ErrorKind::NotConnected)?;
            handshake::prove(&mut stream, &key, way.me, self.member, &*self.clock).await?;
            match both {
                Some((identity, fingerprint)) => identity.connect(stream, fingerprint).await,
                None => {
                    let (read, write) = stream.into_split();
                    Ok((Box::new(read) as Reader, Box::new(write) as Writer))
                }
            }
        };
        tokio::select! {
            connected = connecting => connected,
            () = self.clock.sleep(CONNECT_TIMEOUT) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"))
            }
        }
    }

    /// Sends requests and receives answers until the connection ends; returns the reason.
    async fn exchange(&self, read: Reader, write: Writer) -> io::Error {
        let (asks, queue) = mpsc::channel(64);
        {
            let mut state = self.state();
            state.asks = Some(asks.clone());
            (state.heard, state.connected) = (self.now(), self.now());
            state.kept = Kept::default();
        }
        tokio::select! {
            ended = self.listen(read) => ended.err().unwrap_or_else(invalid_message),
            why = send(write, queue) => why,
            why = self.poll_kept(asks) => why,
        }
    }

    /// Requests the list of kept chunks repeatedly, until the other agent falls silent.
    async fn poll_kept(&self, asks: mpsc::Sender<Bytes>) -> io::Error {
        loop {
            let generation = self.state().kept.generation;
            let request = Bytes::copy_from_slice(&Request::Kept { generation }.to_bytes());
            if asks.send(request).await.is_err() {
                return io::ErrorKind::BrokenPipe.into();
            }
            let is_up = self.phase().0 == Phase::Up;
            self.clock.sleep(if is_up { POLL_INTERVAL } else { POLL_INTERVAL_EARLY }).await;
            if self.now().saturating_sub(self.state().heard) > SILENCE_MAX {
                let why = format!("no sign of life for {} seconds", SILENCE_MAX.as_secs());
                return io::Error::new(io::ErrorKind::TimedOut, why);
            }
        }
    }

    /// Takes the list of kept chunks. The link is up once the other agent knows this agent as a
    /// member: from then on it fetches none of this agent's chunks, so the list is complete.
    async fn receive_kept(
        &self,
        read: &mut Reader,
        kept: Kept,
        is_known: bool,
        length: u32,
    ) -> io::Result<()> {
        let mut bits = vec![0; length as usize];
        read.read_exact(&mut bits).await?;
        let mut state = self.state();
        if length > 0 {
            state.kept.bits = ChunkBits::from_bytes(bits);
            self.events.listed();
        }
        (state.kept.generation, state.kept.can_keep) = (kept.generation, kept.can_keep);
        let is_late = self.now().saturating_sub(state.connected) > UNKNOWN_MAX;
        if state.phase != Phase::Up && (is_known || is_late) {
            state.turn(Phase::Up, self.now());
            self.tried.notify_waiters();
            // The list may have come before.
            self.events.listed();
        }
        Ok(())
    }

    /// Ends the connection and all its open requests.
    fn end(&self, why: &io::Error) {
        {
            let mut state = self.state();
            state.asks = None;
            state.pending.clear();
            if state.phase != Phase::Gone {
                state.turn(Phase::Down(why.to_string()), self.now());
            }
        }
        tracing::debug!(peer = self.address, %why, "no connection to another agent");
        self.tried.notify_waiters();
        self.events.changed();
    }

    async fn listen(&self, mut read: Reader) -> io::Result<()> {
        let mut rest = Vec::new();
        loop {
            let mut head = [0; HEAD];
            read.read_exact(&mut head).await?;
            self.state().heard = self.now();
            match Answer::from_bytes(head)? {
                Answer::Piece { number, offset, length } => {
                    self.state().expect(number, offset, length, self.now())?;
                    self.take(&mut read, number, length as usize, &mut rest).await?;
                }
                Answer::Files { number, length } => {
                    let mut comes = [0; COMES];
                    read.read_exact(&mut comes).await?;
                    self.state().begin_files(number, length, &comes)?;
                    self.take(&mut read, number, length as usize, &mut rest).await?;
                }
                Answer::Wait { number } => self.state().notify(number, Event::Wait),
                Answer::ReadElsewhere { number } => self.state().elsewhere(number, self.now())?,
                Answer::Kept { generation, can_keep, is_known, length } => {
                    let kept = Kept { generation, can_keep, ..Kept::default() };
                    self.receive_kept(&mut read, kept, is_known, length).await?;
                }
                Answer::Goodbye => {
                    self.state().turn(Phase::Gone, self.now());
                    self.events.changed();
                }
            }
        }
    }

    /// Reads the body of an answer into its slot, or discards the body of a cancelled request.
    async fn take(
        &self,
        read: &mut Reader,
        number: u32,
        length: usize,
        rest: &mut Vec<u8>,
    ) -> io::Result<()> {
        let mut left = length;
        while left > 0 {
            let received = poll_fn(|cx| self.poll_take(read, cx, number, left, rest)).await?;
            if received == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= received;
            self.state().check(number);
        }
        Ok(())
    }

    /// Reads available bytes of a piece, under the lock, so that the request can't be cancelled
    /// meanwhile.
    fn poll_take(
        &self,
        read: &mut Reader,
        cx: &mut Context<'_>,
        number: u32,
        left: usize,
        rest: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let mut poll = |bytes: &mut [u8]| {
            let mut buffer = ReadBuf::new(bytes);
            let polled = Pin::new(&mut *read).poll_read(cx, &mut buffer);
            let received = buffer.filled().len();
            (polled.map_ok(|()| received), received)
        };
        let mut state = self.state();
        match state.pending.get_mut(&number).and_then(Pending::coming) {
            Some(incoming) => {
                let polled = incoming.take(left, poll);
                polled.unwrap_or_else(|| Poll::Ready(Err(invalid_message())))
            }
            None => {
                drop(state);
                rest.resize(left.min(64 << 10), 0);
                poll(rest).0
            }
        }
    }
}

/// Sends requests until sending fails.
async fn send(mut write: Writer, mut queue: mpsc::Receiver<Bytes>) -> io::Error {
    while let Some(request) = queue.recv().await {
        let sent = async { write.write_all(&request).await.and(write.flush().await) };
        if let Err(why) = sent.await {
            return why;
        }
    }
    io::ErrorKind::BrokenPipe.into()
}

/// Runs a link for the lifetime of the handle.
#[derive(Debug)]
pub(crate) struct LinkTask {
    pub(crate) link: Arc<Link>,
    task: tokio::task::JoinHandle<()>,
}

impl LinkTask {
    pub(super) fn new(member: MemberId, address: String, way: LinkConfig) -> Self {
        let (clock, events) = (Arc::clone(&way.clock), Arc::clone(&way.events));
        let link = Arc::new(Link::new(member, address, clock, events));
        let task = spawn(Arc::clone(&link).run(way));
        Self { link, task }
    }
}

impl Drop for LinkTask {
    fn drop(&mut self) {
        self.task.abort();
        self.link.end(&io::ErrorKind::NotConnected.into());
    }
}
