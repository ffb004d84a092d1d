//! Attaching a worker to the memory of its node's agent.
//!
//! Must hold: every wait ends. After a failure the next attempt follows after a while, so a missing
//! agent costs little.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

use dl_node::{
    Arena, FilesAlone, FromAgent, Gauge, Hello, Maps, PROTOCOL, PinPage, Pinned, Servers, Shape,
    Socket, Table, ToAgent, WantedVersion, Welcome,
};
use dl_runtime::{locked, since_boot};

use super::address::{AgentAddress, is_absence};
use super::handover::snapshot_file;
use super::recent::RecentFiles;
use crate::error::{Error, Kind};
use crate::process::{Owned, PerProcess};
use crate::snapshot::{Snapshot, SnapshotCache};
use crate::task::TaskOptions;

/// Time for a new agent to begin to listen.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two attempts to connect.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Time for an agent to open a dataset, perhaps with the download of a snapshot.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(330);

/// Connections of a process for waits beside the first, at most.
const BESIDE_MAX: usize = 7;

/// Time for such a connection.
const BESIDE_TIMEOUT: Duration = Duration::from_millis(500);

/// Time between two attempts to attach, at least and at most.
const RETRY_DELAY: Duration = Duration::from_secs(2);
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// The pause after a failed attempt, as a multiple of its duration: attempts cost a reader at most
/// a 50th of its time.
const PAUSE_FACTOR: u32 = 50;

/// The pause after a failed attempt to attach.
pub(super) fn pause_after(attempt: Duration) -> Duration {
    attempt.saturating_mul(PAUSE_FACTOR).clamp(RETRY_DELAY, AGAIN_MAX)
}

/// The settings to attach to the agent of a task, for a dataset.
#[derive(Debug, Clone)]
pub(crate) struct Attacher {
    task: TaskOptions,
    address: AgentAddress,
    servers: Servers,
    dataset: String,
    /// The snapshot of the wanted version; none for the version of the task.
    wanted: Option<Arc<Snapshot>>,
    /// The folder with the files of snapshots.
    cache: Option<SnapshotCache>,
}

/// A connection to an agent, with the maps of its memory.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(super) maps: Maps,
    /// Belongs to the process that attached, as do the pins in `maps`.
    channel: Owned<Mutex<Channel>>,
    /// Further connections, made on demand, for waits of several threads at once.
    beside: Owned<[OnceLock<WaitChannel>; BESIDE_MAX]>,
    /// The pins of each child with views.
    child_pins: PerProcess<ChildPins>,
    /// The number of views of the current process on each slot.
    views: Box<[AtomicU32]>,
    attacher: Attacher,
    /// The descriptor of the socket in `channel`.
    socket: RawFd,
    /// The unique number of the agent.
    agent: u64,
    /// Facts that the user should know.
    pub(crate) notes: Vec<String>,
    /// Stored here for reads without the lock.
    pub(super) patience: Duration,
    /// The end of a pause in waits after a failed wait: milliseconds since boot.
    pub(super) paused_until: AtomicU64,
    /// The end of a time without requests of orders, after refused chunks in a row: milliseconds since
    /// boot.
    pub(super) refused_until: AtomicU64,
    pub(super) read_alone: RecentFiles,
}

/// The socket, and the requests so far.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) socket: Socket,
    pub(super) next_id: u64,
    pub(super) refusals: Refusals,
}

impl Channel {
    fn new(socket: Socket) -> Self {
        Self { socket, next_id: 1, refusals: Refusals::default() }
    }
}

/// The chunks refused by the agent since its last chunk.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// The number of chunks, each counted once in a row of its refusals.
    pub(super) chunks: u32,
    pub(super) last: Option<u32>,
}

/// A connection for waits, with a page for their pins.
#[derive(Debug)]
struct WaitChannel {
    pins: PinPage,
    channel: Mutex<Channel>,
    /// The descriptor of the socket in `channel`.
    socket: RawFd,
}

/// A connection for a single wait, and its page if it is not the first connection.
pub(super) type ForWait<'a> = (MutexGuard<'a, Channel>, Option<&'a PinPage>);

#[derive(Debug)]
pub(super) enum ChildPins {
    /// In a separate page.
    Own { pins: PinPage, socket: Socket },
    /// In the page of the parent, whose socket the child keeps open.
    Shared,
}

impl Attacher {
    /// For the version of the task.
    pub(crate) fn new(
        task: TaskOptions,
        servers: Servers,
        dataset: String,
        cache: Option<SnapshotCache>,
    ) -> Self {
        let address = AgentAddress::of(&task, &servers);
        Self { address, task, servers, dataset, wanted: None, cache }
    }

    /// For the version of a snapshot. A new agent then serves this version.
    pub(crate) fn of_version(self, snapshot: Arc<Snapshot>) -> Self {
        Self { wanted: Some(snapshot), ..self }
    }

    pub(crate) fn cache(&self) -> Option<&SnapshotCache> {
        self.cache.as_ref()
    }

    /// A note about folders that can't be used, and the folder in their place.
    pub(crate) fn passed_over(&self) -> Option<String> {
        self.address.passed_over()
    }

    /// Attaches, and starts a missing agent; also gives the snapshot.
    pub(crate) fn attach(&self) -> Result<(Attached, Arc<Snapshot>), Error> {
        self.attach_within(START_TIMEOUT, WELCOME_TIMEOUT)
    }

    /// The same within the patience of the task, for a read with another source. A slower agent
    /// opens the dataset in the background.
    pub(super) fn attach_again(&self) -> Result<(Attached, Arc<Snapshot>), Error> {
        let half = self.task.patience / 2;
        self.attach_within(half, half)
    }

    fn attach_within(
        &self,
        start: Duration,
        welcome: Duration,
    ) -> Result<(Attached, Arc<Snapshot>), Error> {
        let failed = |why: io::Error| {
            let subject = format!("the agent of task {}", self.task.name);
            Error::new(Kind::Local, "attach to", subject, why)
        };
        let until = since_boot().saturating_add(start);
        loop {
            let socket = self.connect(until).map_err(failed)?;
            match self.greet(socket, welcome) {
                // The agent was ending: the next agent runs, or must be started.
                Err(why) if is_end(&why) && since_boot() < until => {
                    std::thread::sleep(POLL_INTERVAL)
                }
                greeted => return greeted.map_err(failed)?,
            }
        }
    }

    /// A connection to the agent; starts a missing agent.
    fn connect(&self, until: Duration) -> io::Result<Socket> {
        loop {
            let why = match self.address.connect() {
                Ok(socket) => return Ok(socket),
                Err(why) => why,
            };
            if !is_absence(&why) || since_boot() >= until {
                return Err(why);
            }
            if !self.address.start(&self.task)? {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }

    /// Asks for the dataset, and maps the memory of the agent.
    fn greet(
        &self,
        socket: Socket,
        most: Duration,
    ) -> io::Result<Result<(Attached, Arc<Snapshot>), Error>> {
        let patience = self.task.patience.min(most);
        let wanted = self.wanted.as_ref();
        let handed = wanted.map(|wanted| snapshot_file(wanted, self.cache.as_ref())).transpose()?;
        let (welcome, files) = match self.say_hello(&socket, handed, patience, most, false)? {
            Ok(welcomed) => welcomed,
            Err(refused) => return Ok(Err(refused)),
        };
        let [snapshot, table, pins] = files;
        let snapshot = match Snapshot::map_shared(&snapshot.into(), "the agent's snapshot".as_ref())
        {
            Ok(snapshot) => Arc::new(snapshot),
            Err(damaged) => return Ok(Err(damaged)),
        };
        if wanted.is_some_and(|wanted| !wanted.is_same(&snapshot)) {
            return Err(io::Error::other("the agent serves another snapshot"));
        }
        let snapshot = wanted.map_or(snapshot, Arc::clone);
        let Welcome { agent, slot_bytes, slots, chunks, notes } = welcome;
        let mut segments = Vec::new();
        loop {
            match socket.receive::<FromAgent>(patience)? {
                Some((FromAgent::Segments { are_last }, files)) => {
                    segments.extend(files);
                    if are_last {
                        break;
                    }
                }
                Some(_) => return Err(unexpected()),
                None => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
        let arena = Arena::map(Shape { slot_bytes, slots }, &segments)?;
        let maps =
            Maps { arena, table: Table::map(&table, chunks)?, pins: PinPage::map(&pins, slots)? };
        let descriptor = socket.as_raw_fd();
        let attached = Attached {
            maps,
            channel: Owned::new(Mutex::new(Channel::new(socket))),
            socket: descriptor,
            beside: Owned::new(Default::default()),
            child_pins: PerProcess::new(),
            views: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            attacher: self.clone().of_version(Arc::clone(&snapshot)),
            agent,
            notes,
            patience: self.task.patience,
            paused_until: AtomicU64::new(0),
            refused_until: AtomicU64::new(0),
            read_alone: RecentFiles::default(),
        };
        Ok(Ok((attached, snapshot)))
    }

    /// Sends the introduction, with the descriptor of the wanted snapshot for an agent without the
    /// snapshot; gives the answer with the descriptors of snapshot, table and pin page. `patience`
    /// limits the wait for each sign of life, `most` the whole wait.
    fn say_hello(
        &self,
        socket: &Socket,
        handed: Option<OwnedFd>,
        patience: Duration,
        most: Duration,
        is_beside: bool,
    ) -> io::Result<Welcomed> {
        let hello = ToAgent::Hello(Hello {
            protocol: PROTOCOL,
            pid: std::process::id(),
            dataset: self.dataset.clone(),
            servers: self.servers.clone(),
            version: self.wanted.as_deref().map(wanted),
            is_beside,
        });
        let handed: Vec<BorrowedFd<'_>> = handed.iter().map(AsFd::as_fd).collect();
        socket.send(&hello, &handed, patience)?;
        let until = since_boot().saturating_add(most);
        loop {
            let left = until.saturating_sub(since_boot());
            match socket.receive::<FromAgent>(patience.min(left))? {
                Some((FromAgent::Opening, _)) => {}
                Some((FromAgent::Welcome(welcome), files)) => {
                    return Ok(Ok((welcome, files.try_into().map_err(|_| unexpected())?)));
                }
                Some((FromAgent::Refused { is_missing, reason }, _)) => {
                    let kind = if is_missing { Kind::NotFound } else { Kind::Unavailable };
                    let subject = format!("dl://{}", self.dataset);
                    return Ok(Err(Error::new(kind, "open dataset", subject, reason)));
                }
                Some(_) => return Err(unexpected()),
                None => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
    }
}

/// The descriptors for a worker, or the refusal.
type Welcomed = Result<(Welcome, [OwnedFd; 3]), Error>;

impl Attached {
    /// Whether the agent has ended, or the attachment belongs to another process.
    pub(super) fn is_over(&self) -> bool {
        // A thread that waits for an answer finds the end by itself.
        self.channel.get().is_none_or(|channel| {
            try_locked(channel).is_some_and(|channel| channel.socket.is_closed())
        })
    }

    /// How absent files come while the process reads along no order.
    #[inline]
    pub(super) fn files_alone(&self) -> FilesAlone {
        FilesAlone::of_number(self.maps.pins.get(Gauge::FilesAlone))
    }

    /// Chunks of the largest group that fits, while the agent gives no absent chunk for an order with
    /// larger groups.
    #[inline]
    pub(super) fn group_max(&self) -> Option<u64> {
        self.maps.pins.get(Gauge::GroupMax).checked_sub(1)
    }

    /// The connection to the agent; none in a child of the process that attached.
    pub(super) fn channel(&self) -> Option<MutexGuard<'_, Channel>> {
        Some(locked(self.channel.get()?))
    }

    /// A connection without a wait: a free connection, a new connection, or the first connection when
    /// it is free. None in a child of the process that attached.
    pub(super) fn for_wait(&self) -> Option<ForWait<'_>> {
        let first = self.channel.get()?;
        if let Some(free) = try_locked(first) {
            return Some((free, None));
        }
        for place in self.beside.get()? {
            if place.get().is_none() {
                match self.connect(BESIDE_TIMEOUT, true) {
                    Ok((pins, socket)) => {
                        let descriptor = socket.as_raw_fd();
                        let channel = Mutex::new(Channel::new(socket));
                        // The connection of a faster thread wins.
                        let _ = place.set(WaitChannel { pins, channel, socket: descriptor });
                    }
                    Err(why) => {
                        tracing::debug!(%why, "another connection for a wait");
                        break;
                    }
                }
            }
            let beside = place.get()?;
            if let Some(free) = try_locked(&beside.channel) {
                return Some((free, Some(&beside.pins)));
            }
        }
        Some((locked(first), None))
    }

    /// Turns the pin of a read into the pin of a view.
    pub(super) fn keep_for_view(&self, pinned: Pinned<'_>) -> u32 {
        let slot = pinned.into_slot();
        let views = self.views.get(slot as usize);
        if views.is_some_and(|views| views.fetch_add(1, Ordering::Relaxed) == 0) {
            self.maps.pins.count_viewed_slot();
        }
        slot
    }

    /// Whether a view may hold a slot. The limit for all workers leaves slots for chunks on the
    /// way.
    #[inline]
    pub(super) fn may_view(&self, slot: u32) -> bool {
        let pins = &self.maps.pins;
        let views = self.views.get(slot as usize);
        views.is_some_and(|views| views.load(Ordering::Relaxed) > 0)
            || pins.get(Gauge::Views) < pins.get(Gauge::ViewsMax)
    }

    /// Ends a view of the process.
    pub(super) fn drop_view(&self, slot: u32) {
        let views = self.views.get(slot as usize);
        let is_last = views.is_some_and(|views| views.fetch_sub(1, Ordering::Relaxed) == 1);
        if let Some(pins) = self.pins_of_views() {
            pins.end_view(slot, is_last);
        }
    }

    /// Adds a view to a slot with views.
    pub(super) fn share_view(&self, slot: u32) {
        if let Some(views) = self.views.get(slot as usize) {
            views.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(count) = self.pins_of_views().and_then(|pins| pins.count(slot)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The page with the pins of the process's views.
    fn pins_of_views(&self) -> Option<&PinPage> {
        match (self.channel.get(), self.child_pins.get()) {
            (Some(_), _) | (None, Some(ChildPins::Shared)) => Some(&self.maps.pins),
            (None, Some(ChildPins::Own { pins, .. })) => Some(pins),
            (None, None) => None,
        }
    }

    /// The slots with views, and their numbers of views.
    fn viewed(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let counts = self.views.iter().map(|views| views.load(Ordering::Relaxed));
        (0..).zip(counts).filter(|(_, views)| *views > 0)
    }

    pub(super) fn has_views(&self) -> bool {
        self.viewed().next().is_some()
    }

    /// The descriptors of the current process's sockets.
    pub(super) fn descriptors(&self) -> Vec<RawFd> {
        match self.child_pins.get() {
            Some(ChildPins::Own { socket, .. }) => vec![socket.as_raw_fd()],
            Some(ChildPins::Shared) => Vec::new(),
            // Copies of the numbers: a fork must not wait for the locks on the sockets.
            None => {
                let first = self.channel.get().map(|_| self.socket);
                first.into_iter().chain(self.beside_descriptors()).collect()
            }
        }
    }

    /// The descriptors of the further connections of the process that attached.
    pub(super) fn beside_descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        let beside = self.beside.get().into_iter().flatten().filter_map(OnceLock::get);
        beside.map(|beside| beside.socket)
    }

    /// Pins all views for a future child.
    pub(super) fn pin_for_child(&self, patience: Duration) -> ChildPins {
        match self.connect(patience, false) {
            Ok((pins, socket)) => {
                pins.add_views(self.viewed());
                ChildPins::Own { pins, socket }
            }
            Err(why) => {
                tracing::debug!(%why, "a child will share the pins of its parent");
                let pins = match self.child_pins.get() {
                    Some(ChildPins::Own { pins, .. }) => pins,
                    Some(ChildPins::Shared) | None => &self.maps.pins,
                };
                pins.add_views(self.viewed());
                ChildPins::Shared
            }
        }
    }

    /// Opens another connection to the same agent.
    fn connect(&self, patience: Duration, is_beside: bool) -> io::Result<(PinPage, Socket)> {
        let socket = self.attacher.address.connect()?;
        let welcomed = self.attacher.say_hello(&socket, None, patience, patience, is_beside)?;
        let (Welcome { agent, slots, .. }, [_, _, pins]) = welcomed.map_err(io::Error::other)?;
        if agent != self.agent {
            return Err(io::Error::other("another agent answers"));
        }
        Ok((PinPage::map(&pins, slots)?, socket))
    }

    /// Takes over, in the child, the pins made before the fork.
    pub(super) fn inherit(&self, child_pins: ChildPins) {
        if let ChildPins::Own { pins, .. } = &child_pins {
            // Another thread of the parent may have dropped views after the pins were set.
            pins.keep_views(self.viewed());
        }
        let _ = self.child_pins.get_or_make(|| Ok::<_, std::convert::Infallible>(child_pins));
    }
}

/// The value of a lock that is free.
fn try_locked<T>(value: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match value.try_lock() {
        Ok(free) => Some(free),
        Err(TryLockError::Poisoned(free)) => Some(free.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Whether the error means the end of the connection.
fn is_end(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the agent sent an unexpected message")
}

/// The version of a snapshot, for the agent.
fn wanted(snapshot: &Snapshot) -> WantedVersion {
    WantedVersion::new(snapshot.dataset(), snapshot.version())
}
