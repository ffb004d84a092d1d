//! The sockets of holder and launcher.
//!
//! Must hold: only root and the own user are heard.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use libdiesel::agent::{Socket, bind_at};

use crate::sessions::if_there;

/// Pause before another try to listen.
const PAUSE: Duration = Duration::from_millis(500);

/// Listens at a path, once its folder is there and may be written: another container makes it.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let mut said = None;
    loop {
        match try_listen(path) {
            Err(why)
                if matches!(
                    why.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                ) =>
            {
                if said != Some(why.kind()) {
                    tracing::info!(path = %path.display(), %why, "waiting for the folder of the socket");
                    said = Some(why.kind());
                }
                thread::sleep(PAUSE);
            }
            listening => return listening,
        }
    }
}

fn try_listen(path: &Path) -> io::Result<OwnedFd> {
    if_there(fs::remove_file(path))?;
    let listener = bind_at(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Hears root and the own user.
pub(crate) fn check_peer(socket: &Socket) -> io::Result<()> {
    let user = socket.peer_user()?;
    if user == 0 || user == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("user {user} may not ask")))
}
