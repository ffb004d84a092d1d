//! The state of a mount, for tools: its holder listens at a socket of the user.
//!
//! Must hold: each question has a deadline. A missing holder is no error of a tool.

use std::io;
use std::path::Path;
use std::time::Duration;

use dl_node::Socket;
use libdiesel::agent::runtime_folder;
use serde::{Deserialize, Serialize};

use crate::messages::{Answer, Question};
use crate::mounting::{Mounted, keepers_of, mounts};
use crate::server::Counted;

/// Time for an answer of the holder, who asks the server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Time for the end of a holder, after which processes that keep its mount are looked for; and the
/// number of such times.
const KEPT_AFTER: Duration = Duration::from_secs(1);
const WAITS_MAX: u32 = 10;

/// Time for the newest version, whose snapshot of any size may have to come first.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(330);

/// The state of a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountStatus {
    /// The name of the device: `dl://DATASET`.
    pub source: String,
    /// The version of the dataset.
    pub version: String,
    /// The job of the mount, for `dlcmd why` and `dlcmd agent`.
    pub task: String,
    /// The process id of the holder.
    pub holder: u32,
    /// The process id of the server; none while there is no server.
    pub server: Option<u32>,
    /// The number of servers started for the mount.
    pub starts: u64,
    /// Seconds since the mount.
    pub seconds: u64,
    /// The reason why no server runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The numbers of the server; none if it gives no answer.
    #[serde(flatten)]
    pub counted: Option<Counted>,
}

/// The path of the holder's socket, by the device of the mount.
pub(crate) fn socket_name(device: &str) -> String {
    format!("mount-{}.sock", device.replace(':', "-"))
}

/// A connection to the holder of a mount; none where no holder listens.
fn connect(mounted: &Mounted) -> io::Result<Option<Socket>> {
    let path = runtime_folder()?.join(socket_name(&mounted.device));
    match Socket::connect(&path) {
        Ok(socket) => Ok(Some(socket)),
        Err(why) => match why.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
            _ => Err(why),
        },
    }
}

/// The state of a mount; none without a holder of this user.
///
/// # Errors
/// For a holder that gives no answer.
pub fn status_of(mounted: &Mounted) -> io::Result<Option<MountStatus>> {
    let Some(socket) = connect(mounted)? else { return Ok(None) };
    socket.send(&Question::Status, &[], TIMEOUT)?;
    match socket.receive::<Answer>(TIMEOUT)? {
        Some((Answer::Status(text), _)) => Ok(Some(serde_json::from_str(&text)?)),
        Some(_) | None => Ok(None),
    }
}

/// Lets a mount show the newest version of its dataset; gives the shown version, or the reason why it
/// stays at its version.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] without a holder of this user; otherwise for a holder that gives no
/// answer.
pub fn refresh(mounted: &Mounted) -> io::Result<Result<String, String>> {
    let none = || {
        io::Error::new(io::ErrorKind::NotFound, "the mount has no holder that this user may ask")
    };
    let socket = connect(mounted)?.ok_or_else(none)?;
    socket.send(&Question::Refresh, &[], TIMEOUT)?;
    match socket.receive::<Answer>(REFRESH_TIMEOUT)? {
        Some((Answer::Refreshed(refreshed), _)) => Ok(refreshed),
        Some(_) | None => Err(io::Error::other("the mount has ended")),
    }
}

/// Calls `unmount`, then waits until the holder of the mount has ended. The mount may go on in other
/// mount namespaces, such as those of containers: gives the processes that keep it there.
///
/// # Errors
/// Those of `unmount`; [`io::ErrorKind::TimedOut`] for a holder that stays without a reason.
pub fn end_of(
    mounted: &Mounted,
    unmount: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<Vec<u32>> {
    // A mount without a holder of this user ends without a wait.
    let socket = connect(mounted).ok().flatten();
    if let Some(socket) = &socket {
        socket.send(&Question::Wait, &[], TIMEOUT)?;
    }
    unmount(&mounted.dir)?;
    let Some(socket) = socket else { return Ok(Vec::new()) };
    if mounts()?.iter().any(|other| other.device == mounted.device) {
        // The mount goes on at another place.
        return Ok(Vec::new());
    }
    let mut waits = 0;
    loop {
        match socket.receive::<Answer>(KEPT_AFTER) {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(Vec::new()),
            Err(why) if why.kind() == io::ErrorKind::TimedOut => {
                let keepers = keepers_of(mounted);
                if !keepers.is_empty() {
                    return Ok(keepers);
                }
                waits += 1;
                if waits == WAITS_MAX {
                    return Err(why);
                }
            }
            Err(why) => return Err(why),
        }
    }
}
