//! The messages of one worker process to the agent, and the answers.
//!
//! Must hold: only processes of the agent's user are served; a connection's pins end with the
//! connection; an invalid message ends only its own connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dl_node::{
    Begin, DESCRIPTORS_MAX, FromAgent, Gauge, Hello, PROTOCOL, PinPage, Socket, ToAgent, Want,
    Welcome,
};
use dl_runtime::{OsRandom, Random, Shutdown, blocking};
use libdiesel::agent::Owner;
use tokio::io::unix::AsyncFd;

use super::member::Member;
use super::opening::Opener;
use super::readiness::watch;
use crate::cache::{Cache, Connection, Counts, Waiter};
use crate::dataset::Refusal;
use crate::place::ChunkKey;
use crate::status;

/// Interval between two signs of life to a worker whose dataset is being opened.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// The shared state of all worker connections.
#[derive(Debug)]
pub(crate) struct WorkerServer {
    pub(crate) cache: Arc<Cache>,
    shutdown: Shutdown,
    pub(crate) opener: Opener,
    /// How long the agent lives without a worker.
    idle: Duration,
    /// A random number for each agent process.
    agent: u64,
    /// Number of processes waiting for a dataset being opened.
    opening: AtomicUsize,
}

impl WorkerServer {
    pub(crate) fn new(
        cache: Arc<Cache>,
        shutdown: Shutdown,
        member: Member,
        owner: Owner,
        idle: Duration,
    ) -> Self {
        let mut agent = [0; 8];
        OsRandom.fill(&mut agent);
        let agent = u64::from_le_bytes(agent);
        let (of_opener, end) = (Arc::clone(&cache), shutdown.clone());
        let opener = Opener::new(of_opener, end, Arc::new(member), owner);
        Self { cache, shutdown, opener, idle, agent, opening: AtomicUsize::new(0) }
    }

    /// Whether a process reads, or waits for its dataset.
    pub(crate) fn is_needed(&self) -> bool {
        let is_opening = self.opening.load(Ordering::Relaxed) > 0;
        is_opening || !self.cache.state().connections.is_empty()
    }

    /// Number of chunks and files sent to other agents.
    pub(crate) fn given(&self) -> u64 {
        let given = Counts::of_all(&self.cache.state().counts);
        given.chunks_to_peers + given.files_to_peers
    }

    /// Serves one process until its connection ends.
    pub(crate) async fn serve(&self, socket: Socket) -> io::Result<()> {
        if socket.peer_user()? != rustix::process::geteuid().as_raw() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let socket = Arc::new(socket);
        let events = watch(Arc::clone(&socket))?;
        let mut number = None;
        let served = self.answer_all(&events, &socket, &mut number).await;
        if let Some(number) = number {
            self.cache.state().leave(number);
            self.cache.moved.notify_one();
        }
        served
    }

    async fn answer_all(
        &self,
        events: &AsyncFd<Arc<Socket>>,
        socket: &Arc<Socket>,
        number: &mut Option<u64>,
    ) -> io::Result<()> {
        while let Some((message, files)) = next(events, socket).await? {
            match (message, *number) {
                (ToAgent::Hello(hello), None) => {
                    let handed = files.into_iter().next();
                    self.greet(socket, (hello, handed), number).await?;
                }
                (ToAgent::Want(want), Some(number)) => self.want(number, want),
                (ToAgent::WantFiles(want), Some(number)) => self.cache.want_files(number, want),
                (ToAgent::Begin(begin), Some(number)) => self.begin(number, begin)?,
                (ToAgent::End, Some(number)) => self.cache.state().end_order(number),
                (ToAgent::Prefetch(runs), Some(number)) => {
                    let is_taken = self.prefetch(number, runs);
                    socket.send(&FromAgent::Prefetching { is_taken }, &[], Duration::ZERO)?;
                }
                (ToAgent::Status, _) => {
                    let cache = Arc::clone(&self.cache);
                    let (member, idle) = (Arc::clone(&self.opener.member), self.idle);
                    let text = move || {
                        let (task, address) = (member.task(), member.address());
                        status::text(&cache, task, address, idle, member.about())
                    };
                    let status = blocking::run(text).await.unwrap_or_default();
                    socket.send(&FromAgent::Status(status), &[], Duration::ZERO)?;
                }
                (ToAgent::Stop, _) => {
                    self.shutdown.request();
                    socket.send(&FromAgent::Stopping, &[], Duration::ZERO)?;
                }
                (
                    ToAgent::Hello(_)
                    | ToAgent::Want(_)
                    | ToAgent::WantFiles(_)
                    | ToAgent::Begin(_)
                    | ToAgent::End
                    | ToAgent::Prefetch(_),
                    _,
                ) => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
        Ok(())
    }

    /// Opens the dataset of a worker and sends the descriptors to map.
    async fn greet(
        &self,
        socket: &Arc<Socket>,
        (hello, handed): (Hello, Option<OwnedFd>),
        number: &mut Option<u64>,
    ) -> io::Result<()> {
        let Hello { pid, protocol, is_beside, .. } = hello;
        let opened = match protocol {
            PROTOCOL => {
                self.opening.fetch_add(1, Ordering::Relaxed);
                let opened = self.open_with_signs(socket, hello, handed).await;
                self.opening.fetch_sub(1, Ordering::Relaxed);
                opened?
            }
            other => Err(Refusal {
                is_missing: false,
                reason: format!("the agent speaks version {PROTOCOL} of the protocol, not {other}"),
            }),
        };
        let dataset = match opened {
            Ok(dataset) => dataset,
            Err(Refusal { is_missing, reason }) => {
                return socket.send(
                    &FromAgent::Refused { is_missing, reason },
                    &[],
                    Duration::ZERO,
                );
            }
        };
        let (open, arena, segments) = {
            let state = self.cache.state();
            let open = state.opens.get(dataset).map(Arc::clone).ok_or_else(closed)?;
            let both = state.slots.arena().zip(state.slots.segments());
            let Some((arena, segments)) = both else { return Ok(()) };
            (open, arena, segments)
        };
        let (pins, pin_file) = PinPage::create(arena.shape().slots)?;
        let member = &self.opener.member;
        let welcome = Welcome {
            agent: self.agent,
            slot_bytes: arena.shape().slot_bytes,
            slots: arena.shape().slots,
            chunks: open.snapshot.holders(),
            notes: [&member.about().notes[..], &open.notes(member.task())].concat(),
        };
        let files = [open.snapshot_file.as_fd(), open.table_file.as_fd(), pin_file.as_fd()];
        // Before the worker can set a pin.
        let connection = Connection::new(pid, dataset, pins, Arc::clone(socket), is_beside);
        {
            let mut state = self.cache.state();
            state.opens.get(dataset).ok_or_else(closed)?;
            *number = Some(state.enter(connection));
        }
        socket.send(&FromAgent::Welcome(welcome), &files, Duration::ZERO)?;
        send_segments(socket, &segments)?;
        self.cache.moved.notify_one();
        Ok(())
    }

    /// Opens a dataset; the worker gets a sign of life every second meanwhile.
    async fn open_with_signs(
        &self,
        socket: &Socket,
        hello: Hello,
        handed: Option<OwnedFd>,
    ) -> io::Result<Result<usize, Refusal>> {
        let mut opening = pin!(self.opener.open(hello, handed));
        loop {
            tokio::select! {
                opened = &mut opening => return Ok(opened),
                () = self.cache.clock.sleep(HEARTBEAT_INTERVAL) => {
                    socket.send(&FromAgent::Opening, &[], Duration::ZERO)?;
                }
            }
        }
    }

    fn want(&self, connection: u64, want: Want) {
        let Want { id, chunk, file, patience, hints } = want;
        let patience = Duration::from_millis(patience).min(Duration::from_secs(60));
        let now = self.cache.now();
        let until = now.saturating_add(patience);
        let fetch = {
            let mut state = self.cache.state();
            let Some(dataset) = state.connections.get(connection).map(|one| one.dataset) else {
                return;
            };
            let key = ChunkKey { dataset, chunk };
            let slots = state.slots.count();
            state.connections.hint(connection, hints, slots);
            state.want(key, Waiter { connection, id, file, until }, now)
        };
        fetch.into_iter().for_each(|fetch| self.cache.fetch(fetch));
        self.cache.fetch_ahead();
    }

    fn begin(&self, connection: u64, begin: Begin) -> io::Result<()> {
        if !begin
            .selection
            .as_deref()
            .is_none_or(|runs| runs.is_sorted_by(|one, next| one.1 <= next.0))
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut state = self.cache.state();
        let Some(one) = state.connections.get(connection) else { return Ok(()) };
        let dataset = one.dataset;
        one.pins.set(Gauge::Position, begin.position);
        let Some(open) = state.opens.get(dataset).map(Arc::clone) else { return Ok(()) };
        let first_files = Arc::clone(&open.first_files);
        if let Err(why) = state.orders.begin(connection, dataset, first_files, begin) {
            tracing::warn!(%why, "start an order: nothing is fetched ahead");
        }
        state.announce_large_groups();
        drop(state);
        self.cache.moved.notify_one();
        Ok(())
    }

    /// Notes a prefetch; false when too many prefetches wait.
    fn prefetch(&self, connection: u64, runs: Vec<(u32, u32)>) -> bool {
        let is_taken = self.cache.state().prefetch(connection, runs);
        self.cache.moved.notify_one();
        is_taken
    }
}

/// The error for a version that was closed meanwhile: the worker attaches again, which opens it.
fn closed() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

/// Sends the descriptors of the arena, in packets.
fn send_segments(socket: &Socket, segments: &[OwnedFd]) -> io::Result<()> {
    let mut packets = segments.chunks(DESCRIPTORS_MAX).peekable();
    while let Some(packet) = packets.next() {
        let files: Vec<BorrowedFd<'_>> = packet.iter().map(AsFd::as_fd).collect();
        let are_last = packets.peek().is_none();
        socket.send(&FromAgent::Segments { are_last }, &files, Duration::ZERO)?;
    }
    Ok(())
}

/// The next message of a process, with its descriptors; none at the end of the process.
async fn next(
    events: &AsyncFd<Arc<Socket>>,
    socket: &Socket,
) -> io::Result<Option<(ToAgent, Vec<OwnedFd>)>> {
    loop {
        let mut ready = events.readable().await?;
        if let Ok(received) = ready.try_io(|_| socket.try_receive::<ToAgent>()) {
            return received;
        }
    }
}
