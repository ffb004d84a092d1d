//! The sockets of holder and launcher.
//!
//! Must hold: only root and the own user can connect, by the mode of the socket from its beginning on: a
//! process in another container has no id here that could be asked.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dl_node::{Socket, accept, bind_at};
use rustix::fs::Mode;

use crate::orphans;
use crate::sessions::if_there;

/// Pause before another try to listen.
const PAUSE: Duration = Duration::from_millis(500);

/// Answers each connection in a thread, for ever.
pub(crate) fn serve<A>(path: &Path, answer: Arc<A>) -> io::Result<()>
where
    A: Fn(&Socket) -> io::Result<()> + Send + Sync + 'static,
{
    let listener = listen(path)?;
    orphans::reap_in_background()?;
    loop {
        let accepted = accept(&listener).and_then(|socket| {
            let answer = Arc::clone(&answer);
            thread::Builder::new().spawn(move || {
                if let Err(why) = answer(&socket) {
                    tracing::warn!(%why, "answer on a socket");
                }
            })
        });
        if let Err(why) = accepted {
            // As without memory or descriptors: what runs must not end.
            tracing::warn!(%why, "accept a connection");
            thread::sleep(PAUSE);
        }
    }
}

/// Listens at a path, once its folder is there and may be written: another container makes it.
fn listen(path: &Path) -> io::Result<OwnedFd> {
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
    // Before any thread that makes files.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = bind_at(path);
    rustix::process::umask(before);
    listener
}
