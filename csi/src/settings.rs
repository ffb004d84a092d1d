//! The settings of a driver.
//!
//! Must hold: all processes of a node have the same paths.

use std::path::PathBuf;

/// The settings of a driver.
#[derive(Debug)]
pub struct Driver {
    /// The socket for the kubelet, at the same path for both.
    pub endpoint: PathBuf,
    /// The socket by which the kubelet finds the driver, if it is to find it.
    pub registration: Option<PathBuf>,
    /// The folder of the sessions. Mounts below it have to reach the host.
    pub state: PathBuf,
    /// The socket of the holder.
    pub holder: PathBuf,
    /// The socket of the launcher of servers.
    pub launcher: PathBuf,
    /// The name of the node.
    pub node: String,
    /// The servers of volumes without an attribute `server`.
    pub servers: Option<String>,
}
