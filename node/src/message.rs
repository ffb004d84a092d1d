//! The messages between a worker and the agent of its node, each in a single packet of the socket.
//!
//! Must hold: a packet of any bytes gives a message or an error. The first message of a worker
//! names the version of the protocol.

use std::fmt;
use std::io;
use std::time::Duration;

use dl_format::{DatasetId, DecodeError, Version};
use wincode::{SchemaRead, SchemaWrite};

/// The version of the messages and of the memory layout. A worker of another version reads from the
/// servers.
pub const PROTOCOL: u32 = 6;

/// Bytes of a message, at most: less than the default buffer of a socket.
pub(crate) const MESSAGE_BYTES_MAX: usize = 128 << 10;

/// Hints in a message, at most: chunks needed soon.
pub const HINTS_MAX: usize = 256;

/// Runs of files or chunks in a message, at most, with room for other fields.
pub const RUNS_MAX: usize = 8 << 10;

/// A message to the agent.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub enum ToAgent {
    /// The first message of a worker.
    Hello(Hello),
    /// A request for a chunk.
    Want(Want),
    /// A request for files with absent chunks.
    WantFiles(WantFiles),
    /// The begin or resumption of an epoch: the agent fetches ahead along the order.
    Begin(Begin),
    /// The end of the epoch's reads.
    End,
    /// Runs of chunks to load into memory: begin and end of each, in order, without overlaps, at
    /// most `RUNS_MAX`.
    Prefetch(Vec<(u32, u32)>),
    /// A request for the status report; needs no `Hello`.
    Status,
    /// The request to end; needs no `Hello`.
    Stop,
}

/// The introduction of a worker.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The process id of the worker.
    pub pid: u32,
    /// The name of the dataset at the servers.
    pub dataset: String,
    /// The access to the servers.
    pub servers: Servers,
    /// The version that the worker already has; none for the version of the task. The descriptor of
    /// the worker's snapshot may come along.
    pub version: Option<WantedVersion>,
    /// Whether the process has a connection already, and needs another for concurrent waits.
    pub is_beside: bool,
}

/// A version of a dataset, by the ids in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub struct WantedVersion {
    dataset: [u8; 16],
    version: [u8; Version::LENGTH],
}

impl WantedVersion {
    /// By the ids of a snapshot.
    pub fn new(dataset: DatasetId, version: Version) -> Self {
        Self { dataset: *dataset.as_bytes(), version: version.to_bytes() }
    }

    /// The dataset and its version.
    ///
    /// # Errors
    /// For bytes that are no version.
    pub fn ids(&self) -> Result<(DatasetId, Version), DecodeError> {
        Ok((DatasetId::from_bytes(self.dataset), Version::from_bytes(&self.version)?))
    }
}

/// The access to the servers: the part of the settings of a connection that another
/// process can use.
#[derive(Clone, PartialEq, Eq, Hash, SchemaWrite, SchemaRead)]
pub struct Servers {
    /// The user.
    pub user: String,
    /// The key of the user.
    pub key: Option<String>,
    /// The addresses.
    pub addresses: Vec<String>,
    /// The trusted certificates (PEM).
    pub ca: Option<Vec<u8>>,
    /// The client's certificate and key (PEM).
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

/// The request of a worker for a chunk.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub struct Want {
    /// The number of the wait, from 1; repeated in the answer.
    pub id: u64,
    /// The number of the chunk in the snapshot.
    pub chunk: u32,
    /// The needed file. The answer may precede the rest of the chunk.
    pub file: u32,
    /// Milliseconds of the worker's wait.
    pub patience: u64,
    /// Chunks needed next, at most [`HINTS_MAX`].
    pub hints: Vec<u32>,
}

/// The request of a worker for files, which may come without their chunks.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub struct WantFiles {
    /// The number of the wait, from 1; repeated in the answer.
    pub id: u64,
    /// The numbers of the files.
    pub files: Vec<u32>,
}

/// The offset of a missing file in [`FromAgent::HereFiles`].
pub const NO_FILE: u32 = u32::MAX;

/// An order, and the rank of the worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, SchemaWrite, SchemaRead)]
pub struct Begin {
    /// As in the settings of an order, here and below.
    pub seed: u64,
    /// Counted from 0.
    pub epoch: u64,
    /// Chunks of a group.
    pub group: u32,
    /// The number of ranks.
    pub world: u32,
    /// None for a global partition.
    pub nodes: Option<u32>,
    /// Whether the tail is padded.
    pub is_padded: bool,
    /// The rank.
    pub rank: u32,
    /// The first position of the rank.
    pub position: u64,
    /// Runs of selected file numbers: begin and end of each; none for all files.
    pub selection: Option<Vec<(u32, u32)>>,
}

/// A message to a worker.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub enum FromAgent {
    /// A sign of life while the agent opens the dataset of a `Hello`.
    Opening,
    /// The answer to `Hello`, with the descriptors of snapshot, table and pin page.
    Welcome(Welcome),
    /// Descriptors of the arena's next segments, in order.
    Segments {
        /// Whether all segments have been sent.
        are_last: bool,
    },
    /// The chunk of a `Want`, or the file alone, is in a slot pinned for the worker. The page of
    /// the worker names the slot.
    Here {
        /// The number of the `Want`.
        id: u64,
    },
    /// The files of a `WantFiles`, in a slot pinned for the worker.
    HereFiles {
        /// The number of the `WantFiles`.
        id: u64,
        /// The offset of each file in the slot; [`NO_FILE`] for a missing file.
        offsets: Vec<u32>,
    },
    /// The worker must read from the servers.
    NotHere {
        /// The number of the `Want`.
        id: u64,
        /// The cause.
        reason: String,
    },
    /// The refusal of a `Hello`.
    Refused {
        /// Whether the dataset does not exist.
        is_missing: bool,
        /// The cause.
        reason: String,
    },
    /// The answer to `Prefetch`.
    Prefetching {
        /// Whether the chunks will be fetched, as far as memory goes. False if the agent has too
        /// many requests already.
        is_taken: bool,
    },
    /// The answer to `Status`: JSON.
    Status(String),
    /// The end of the agent.
    Stopping,
}

/// The sizes of the maps for a worker.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub struct Welcome {
    /// The unique number of the agent.
    pub agent: u64,
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// Slots of the arena.
    pub slots: u32,
    /// Chunks of the snapshot, and parts of large files.
    pub chunks: u32,
    /// Facts that the user should know.
    pub notes: Vec<String>,
}

pub(crate) fn encode<M>(message: &M) -> io::Result<Vec<u8>>
where
    M: SchemaWrite<wincode::config::DefaultConfig, Src = M>,
{
    let packet = wincode::serialize(message).map_err(io::Error::other)?;
    if packet.len() > MESSAGE_BYTES_MAX {
        let why = format!("the message is too long: {} bytes", packet.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(packet)
}

pub(crate) fn decode<M>(packet: &[u8]) -> io::Result<M>
where
    M: for<'a> SchemaRead<'a, wincode::config::DefaultConfig, Dst = M>,
{
    wincode::deserialize_exact(packet).map_err(|why| {
        io::Error::new(io::ErrorKind::InvalidData, format!("the message makes no sense: {why}"))
    })
}

/// Whole milliseconds, as in messages and shared memory.
pub fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_survive_encoding_and_a_hello_shows_no_key() {
        let servers = Servers {
            user: "ann".to_owned(),
            key: Some("sesame".to_owned()),
            addresses: vec!["127.0.0.1:7420".to_owned()],
            ca: Some(vec![1, 2]),
            certificate: None,
            plain_text_key: true,
            connect_timeout: 5_000,
            request_timeout: 60_000,
        };
        let (dataset, version) = ("ds".to_owned(), None);
        let hello =
            Hello { protocol: PROTOCOL, pid: 7, dataset, servers, version, is_beside: true };
        assert!(!format!("{hello:?}").contains("sesame"));
        let hello = ToAgent::Hello(hello);
        assert_eq!(decode::<ToAgent>(&encode(&hello).unwrap()).unwrap(), hello);
        let long = ToAgent::Prefetch(vec![(0, 1); 1 << 20]);
        assert!(encode(&long).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<ToAgent>(&bytes);
            let _ = decode::<FromAgent>(&bytes);
        }
    }
}
