//! The messages between the holder of a mount, its server, and tools.
//!
//! Must hold: holder and server are the same program, so their messages need no version. A tool of
//! another version gets an error.

use dl_format::{DatasetId, Version};
use serde::{Deserialize, Serialize};
use wincode::{SchemaRead, SchemaWrite};

/// A dataset and its version, as bytes.
pub(crate) type Ids = ([u8; 16], Vec<u8>);

/// A version that the mount shows, or showed before, by its generation.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead, Serialize, Deserialize)]
pub struct Shown {
    /// Number of versions that the mount showed before.
    pub generation: u32,
    /// The dataset and its version, as bytes.
    pub ids: ([u8; 16], Vec<u8>),
}

pub(crate) fn ids_of(ids: (DatasetId, Version)) -> Ids {
    (*ids.0.as_bytes(), ids.1.to_bytes().to_vec())
}

pub(crate) fn ids(from: &Ids) -> Option<(DatasetId, Version)> {
    Some((DatasetId::from_bytes(from.0), Version::from_bytes(&from.1).ok()?))
}

/// What the kernel of a mount can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, SchemaWrite, SchemaRead, Serialize, Deserialize)]
pub(crate) struct Features {
    /// Whether the requests of a dead server can be sent again.
    pub resends: bool,
    /// Whether all names can be forgotten at once.
    pub has_epochs: bool,
}

/// A message to the server.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub(crate) enum ToServer {
    /// The first message: open the versions of the mount, the shown version first; none before the
    /// mount.
    Open(Vec<Shown>),
    /// Serve the channels that come along. Of a kernel that does not send requests again, a single
    /// channel comes.
    Serve(Features),
    /// Report the numbers.
    Count,
    /// Show the newest version, and report it.
    Refresh,
    /// The version that the server has sent is known, for later servers.
    Recorded,
}

/// A message of the server.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub enum FromServer {
    /// The dataset is open.
    Opened {
        /// The shown version.
        shown: Shown,
        /// The job of the mount.
        task: String,
    },
    /// Another version is shown from now on.
    Switched(Shown),
    /// The end of a refresh: the reason why the mount stays at its version, if it could not be done.
    Refreshed(Option<String>),
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
    /// Show the newest version.
    Refresh,
    /// Close the connection at the end of the mount.
    Wait,
}

/// The answer of the holder.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub(crate) enum Answer {
    /// JSON.
    Status(String),
    /// The shown version, or the reason why the mount stays at its version.
    Refreshed(Result<String, String>),
}
