//! The life of an agent.
//!
//! Must hold: the agent ends after a time without use, or on request. Its lock is released however
//! the process ends.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use dl_format::TaskName;
use dl_node::accept;
use dl_runtime::{Clock, Shutdown, SystemClock, spawn};
use libdiesel::agent::{AgentFiles, Owner};
use tokio::io::unix::AsyncFd;

use crate::cache::{Cache, Unread, collapse_all, watch_disks, watch_owners};
use crate::disk::{DiskConfig, Disks};
use crate::registration::Records;
use crate::service::{Member, WorkerServer, watch};
use crate::status::About;
use crate::{Budget, Eviction, PeerConfig, Policy};

/// Interval for following orders and retrying waits for memory.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(5);

/// Interval between two signs of life.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// The start configuration of an agent.
#[derive(Debug)]
pub struct Config {
    /// The training job.
    pub task: TaskName,
    /// The listening socket for workers.
    pub listener: OwnedFd,
    /// The lock held by a living agent.
    pub lock: OwnedFd,
    /// Memory for chunks.
    pub memory: Budget,
    /// Local disks, the first to be filled first.
    pub disks: Vec<DiskConfig>,
    /// Which dataset leaves a full disk: one that no agent has open.
    pub disk_eviction: Eviction,
    /// The policy for fetching ahead.
    pub policy: Policy,
    /// Which kept chunk leaves for a chunk that is read in no order.
    pub eviction: Eviction,
    /// The endpoint for other agents of the job.
    pub peers: PeerConfig,
    /// How long the agent lives without a worker.
    pub idle: Duration,
    /// Ends the agent.
    pub shutdown: Shutdown,
    /// Facts for the status report.
    pub about: About,
}

/// The reason for an agent's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// No worker was connected for a while.
    Idle,
    /// On request.
    Stopped,
}

/// Serves workers until the end. Needs a tokio runtime.
///
/// # Errors
/// When the listener fails.
pub async fn run(config: Config) -> io::Result<Ended> {
    let Config { task, listener, lock, memory, disks, disk_eviction, policy, eviction, .. } =
        config;
    let Config { peers, idle, shutdown, about, .. } = config;
    let lock = File::from(lock);
    name_holder(&lock)?;
    rustix::io::ioctl_fionbio(&listener, true)?;
    let owner = Owner::of(&listener, task.clone())?;
    let listener = watch(listener)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::of_machine());
    let disks = Disks::new(disks, disk_eviction, &clock);
    let cache = Arc::new(Cache::new(policy, eviction, memory.0, disks, Arc::clone(&clock)));
    let stop = Shutdown::new();
    let process = std::process::id();
    tracing::info!(%task, process, memory = memory.0, ?policy, %eviction, "the agent begins");
    let member = Member::of(task, peers, Records::of_user(owner.name(), Arc::clone(&clock)), about);
    let server = Arc::new(WorkerServer::new(Arc::clone(&cache), stop.clone(), member, owner, idle));
    let driving = spawn(drive(Arc::clone(&cache), idle));
    let beside = [
        spawn(collapse_all(Arc::clone(&cache))),
        spawn(watch_owners(Arc::clone(&cache))),
        spawn(watch_disks(Arc::clone(&cache))),
    ];
    let ended = tokio::select! {
        failed = accept_all(&listener, &server) => Err(failed),
        () = shutdown.requested() => Ok(Ended::Stopped),
        () = stop.requested() => Ok(Ended::Stopped),
        () = unneeded(&server, idle, &*clock) => Ok(Ended::Idle),
    };
    driving.abort();
    beside.iter().for_each(|task| task.abort());
    // Tells other agents about the end, and ends the registrations.
    stop.request();
    server.opener.leave().await;
    tracing::info!(?ended, "the agent ends");
    if let Ok(files) = AgentFiles::of_lock(&lock) {
        files.remove(&lock);
    }
    drop(lock);
    ended
}

/// Writes the holder's process id into the lock, for tools without an answer from the agent.
fn name_holder(lock: &File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.write_all_at(std::process::id().to_string().as_bytes(), 0)
}

/// Accepts connections of processes until the listener fails.
async fn accept_all(listener: &AsyncFd<OwnedFd>, server: &Arc<WorkerServer>) -> io::Error {
    loop {
        let mut ready = match listener.readable().await {
            Ok(ready) => ready,
            Err(why) => return why,
        };
        let socket = match ready.try_io(accept) {
            Ok(Ok(socket)) => socket,
            Ok(Err(why)) => {
                // For example when all descriptors are in use.
                tracing::warn!(%why, "accept a connection of a worker");
                server.cache.clock.sleep(HEARTBEAT_INTERVAL).await;
                continue;
            }
            Err(_) => continue,
        };
        let server = Arc::clone(server);
        spawn(async move {
            if let Err(why) = server.serve(socket).await {
                tracing::debug!(%why, "a connection ended");
            }
        });
    }
}

/// Completes after `idle` without a worker connection and without data sent to other agents.
async fn unneeded(server: &WorkerServer, idle: Duration, clock: &dyn Clock) {
    let (mut since, mut given) = (clock.monotonic(), 0);
    loop {
        clock.sleep(HEARTBEAT_INTERVAL.min(idle)).await;
        let now = clock.monotonic();
        let before = std::mem::replace(&mut given, server.given());
        if server.is_needed() || given != before {
            since = now;
        }
        if now.saturating_sub(since) >= idle {
            return;
        }
    }
}

/// Follows the orders, fetches ahead, and gives signs of life.
async fn drive(cache: Arc<Cache>, idle: Duration) {
    let clock = Arc::clone(&cache.clock);
    let (mut next_beat, mut unread) = (Duration::ZERO, Unread::default());
    loop {
        let fetches = cache.state().retry_queue(cache.now());
        fetches.into_iter().for_each(|fetch| cache.fetch(fetch));
        if !cache.disks.is_empty() {
            cache.write_copies();
        }
        cache.fetch_ahead();
        let now = clock.monotonic();
        if now >= next_beat {
            let mut state = cache.state();
            state.beat(now);
            unread.close(&mut state, now, idle);
            next_beat = now.saturating_add(HEARTBEAT_INTERVAL);
        }
        let pause = if cache.is_followed() { FOLLOW_INTERVAL } else { HEARTBEAT_INTERVAL };
        tokio::select! {
            () = cache.moved.notified() => {}
            () = clock.sleep(pause) => {}
        }
    }
}
