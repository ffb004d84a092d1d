//! The process of a server: opens the dataset, takes the channels from its holder, and answers until
//! the mount ends.
//!
//! Must hold: a server opens the version of the mount or ends. A server whose holder has ended goes
//! on until the mount ends.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use dl_node::Socket;

use crate::abi::notice;
use crate::channel::Channel;
use crate::following::Follower;
use crate::messages::{FromServer, ToServer};
use crate::server::Served;
use crate::source::{Refused, Source};

/// Time for a message to the holder.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Time without a message of the holder: a mount may stay for months.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Serves a mount, whose holder is at the other end of the socket.
///
/// # Errors
/// Errors of the connection with the holder and with the kernel. A dataset that can't be opened is
/// reported to the holder.
pub fn serve(source: Source, holder: &Arc<Socket>) -> io::Result<()> {
    let Some((ToServer::Open(wanted), _)) = holder.receive::<ToServer>(TIMEOUT)? else {
        return Err(io::Error::other("the holder sent no dataset"));
    };
    let versions = match source.open_all(&wanted) {
        Ok(versions) => versions,
        Err(Refused { exit, why }) => {
            return holder.send(&FromServer::Failed { exit, why }, &[], TIMEOUT);
        }
    };
    let (shown, task) = (versions.current.shown(), source.task.clone());
    holder.send(&FromServer::Opened { shown, task }, &[], TIMEOUT)?;
    let (features, files) = loop {
        match holder.receive::<ToServer>(FOR_EVER)? {
            Some((ToServer::Serve(features), files)) => break (features, files),
            Some(_) => {}
            // The mount has failed.
            None => return Ok(()),
        }
    };
    let channels = channels(files, (!features.resends).then_some(source.threads))?;
    let first = channels.first().ok_or_else(|| io::Error::other("the holder sent no channel"))?;
    if features.resends {
        // An earlier server may have taken requests along.
        first.notify(notice::RESEND, &[])?;
    }
    let (notices, patience) = (first.try_clone()?, source.patience);
    let served = Served::new(versions, patience);
    let (records, recorded) = channel();
    let follower = Follower {
        source,
        served: Arc::clone(&served),
        holder: Arc::clone(holder),
        notices,
        features,
        recorded,
    };
    let refreshes = follower.start()?;
    let (counted, holder) = (Arc::clone(&served), Arc::clone(holder));
    let report = move || report(&counted, &holder, &refreshes, &records);
    thread::Builder::new().name("holder".to_owned()).spawn(report)?;
    served.run(channels)
}

/// The channels of the holder; or with `threads` as many clones of its only channel, which closes with
/// the holder alone: a kernel that sends nothing again must see the channels of a dead server close.
fn channels(files: Vec<OwnedFd>, threads: Option<NonZeroUsize>) -> io::Result<Vec<Channel>> {
    let channels: Vec<Channel> = files.into_iter().map(Channel::from).collect();
    let first = channels.first().ok_or_else(|| io::Error::other("the holder sent no channel"))?;
    match threads {
        None => Ok(channels),
        Some(threads) => (0..threads.get()).map(|_| first.try_clone()).collect(),
    }
}

/// Answers the holder until its end.
fn report(served: &Served, holder: &Socket, refreshes: &Sender<()>, records: &Sender<()>) {
    loop {
        match holder.receive::<ToServer>(FOR_EVER) {
            Ok(Some((ToServer::Count, _))) => {
                let counted = serde_json::to_string(&served.counted()).unwrap_or_default();
                let sent = holder.send(&FromServer::Counted(counted), &[], TIMEOUT);
                if let Err(why) = sent {
                    tracing::debug!(%why, "answer the holder");
                }
            }
            Ok(Some((ToServer::Refresh, _))) => {
                // Without the follower no server runs.
                let _ = refreshes.send(());
            }
            Ok(Some((ToServer::Recorded, _))) => _ = records.send(()),
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(why) if why.kind() == io::ErrorKind::TimedOut => {}
            Err(why) => {
                tracing::warn!(%why, "the connection with the holder failed");
                break;
            }
        }
    }
    tracing::warn!("the holder of the mount has ended: no other server will follow");
}
