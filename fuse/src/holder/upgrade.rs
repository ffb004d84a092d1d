//! The next program of a holder: the same process runs it with the connection of the mount.
//!
//! Must hold: the mount stays when the next program can not be run. The descriptors of the
//! connection are open for the next program alone.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use dl_runtime::since_boot;
use serde::{Deserialize, Serialize};

use super::{Connected, Event, Holder, local};
use crate::channel::Channel;
use crate::messages::{Features, FromServer, Shown};
use crate::mounting::{inherited, mount_at};
use crate::source::Refused;

/// Time for the end of a killed server.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// What a holder leaves to the next program.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Legacy {
    /// The numbers of the descriptors.
    channels: Vec<i32>,
    features: Features,
    versions: Vec<Shown>,
    task: String,
    starts: u64,
    since: Duration,
    /// The number of the mount's device; none for a connection from outside.
    device: Option<String>,
}

impl Holder<'_> {
    /// Runs the next program in this process; returns only after a failure.
    pub(super) fn upgrade(&mut self) {
        if self.connected.is_none() {
            return;
        }
        // With the last message of the server about its version.
        self.end_server();
        let why = match self.passed_on() {
            Err(why) => why,
            Ok((text, _passed)) => {
                let before = SignalMask::block();
                let why = (self.mount.upgrade)(&text);
                before.restore();
                why
            }
        };
        tracing::warn!(%why, "run the next program: the mount goes on with this program");
        self.next_start = Some(since_boot());
    }

    /// The text for the next program, and copies of the channels that stay open in it.
    fn passed_on(&self) -> io::Result<(String, Vec<OwnedFd>)> {
        let connected = self.connected.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let channels = connected.channels.iter().map(|channel| Ok(rustix::io::dup(channel)?));
        let channels: Vec<OwnedFd> = channels.collect::<io::Result<_>>()?;
        let legacy = Legacy {
            channels: channels.iter().map(AsRawFd::as_raw_fd).collect(),
            features: connected.features,
            versions: self.versions.clone(),
            task: self.task.clone(),
            starts: self.starts,
            since: connected.since,
            device: connected.mounted.as_ref().map(|mounted| mounted.device.clone()),
        };
        Ok((serde_json::to_string(&legacy)?, channels))
    }

    /// Ends the server, and waits until nothing of it is left.
    fn end_server(&mut self) {
        self.end_refreshes("the program of the mount is being replaced: ask again");
        let Some(server) = self.server.take() else { return };
        server.kill();
        self.served = None;
        self.unserved.get_or_insert(since_boot());
        let until = since_boot().saturating_add(KILL_TIMEOUT);
        loop {
            match self.events.recv_timeout(until.saturating_sub(since_boot())) {
                Ok(Event::Ended { server: number, .. }) if number == server.number => return,
                Ok(Event::Said { server: number, message: FromServer::Switched(shown) })
                    if number == server.number =>
                {
                    self.record(shown);
                }
                Ok(event) => self.later.push_back(event),
                Err(_) => return,
            }
        }
    }

    /// Takes the mount over from the program before.
    pub(super) fn take_over(&mut self, legacy: &str) -> Result<(), Refused> {
        // After a failure the mount is dead; the next `dlcmd mount` removes it.
        self.inherit(legacy).map_err(|why| local(&why))?;
        SignalMask::clear();
        if let Err(why) = self.start_server() {
            self.fail(why.to_string());
        }
        Ok(())
    }

    fn inherit(&mut self, legacy: &str) -> io::Result<()> {
        let Legacy { channels, features, versions, task, starts, since, device } =
            serde_json::from_str(legacy)?;
        let channels = channels.into_iter().map(inherited).collect::<io::Result<Vec<Channel>>>()?;
        // Another mount may have taken the place of one that was taken away lazily.
        let mounted =
            mount_at(&self.mount.place.dir)?.filter(|there| Some(&there.device) == device.as_ref());
        let _listener = self.listen(mounted.as_ref());
        self.connected = Some(Connected { channels, features, mounted, _listener, since });
        (self.versions, self.task, self.starts) = (versions, task, starts);
        self.unserved = Some(since_boot());
        Ok(())
    }
}

/// The signals that a process blocks.
struct SignalMask(libc::sigset_t);

impl SignalMask {
    /// Blocks the signals that would end the next program before it handles them; they wait until
    /// `clear`. Gives the mask before.
    fn block() -> Self {
        let mut signals = empty_set();
        for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGINT] {
            #[expect(unsafe_code, reason = "no crate here changes the mask of signals")]
            // SAFETY: the set is initialised, and the signals exist.
            unsafe {
                libc::sigaddset(&mut signals, signal);
            }
        }
        Self(change_mask(libc::SIG_BLOCK, &signals))
    }

    fn restore(self) {
        change_mask(libc::SIG_SETMASK, &self.0);
    }

    /// Blocks no signal.
    fn clear() {
        change_mask(libc::SIG_SETMASK, &empty_set());
    }
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    #[expect(unsafe_code, reason = "no crate here changes the mask of signals")]
    // SAFETY: the call initialises the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Changes the mask of the thread, which the next program inherits; gives the mask before.
fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = empty_set();
    #[expect(unsafe_code, reason = "no crate here changes the mask of signals")]
    // SAFETY: both sets are initialised, and live during the call.
    unsafe {
        libc::pthread_sigmask(how, set, &mut before);
    }
    before
}
