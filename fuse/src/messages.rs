//! The messages between the holder of a mount, its server, and tools.
//!
//! Must hold: holder and server are the same program, so their messages need no version. A tool of
//! another version gets an error.

use libdiesel::agent::{DatasetId, Version};
use wincode::{SchemaRead, SchemaWrite};

/// A dataset and its version, as bytes.
pub(crate) type Ids = ([u8; 16], Vec<u8>);

pub(crate) fn ids_of(ids: (DatasetId, Version)) -> Ids {
    (*ids.0.as_bytes(), ids.1.to_bytes().to_vec())
}

pub(crate) fn ids(from: &Ids) -> Option<(DatasetId, Version)> {
    Some((DatasetId::from_bytes(from.0), Version::from_bytes(&from.1).ok()?))
}

/// A message to the server.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub(crate) enum ToServer {
    /// The first message: open the dataset, at the version of the mount if there is one already.
    Open(Option<Ids>),
    /// Serve the channels that come along.
    Serve {
        /// Whether to make further channels, as the holder has a single channel.
        clones: bool,
        /// Whether the kernel sends requests of an earlier server again.
        resends: bool,
    },
    /// Report the numbers.
    Count,
}

/// A message of the server.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub enum FromServer {
    /// The dataset is open.
    Opened {
        /// The dataset and its version.
        ids: ([u8; 16], Vec<u8>),
        /// The job of the mount.
        task: String,
    },
    /// The server can't start; with the exit code of a command.
    Failed {
        /// The exit code.
        exit: u8,
        /// The reason.
        why: String,
    },
    /// A fact for the user.
    Note(String),
    /// The numbers, as JSON.
    Counted(String),
}

/// A message of the holder to the command that started the holder.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub enum Report {
    /// Files can be read.
    Ready,
    /// A fact for the user.
    Note(String),
    /// There is no mount; with the exit code of the command.
    Failed {
        /// The exit code.
        exit: u8,
        /// The reason.
        why: String,
    },
}

/// A question of a tool.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub(crate) enum Question {
    Status,
    /// Close the connection at the end of the mount.
    Wait,
}

/// The answer of the holder: JSON.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub(crate) enum Answer {
    Status(String),
}
