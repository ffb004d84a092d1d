//! How a worker comes to the memory of its node's agent.
//!
//! Must hold: every wait ends; after a failure the next try waits a while, so that a node without
//! an agent costs nothing but that.

use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dl_runtime::since_boot;

use super::layout::{Arena, Maps, PinPage, Shape, Table};
use super::message::{FromAgent, Hello, PROTOCOL, Servers, ToAgent, Welcome};
use super::runtime::Place;
use super::socket::Socket;
use crate::error::{Error, Kind};
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
    pub(super) line: Mutex<Line>,
    /// Looked at without the lock on the line.
    pub(super) patience: Duration,
}

/// The socket, and the number of the next request on it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) socket: Socket,
    pub(super) next_id: u64,
}

impl Attacher {
    pub(crate) fn new(task: TaskOptions, servers: Servers, dataset: String) -> Self {
        Self { place: Place::of(&task, &servers), task, servers, dataset }
    }

    /// Attaches, and starts the agent if there is none; gives the file of the snapshot too.
    pub(crate) fn attach(&self) -> Result<(Attached, File), Error> {
        let failed = |why: io::Error| {
            let subject = format!("the agent of task {}", self.task.name);
            Error::new(Kind::Local, "attach to", subject, why)
        };
        let until = since_boot().saturating_add(START_PATIENCE);
        loop {
            let socket = self.connect(until).map_err(failed)?;
            match self.greet(socket) {
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
    fn greet(&self, socket: Socket) -> io::Result<Result<(Attached, File), Error>> {
        let hello = ToAgent::Hello(Hello {
            protocol: PROTOCOL,
            pid: std::process::id(),
            dataset: self.dataset.clone(),
            servers: self.servers.clone(),
        });
        socket.send(&hello, &[], self.task.patience)?;
        let (welcome, files) = match socket.receive::<FromAgent>(WELCOME_PATIENCE)? {
            Some((FromAgent::Welcome(welcome), files)) => (welcome, files),
            Some((FromAgent::Refused { is_missing, reason }, _)) => {
                let kind = if is_missing { Kind::NotFound } else { Kind::Unavailable };
                let subject = format!("dl://{}", self.dataset);
                return Ok(Err(Error::new(kind, "open dataset", subject, reason)));
            }
            Some(_) => return Err(unexpected()),
            None => return Err(io::ErrorKind::ConnectionReset.into()),
        };
        let files: [_; 3] = files.try_into().map_err(|_| unexpected())?;
        let [snapshot, table, pins] = files;
        let Welcome { slot_bytes, slots, chunks } = welcome;
        let mut segments = Vec::new();
        loop {
            match socket.receive::<FromAgent>(self.task.patience)? {
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
        let line = Mutex::new(Line { socket, next_id: 1 });
        let attached = Attached { maps, line, patience: self.task.patience };
        Ok(Ok((attached, File::from(snapshot))))
    }
}

impl Attached {
    /// Whether the agent has ended.
    pub(super) fn is_over(&self) -> bool {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).socket.is_closed()
    }
}

/// Whether the other end of a connection has ended.
fn is_end(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the agent says something else than was asked")
}
