//! The other agents of a job (paper, 4.2, Figure 7). Each chunk has one owner among the agents,
//! which fetches the chunk from the servers once and gives it to the others.
//!
//! Must hold: data from another agent is checked like data from a server. Without any other agent
//! all data comes from the servers.

mod address;
mod ask;
pub(crate) mod frame;
pub(crate) mod handshake;
mod incoming;
mod link;
mod link_state;
mod owners;
mod status;
pub(crate) mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dl_runtime::{Clock, SystemClock};
use libdiesel::agent::{DatasetId, MemberId, TaskMember, TaskMembership, Version};
use tokio::sync::Notify;

use crate::descriptors::Descriptors;

pub use address::{InvalidPeerAddress, PeerAddress, PeerConfig, PeerTls};
pub(crate) use ask::ChunkOutcome;
pub(crate) use frame::{FILES_BYTES_MAX, FILES_MAX};
pub(crate) use handshake::JobKey;
pub(crate) use incoming::{Incoming, IncomingFiles};
pub(crate) use link::Link;
use link::{LinkConfig, LinkTask};
pub(crate) use link_state::Phase;
pub(crate) use owners::Owners;
pub use status::PeerStatus;
pub(crate) use tls::Identity;

/// Length of a job's secret, in bytes.
const SECRET: usize = 32;

/// Time limit of a fetch for the first attempts to connect: longer than such an attempt.
const FIRST_TRY: Duration = Duration::from_secs(3);

/// Maximum of hashes computed for a status report.
const COUNTED_MAX: usize = 1 << 24;

/// Maximum of members asked for one chunk.
pub(crate) const ASKED_MAX: usize = 3;

/// The identity of this agent towards others.
#[derive(Debug, Clone)]
pub(crate) struct LocalAgent {
    pub(crate) me: MemberId,
    /// Whether it communicates with other agents at all.
    pub(crate) is_open: bool,
    /// Its key, if it uses TLS.
    pub(crate) identity: Option<Arc<Identity>>,
    /// For its connections to other agents.
    pub(crate) descriptors: Descriptors,
}

/// The agents of one job that read one version of a dataset.
#[derive(Debug)]
pub(crate) struct Peers {
    local: LocalAgent,
    group: Mutex<Group>,
    /// Notified when an unknown member connects.
    pub(crate) changed: Notify,
}

/// The members, by the last answer of the servers.
#[derive(Default)]
struct Group {
    /// The key for handshakes; none until the servers have answered.
    key: Arc<Mutex<Option<JobKey>>>,
    /// The version of the member list, and the secret, as received.
    current: Option<([u8; 16], Bytes)>,
    members: BTreeMap<MemberId, TaskMember>,
    /// Connected members missing from the servers' list, for example after the servers forgot the
    /// job.
    unnamed: BTreeSet<MemberId>,
    /// All members able to serve, and the reachable part of them.
    all: Owners,
    owners: Arc<Owners>,
    links: BTreeMap<MemberId, LinkTask>,
    /// Counts of links that have ended.
    ended: LinkTotals,
}

/// Sums over links.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LinkTotals {
    pub(crate) slow: u64,
    pub(crate) damaged: u64,
    pub(crate) failed: u64,
}

impl LinkTotals {
    fn plus<'a>(self, links: impl IntoIterator<Item = &'a LinkTask>) -> Self {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        links.into_iter().map(|task| &task.link.counts).fold(self, |sum, counts| Self {
            slow: sum.slow + count(&counts.slow),
            damaged: sum.damaged + count(&counts.damaged),
            failed: sum.failed + count(&counts.failed),
        })
    }
}

impl Group {
    /// Recomputes the owners of chunks; returns whether they have changed.
    fn settle(&mut self, local: &LocalAgent) -> bool {
        let can_give = |id: &MemberId| {
            let link = self.links.get(id).map(|kept| kept.link.phase().0);
            *id == local.me || matches!(link, Some(Phase::Connecting | Phase::Up))
        };
        let owners = Owners::of(self.members.values().filter(|member| can_give(&member.id)));
        let has_changed = !owners.ids().eq(self.owners.ids());
        self.owners = Arc::new(owners);
        has_changed
    }
}

/// Shows no secret.
impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("links", &self.links).finish_non_exhaustive()
    }
}

/// The possible sources of a chunk, in order.
#[derive(Debug)]
pub(crate) struct Sources {
    /// Other members to be asked first.
    pub(crate) links: Vec<Arc<Link>>,
    /// How many of them, the first, keep the chunk.
    pub(crate) holders: usize,
    /// Whether this agent is next behind them, and so keeps the chunk.
    pub(crate) is_mine: bool,
}

impl Peers {
    /// With an empty member list.
    pub(crate) fn new(local: LocalAgent) -> Self {
        Self { local, group: Mutex::default(), changed: Notify::new() }
    }

    fn group(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an answer of the servers; returns whether the members have changed. Needs a runtime.
    pub(crate) fn update(
        &self,
        dataset: DatasetId,
        version: Version,
        joined: &TaskMembership,
    ) -> bool {
        let LocalAgent { me, is_open, identity, descriptors } = &self.local;
        let current = (joined.members_version(), joined.secret.clone());
        let mut group = self.group();
        let is_up = |link: &LinkTask| link.link.phase().0 == Phase::Up;
        let are_there =
            group.unnamed.iter().all(|member| group.links.get(member).is_some_and(is_up));
        if group.current.as_ref() == Some(&current) && are_there {
            return false;
        }
        let named = joined.members.iter().map(|member| (member.id, member.clone()));
        let mut members: BTreeMap<_, _> = named.collect();
        // A connection proves that a member lives.
        let is_unnamed =
            |id: &MemberId| !members.contains_key(id) && group.links.get(id).is_some_and(is_up);
        let unnamed: BTreeSet<_> =
            group.members.keys().filter(|id| is_unnamed(id)).copied().collect();
        let rest = unnamed.iter().filter_map(|id| Some((*id, group.members.get(id)?.clone())));
        members.extend(rest.collect::<Vec<_>>());
        let has_secret = *is_open && joined.secret.len() == SECRET;
        let key = has_secret.then(|| JobKey::new(&joined.secret, dataset, version));
        *group.key.lock().unwrap_or_else(PoisonError::into_inner) = key;
        let mut links = std::mem::take(&mut group.links);
        let can_serve =
            |member: &&TaskMember| member.id == *me || *is_open && !member.address.is_empty();
        for member in members.values().filter(can_serve).filter(|member| member.id != *me) {
            let is_same = |kept: &LinkTask| kept.link.address == member.address;
            let kept = links.get(&member.id).is_some_and(is_same).then(|| links.remove(&member.id));
            let kept = kept.flatten().unwrap_or_else(|| {
                let (key, identity) = (Arc::clone(&group.key), identity.clone());
                let (fingerprint, descriptors) = (member.key_fingerprint, descriptors.clone());
                let way = LinkConfig { key, me: *me, identity, fingerprint, descriptors };
                LinkTask::new(member.id, member.address.clone(), way)
            });
            group.links.insert(member.id, kept);
        }
        group.ended = group.ended.plus(links.values());
        group.all = Owners::of(members.values().filter(can_serve));
        (group.members, group.unnamed, group.current) = (members, unnamed, Some(current));
        group.settle(&self.local);
        true
    }

    /// Checks the connections: the chunks of an unreachable member belong to others. Returns
    /// whether the owners have changed.
    pub(crate) fn look(&self) -> bool {
        self.group().settle(&self.local)
    }

    /// The key for handshakes.
    pub(crate) fn key(&self) -> Option<JobKey> {
        self.group().key.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The certificate of a member, if it has one; none for an unknown member.
    pub(crate) fn fingerprint_of(&self, member: MemberId) -> Option<Option<[u8; 32]>> {
        self.group().members.get(&member).map(|member| member.key_fingerprint)
    }

    /// Whether a member is in the list of this agent.
    pub(crate) fn knows(&self, member: MemberId) -> bool {
        self.group().members.contains_key(&member)
    }

    /// The key of this agent, if it uses TLS.
    pub(crate) fn identity(&self) -> Option<Arc<Identity>> {
        self.local.identity.clone()
    }

    /// Whether this agent owns a chunk; true for all chunks while no member is known.
    pub(crate) fn owns(&self, chunk: u32) -> bool {
        let owners = Arc::clone(&self.group().owners);
        owners.owner(chunk).is_none_or(|owner| owner == self.local.me)
    }

    /// Whether another member owns and keeps a chunk.
    pub(crate) fn is_at_owner(&self, chunk: u32) -> bool {
        let group = self.group();
        let owner = group.owners.owner(chunk).and_then(|owner| group.links.get(&owner));
        owner.is_some_and(|kept| kept.link.keeps(chunk).0)
    }

    /// The sources of a chunk: first members that keep the chunk, then members with room, by rank.
    /// This agent takes its place in the ranking. Members without a connection count as gone; new
    /// members are waited for.
    pub(crate) async fn sources(&self, chunk: u32, can_keep: bool) -> Sources {
        let clock = SystemClock::new();
        let until = clock.monotonic().saturating_add(FIRST_TRY);
        loop {
            let links = self.links();
            let tried = async {
                for link in &links {
                    link.tried().await;
                }
            };
            let left = until.saturating_sub(clock.monotonic());
            tokio::select! {
                () = tried => {}
                () = clock.sleep(left) => return self.ranked(chunk, can_keep),
            }
            // Members that came in between are waited for too.
            if self.links().iter().all(|link| link.phase().0 != Phase::Connecting) {
                return self.ranked(chunk, can_keep);
            }
        }
    }

    fn ranked(&self, chunk: u32, can_keep: bool) -> Sources {
        let group = self.group();
        let is_up = |link: &&Arc<Link>| link.phase().0 == Phase::Up;
        let of = |member| group.links.get(&member).map(|kept| &kept.link).filter(is_up);
        let (mut holders, mut others, mut is_mine) = (Vec::new(), Vec::new(), false);
        for member in group.all.ranking(chunk) {
            if member == self.local.me {
                is_mine = can_keep;
            } else if let Some(link) = of(member) {
                match link.keeps(chunk) {
                    (true, _) => holders.push(Arc::clone(link)),
                    (false, true) if !is_mine => others.push(Arc::clone(link)),
                    (false, _) => {}
                }
            }
        }
        let is_last = others.len() <= ASKED_MAX;
        let kept_by = holders.len().min(ASKED_MAX);
        let links = holders.into_iter().chain(others).take(ASKED_MAX).collect();
        let is_mine = is_mine && is_last || group.links.is_empty();
        Sources { links, holders: kept_by, is_mine }
    }

    /// The address of a member, if known.
    pub(crate) fn address_of(&self, member: MemberId) -> Option<String> {
        self.group().links.get(&member).map(|kept| kept.link.address.clone())
    }

    /// A member that keeps a chunk.
    pub(crate) fn holder(&self, chunk: u32) -> Option<Arc<Link>> {
        let group = self.group();
        let keeps = |link: &Arc<Link>| link.phase().0 == Phase::Up && link.keeps(chunk).0;
        let owner = group.owners.owner(chunk).and_then(|owner| group.links.get(&owner));
        let others = group.links.values();
        owner.into_iter().chain(others).map(|kept| &kept.link).find(|link| keeps(link)).cloned()
    }

    /// The links to all other members.
    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.group().links.values().map(|kept| Arc::clone(&kept.link)).collect()
    }

    /// Sums over all links since the start.
    pub(crate) fn link_totals(&self) -> LinkTotals {
        let group = self.group();
        group.ended.plus(group.links.values())
    }

    /// Number of connected members.
    pub(crate) fn connected(&self) -> u32 {
        self.links().iter().filter(|link| link.phase().0 == Phase::Up).count() as u32
    }

    /// The number of chunks owned by each member; an estimate where counting would take long.
    pub(crate) fn owned(&self, chunks: u32) -> BTreeMap<MemberId, u64> {
        let owners = Arc::clone(&self.group().owners);
        let counted = (COUNTED_MAX / owners.len().max(1)).max(1) as u32;
        let step = chunks.div_ceil(counted).max(1);
        let mut owned = BTreeMap::new();
        for chunk in (0..chunks).step_by(step as usize) {
            let many = u64::from(step.min(chunks - chunk));
            owners.owner(chunk).into_iter().for_each(|id| *owned.entry(id).or_default() += many);
        }
        owned
    }

    /// The number of chunks owned by this agent.
    pub(crate) fn owned_by_me(&self, owned: &BTreeMap<MemberId, u64>, chunks: u32) -> u64 {
        if owned.is_empty() {
            chunks.into()
        } else {
            owned.get(&self.local.me).copied().unwrap_or(0)
        }
    }
}

impl Link {
    /// Counts a received chunk.
    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.counts.chunks.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
