//! How a worker comes to the memory of its node's agent.
//!
//! Must hold: every wait ends; after a failure the next try waits a while, so that a node without
//! an agent costs nothing but that.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dl_runtime::since_boot;

use super::layout::{Arena, Gauge, Maps, PinPage, Pinned, Shape, Table};
use super::message::{FromAgent, Hello, PROTOCOL, Servers, ToAgent, Welcome};
use super::runtime::Place;
use super::socket::Socket;
use crate::error::{Error, Kind};
use crate::process::{Owned, PerProcess};
use crate::task::TaskOptions;

/// How long an agent may take to begin to listen.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(2);

/// How long an agent may take to open a dataset: it may have to fetch the snapshot.
const WELCOME_PATIENCE: Duration = Duration::from_secs(330);

/// Knows how to attach to the agent of a task, for one dataset.
#[derive(Debug, Clone)]
pub(crate) struct Attacher {
    task: TaskOptions,
    place: Place,
    servers: Servers,
    dataset: String,
}

/// A connection to an agent and what is mapped of its memory.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(super) maps: Maps,
    /// Of the process that attached; so are the pins in `maps`.
    line: Owned<Mutex<Line>>,
    /// Of each child that has views.
    heirs: PerProcess<Heir>,
    /// The views of the current process on each slot.
    views: Box<[AtomicU32]>,
    attacher: Attacher,
    /// The number of the socket in `line`.
    socket: RawFd,
    /// Tells the agent from others.
    agent: u64,
    /// Looked at without the lock on the line.
    pub(super) patience: Duration,
    /// Until when nobody waits, since a wait was in vain: milliseconds since boot.
    pub(super) vain_until: AtomicU64,
}

/// The socket, and the number of the next request on it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) socket: Socket,
    pub(super) next_id: u64,
}

/// Where the pins of a child's views are.
#[derive(Debug)]
pub(super) enum Heir {
    /// In a page of its own.
    Own { pins: PinPage, socket: Socket },
    /// In the page of its parent, whose socket the child keeps open.
    Shared,
}

impl Attacher {
    pub(crate) fn new(task: TaskOptions, servers: Servers, dataset: String) -> Self {
        Self { place: Place::of(&task, &servers), task, servers, dataset }
    }

    /// Attaches, and starts the agent if there is none; gives the file of the snapshot too.
    pub(crate) fn attach(&self) -> Result<(Attached, File), Error> {
        self.attach_within(START_PATIENCE, WELCOME_PATIENCE)
    }

    /// The same for a read that can go elsewhere, within the patience of the task. An agent that needs
    /// longer to open the dataset goes on with that.
    pub(super) fn attach_again(&self) -> Result<(Attached, File), Error> {
        let half = self.task.patience / 2;
        self.attach_within(half, half)
    }

    fn attach_within(&self, start: Duration, welcome: Duration) -> Result<(Attached, File), Error> {
        let failed = |why: io::Error| {
            let subject = format!("the agent of task {}", self.task.name);
            Error::new(Kind::Local, "attach to", subject, why)
        };
        let until = since_boot().saturating_add(start);
        loop {
            let socket = self.connect(until).map_err(failed)?;
            match self.greet(socket, welcome) {
                // It was about to end: the next one is there, or is started.
                Err(why) if is_end(&why) && since_boot() < until => std::thread::sleep(LOOK),
                greeted => return greeted.map_err(failed)?,
            }
        }
    }

    /// A connection to the agent, which is started if nobody has.
    fn connect(&self, until: Duration) -> io::Result<Socket> {
        loop {
            let why = match self.place.connect() {
                Ok(socket) => return Ok(socket),
                Err(why) => why,
            };
            let is_absent =
                matches!(why.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
            if !is_absent || since_boot() >= until {
                return Err(why);
            }
            if !self.place.start(&self.task)? {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// Asks for the dataset and maps what the agent gives.
    fn greet(&self, socket: Socket, most: Duration) -> io::Result<Result<(Attached, File), Error>> {
        let patience = self.task.patience.min(most);
        let (welcome, files) = match self.say_hello(&socket, patience, most)? {
            Ok(welcomed) => welcomed,
            Err(refused) => return Ok(Err(refused)),
        };
        let [snapshot, table, pins] = files;
        let Welcome { agent, slot_bytes, slots, chunks } = welcome;
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
            line: Owned::new(Mutex::new(Line { socket, next_id: 1 })),
            socket: descriptor,
            heirs: PerProcess::new(),
            views: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            attacher: self.clone(),
            agent,
            patience: self.task.patience,
            vain_until: AtomicU64::new(0),
        };
        Ok(Ok((attached, File::from(snapshot))))
    }

    /// The answer to a greeting, with the descriptors of snapshot, table and pin page. `patience` is that
    /// for each sign of life, `most` that for the answer.
    fn say_hello(
        &self,
        socket: &Socket,
        patience: Duration,
        most: Duration,
    ) -> io::Result<Welcomed> {
        let hello = ToAgent::Hello(Hello {
            protocol: PROTOCOL,
            pid: std::process::id(),
            dataset: self.dataset.clone(),
            servers: self.servers.clone(),
        });
        socket.send(&hello, &[], patience)?;
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

/// What an agent gives to a worker, or why not.
type Welcomed = Result<(Welcome, [OwnedFd; 3]), Error>;

impl Attached {
    /// Whether the agent has ended, or belongs to another process.
    pub(super) fn is_over(&self) -> bool {
        self.line().is_none_or(|line| line.socket.is_closed())
    }

    /// The line to the agent; none in a child of the process that attached.
    pub(super) fn line(&self) -> Option<MutexGuard<'_, Line>> {
        Some(self.line.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes the pin of a read the pin of a view.
    pub(super) fn keep_for_view(&self, pinned: Pinned<'_>) -> u32 {
        let slot = pinned.into_slot();
        let views = self.views.get(slot as usize);
        if views.is_some_and(|views| views.fetch_add(1, Ordering::Relaxed) == 0) {
            self.maps.pins.count_viewed_slot();
        }
        slot
    }

    /// Whether a view may hold a slot: views of all workers leave slots to move chunks through.
    #[inline]
    pub(super) fn may_view(&self, slot: u32) -> bool {
        let pins = &self.maps.pins;
        let views = self.views.get(slot as usize);
        views.is_some_and(|views| views.load(Ordering::Relaxed) > 0)
            || pins.get(Gauge::Views) < pins.get(Gauge::ViewsMax)
    }

    /// A view of this process is gone.
    pub(super) fn drop_view(&self, slot: u32) {
        let views = self.views.get(slot as usize);
        let is_last = views.is_some_and(|views| views.fetch_sub(1, Ordering::Relaxed) == 1);
        if let Some(pins) = self.pins_of_views() {
            pins.end_view(slot, is_last);
        }
    }

    /// One more view of a slot that has views.
    pub(super) fn share_view(&self, slot: u32) {
        if let Some(views) = self.views.get(slot as usize) {
            views.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(count) = self.pins_of_views().and_then(|pins| pins.count(slot)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Where the pins of the views of this process are.
    fn pins_of_views(&self) -> Option<&PinPage> {
        match (self.line.get(), self.heirs.get()) {
            (Some(_), _) | (None, Some(Heir::Shared)) => Some(&self.maps.pins),
            (None, Some(Heir::Own { pins, .. })) => Some(pins),
            (None, None) => None,
        }
    }

    /// Slots on which there are views, and how many.
    fn viewed(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let counts = self.views.iter().map(|views| views.load(Ordering::Relaxed));
        (0..).zip(counts).filter(|(_, views)| *views > 0)
    }

    pub(super) fn has_views(&self) -> bool {
        self.viewed().next().is_some()
    }

    /// The socket of the current process.
    pub(super) fn descriptor(&self) -> Option<RawFd> {
        match self.heirs.get() {
            Some(Heir::Own { socket, .. }) => Some(socket.as_raw_fd()),
            Some(Heir::Shared) => None,
            // A fork must not wait for the thread that has the lock: the number stands in the socket.
            None => self.line.get().map(|_| self.socket),
        }
    }

    /// Pins all views for a child that is about to be made.
    pub(super) fn make_heir(&self, patience: Duration) -> Heir {
        match self.own_heir(patience) {
            Ok((pins, socket)) => {
                pins.add_views(self.viewed());
                Heir::Own { pins, socket }
            }
            Err(why) => {
                tracing::debug!(%why, "a child shares the pins of its parent");
                let pins = match self.heirs.get() {
                    Some(Heir::Own { pins, .. }) => pins,
                    Some(Heir::Shared) | None => &self.maps.pins,
                };
                pins.add_views(self.viewed());
                Heir::Shared
            }
        }
    }

    /// A second connection to the same agent.
    fn own_heir(&self, patience: Duration) -> io::Result<(PinPage, Socket)> {
        let socket = self.attacher.place.connect()?;
        let welcomed = self.attacher.say_hello(&socket, patience, patience)?;
        let (Welcome { agent, slots, .. }, [_, _, pins]) = welcomed.map_err(io::Error::other)?;
        if agent != self.agent {
            return Err(io::Error::other("the agent is another one"));
        }
        Ok((PinPage::map(&pins, slots)?, socket))
    }

    /// Takes over, in the child, what was made for it.
    pub(super) fn inherit(&self, heir: Heir) {
        if let Heir::Own { pins, .. } = &heir {
            // Another thread of the parent may have dropped views after their pins were set.
            pins.keep_views(self.viewed());
        }
        let _ = self.heirs.get_or_make(|| Ok::<_, std::convert::Infallible>(heir));
    }
}

/// Whether the other end of a connection has ended.
fn is_end(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the agent says something else than was asked")
}
