//! What a worker and the agent of its node say to each other: one message in one packet of their
//! socket.
//!
//! Must hold: a packet of any bytes becomes a message or an error; the first message of a worker names
//! the version of the protocol.

use std::fmt;
use std::io;
use std::time::Duration;

use wincode::{SchemaRead, SchemaWrite};

use crate::order::{Order, OrderSettings, Partition, Tail};

/// The version of these messages and of the layout of memory. A worker of another version reads
/// from the servers.
pub const PROTOCOL: u32 = 2;

/// Bytes of a message at most: less than a socket holds by default.
pub(super) const MESSAGE_BYTES_MAX: usize = 128 << 10;

/// Chunks named as soon to be wanted in one message.
pub const HINTS_MAX: usize = 256;

/// Runs of files or chunks in one message, which has room for others.
pub(super) const RUNS_MAX: usize = 8 << 10;

/// What the agent is told or asked.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub enum ToAgent {
    /// The first message of a worker.
    Hello(Hello),
    /// A chunk is needed now.
    Want(Want),
    /// Files are needed now, whose chunks are absent.
    WantFiles(WantFiles),
    /// An epoch begins or goes on: the agent fetches ahead along its order.
    Begin(Begin),
    /// The epoch is not read any more.
    End,
    /// Runs of chunks that are to be in memory: where each begins and ends, in their order. None
    /// overlaps another one, and there are at most [`RUNS_MAX`].
    Prefetch(Vec<(u32, u32)>),
    /// What the agent does; needs no `Hello`.
    Status,
    /// The agent is to end; needs no `Hello`.
    Stop,
}

/// Who wants to read what.
#[derive(Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The worker.
    pub pid: u32,
    /// The dataset, as the servers name it.
    pub dataset: String,
    /// How to reach the servers.
    pub servers: Servers,
}

/// How to reach the servers: the part of [`ConnectOptions`](crate::ConnectOptions) that another
/// process can use.
#[derive(Clone, PartialEq, Eq, Hash, SchemaWrite, SchemaRead)]
pub struct Servers {
    /// Who is asking.
    pub user: String,
    /// Proves it.
    pub key: Option<String>,
    /// Addresses.
    pub addresses: Vec<String>,
    /// Certificates to trust (PEM).
    pub ca: Option<Vec<u8>>,
    /// The client's certificate and its key (PEM).
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// Whether the key may travel in plain text.
    pub plain_text_key: bool,
    /// Milliseconds.
    pub connect_timeout: u64,
    /// Milliseconds.
    pub request_timeout: u64,
}

/// Shows no key.
impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Shows no key.
impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("protocol", &self.protocol)
            .field("pid", &self.pid)
            .field("dataset", &self.dataset)
            .field("user", &self.servers.user)
            .finish_non_exhaustive()
    }
}

/// A chunk that a worker waits for.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub struct Want {
    /// The number of the wait, from 1; comes back in the answer.
    pub id: u64,
    /// Its number in the snapshot.
    pub chunk: u32,
    /// The file that is needed of it: may be answered before the chunk is complete.
    pub file: u32,
    /// Milliseconds for which the worker waits.
    pub patience: u64,
    /// Chunks that it needs next, at most [`HINTS_MAX`].
    pub hints: Vec<u32>,
}

/// Files that a worker waits for, which may come without their chunks.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub struct WantFiles {
    /// The number of the wait, from 1; comes back in the answer.
    pub id: u64,
    /// Their numbers.
    pub files: Vec<u32>,
}

/// The offset of a file that did not come, in [`FromAgent::HereFiles`].
pub const NO_FILE: u32 = u32::MAX;

/// An order, and the rank of it that a worker reads.
#[derive(Debug, Clone, PartialEq, Eq, Hash, SchemaWrite, SchemaRead)]
pub struct Begin {
    /// Of the order, as [`OrderSettings`] names them, here and below.
    pub seed: u64,
    /// Counted from 0.
    pub epoch: u64,
    /// Chunks.
    pub group: u32,
    /// Ranks.
    pub world: u32,
    /// None for a global partition.
    pub nodes: Option<u32>,
    /// Whether the tail is padded.
    pub is_padded: bool,
    /// The rank.
    pub rank: u32,
    /// The position of the rank at which the worker begins.
    pub position: u64,
    /// Runs of file numbers that are read: where each begins and ends; none for all.
    pub selection: Option<Vec<(u32, u32)>>,
}

impl Begin {
    /// The rank of an order at a position; none where the order can't be told in one message.
    pub(super) fn of(order: &Order, rank: u32, position: u64) -> Option<Self> {
        let OrderSettings { seed, epoch, group, world, partition, tail } = *order.settings();
        if order.is_resumed() {
            return None;
        }
        let nodes = match partition {
            Partition::Global => None,
            Partition::Local { nodes } => Some(nodes),
        };
        let selection = match order.selection().runs(RUNS_MAX) {
            Ok(runs) => runs,
            Err(_) => return None,
        };
        let is_padded = tail == Tail::Pad;
        Some(Self { seed, epoch, group, world, nodes, is_padded, rank, position, selection })
    }

    /// The settings of the order.
    pub fn settings(&self) -> OrderSettings {
        let Self { seed, epoch, group, world, nodes, is_padded, .. } = *self;
        let partition = nodes.map_or(Partition::Global, |nodes| Partition::Local { nodes });
        let tail = if is_padded { Tail::Pad } else { Tail::Drop };
        OrderSettings { seed, epoch, group, world, partition, tail }
    }
}

/// What a worker is told.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub enum FromAgent {
    /// The dataset of a `Hello` is being opened: a sign of life.
    Opening,
    /// The answer to `Hello`, with the descriptors of snapshot, table and pin page.
    Welcome(Welcome),
    /// Some descriptors of the arena, in order; the last ones say so.
    Segments {
        /// Whether all segments are told now.
        are_last: bool,
    },
    /// The chunk of a `Want`, or the file alone, is in a slot that was pinned for the worker. The page of
    /// the worker says in which.
    Here {
        /// Of the `Want`.
        id: u64,
    },
    /// The files of a `WantFiles` that came, in a slot that was pinned for the worker.
    HereFiles {
        /// Of the `WantFiles`.
        id: u64,
        /// Where each file lies in the slot; [`NO_FILE`] for one that did not come.
        offsets: Vec<u32>,
    },
    /// The worker has to read from the servers.
    NotHere {
        /// Of the `Want`.
        id: u64,
        /// Why.
        reason: String,
    },
    /// The answer to a `Hello` that can't be met.
    Refused {
        /// Whether the dataset is not there.
        is_missing: bool,
        /// Why.
        reason: String,
    },
    /// The answer to `Prefetch`.
    Prefetching {
        /// Whether the chunks are fetched as far as memory goes; else too many are asked for already.
        is_taken: bool,
    },
    /// The answer to `Status`: JSON.
    Status(String),
    /// The agent ends.
    Stopping,
}

/// What a worker may map.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub struct Welcome {
    /// A number that tells this agent from every other one.
    pub agent: u64,
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// Slots of the arena.
    pub slots: u32,
    /// Chunks of the snapshot, and parts of large files.
    pub chunks: u32,
}

/// A message as a packet.
pub(super) fn encode<M>(message: &M) -> io::Result<Vec<u8>>
where
    M: SchemaWrite<wincode::config::DefaultConfig, Src = M>,
{
    let packet = wincode::serialize(message).map_err(io::Error::other)?;
    if packet.len() > MESSAGE_BYTES_MAX {
        let why = format!("a message of {} bytes is too long", packet.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(packet)
}

/// The message of a packet.
pub(super) fn decode<M>(packet: &[u8]) -> io::Result<M>
where
    M: for<'a> SchemaRead<'a, wincode::config::DefaultConfig, Dst = M>,
{
    wincode::deserialize_exact(packet).map_err(|why| {
        io::Error::new(io::ErrorKind::InvalidData, format!("a message that makes no sense: {why}"))
    })
}

/// Milliseconds of a duration.
pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
