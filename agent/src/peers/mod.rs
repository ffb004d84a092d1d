//! The other agents of a job (paper, 4.2, Figure 7). Each chunk has one owner among the agents,
//! which fetches the chunk from the servers once and gives it to the others.
//!
//! Must hold: data from another agent is checked like data from a server. Without any other agent
//! all data comes from the servers.

mod address;
mod ask;
mod events;
pub(crate) mod frame;
pub(crate) mod handshake;
mod incoming;
mod link;
mod link_state;
mod status;
pub(crate) mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use dl_format::{DatasetId, MemberId, Version};
use dl_proto::{TaskMember, TaskMembership};
use dl_runtime::{Clock, locked};
use tokio::sync::Notify;

use crate::descriptors::Descriptors;
use crate::place::{Candidate, ChunkBits, OwnerTable, Owners, sources};

pub use address::{InvalidPeerAddress, PeerAddress, PeerConfig, PeerTls};
pub(crate) use ask::ChunkOutcome;
pub(crate) use events::LinkEvents;
pub(crate) use frame::{FILES_BYTES_MAX, FILES_MAX};
pub(crate) use handshake::JobKey;
pub(crate) use incoming::{Incoming, IncomingFiles};
pub(crate) use link::Link;
use link::{LinkConfig, LinkTask};
pub(crate) use link_state::Phase;
pub use status::PeerStatus;
pub(crate) use tls::Identity;

/// Length of a job's secret, in bytes.
const SECRET: usize = 32;

/// Time limit of a fetch for the first attempts to connect: longer than such an attempt.
const FIRST_TRY: Duration = Duration::from_secs(3);

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
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) events: Arc<LinkEvents>,
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
    /// All members able to serve.
    all: Owners,
    /// The reachable part of them, and the chunks that each owns.
    owners: Arc<Owners>,
    table: Arc<OwnerTable>,
    /// The members when the owners were computed.
    known: BTreeSet<MemberId>,
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
    /// The members able to hold chunks for others now.
    fn reachable(&self, me: MemberId) -> Owners {
        let can_give = |id: &MemberId| {
            let link = self.links.get(id).map(|kept| kept.link.phase().0);
            *id == me || matches!(link, Some(Phase::Connecting | Phase::Up))
        };
        Owners::of(self.members.values().filter(|member| can_give(&member.id)))
    }
}

/// Shows no secret.
impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("links", &self.links).finish_non_exhaustive()
    }
}

/// The possible sources of a chunk, in order.
pub(crate) type Sources = crate::place::Sources<Arc<Link>>;

/// Chunks kept by other agents.
#[derive(Debug)]
pub(crate) struct KeptElsewhere<O> {
    /// Chunks of this agent.
    pub(crate) own: O,
    /// Chunks kept by their owners.
    pub(crate) at_owner: ChunkBits,
}

impl Peers {
    /// With an empty member list.
    pub(crate) fn new(local: LocalAgent) -> Self {
        Self { local, group: Mutex::default(), changed: Notify::new() }
    }

    fn group(&self) -> MutexGuard<'_, Group> {
        locked(&self.group)
    }

    /// Takes an answer of the servers; returns whether the members have changed. Needs a runtime.
    pub(crate) fn update(
        &self,
        dataset: DatasetId,
        version: Version,
        joined: &TaskMembership,
    ) -> bool {
        let LocalAgent { me, is_open, identity, descriptors, clock, events } = &self.local;
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
        *locked(&group.key) = key;
        let mut links = std::mem::take(&mut group.links);
        let can_serve =
            |member: &&TaskMember| member.id == *me || *is_open && !member.address.is_empty();
        for member in members.values().filter(can_serve).filter(|member| member.id != *me) {
            let is_same = |kept: &LinkTask| kept.link.address == member.address;
            let kept = links.get(&member.id).is_some_and(is_same).then(|| links.remove(&member.id));
            let kept = kept.flatten().unwrap_or_else(|| {
                let (key, identity) = (Arc::clone(&group.key), identity.clone());
                let (fingerprint, descriptors) = (member.key_fingerprint, descriptors.clone());
                let (clock, events) = (Arc::clone(clock), Arc::clone(events));
                let way =
                    LinkConfig { key, me: *me, identity, fingerprint, descriptors, clock, events };
                LinkTask::new(member.id, member.address.clone(), way)
            });
            group.links.insert(member.id, kept);
        }
        group.ended = group.ended.plus(links.values());
        group.all = Owners::of(members.values().filter(can_serve));
        // A member that only tells another room is no other member.
        let has_changed = !members.keys().eq(group.members.keys());
        (group.members, group.unnamed, group.current) = (members, unnamed, Some(current));
        events.changed();
        has_changed
    }

    /// Computes the owners of `chunks` chunks if the reachable members have changed: the chunks of an
    /// unreachable member belong to others. `tell` takes the owners before other agents are told that
    /// they are known. Takes up to 6 ns for each chunk and member.
    pub(crate) fn find_owners(&self, chunks: u32, tell: impl FnOnce(Arc<OwnerTable>)) {
        let (owners, known) = {
            let mut group = self.group();
            let known = group.members.keys().copied().collect();
            let owners = group.reachable(self.local.me);
            if owners.members().eq(group.owners.members()) {
                group.known = known;
                return;
            }
            (owners, known)
        };
        let table = Arc::new(OwnerTable::of(&owners, self.local.me, chunks));
        tell(Arc::clone(&table));
        let mut group = self.group();
        (group.owners, group.table, group.known) = (Arc::new(owners), table, known);
    }

    /// The owners of the chunks.
    pub(crate) fn owners(&self) -> Arc<OwnerTable> {
        Arc::clone(&self.group().table)
    }

    /// The key for handshakes.
    pub(crate) fn key(&self) -> Option<JobKey> {
        locked(&self.group().key).clone()
    }

    /// The certificate of a member, if it has one; none for an unknown member.
    pub(crate) fn fingerprint_of(&self, member: MemberId) -> Option<Option<[u8; 32]>> {
        self.group().members.get(&member).map(|member| member.key_fingerprint)
    }

    /// Whether the owners of this agent's list take a member into account.
    pub(crate) fn knows(&self, member: MemberId) -> bool {
        self.group().known.contains(&member)
    }

    /// The key of this agent, if it uses TLS.
    pub(crate) fn identity(&self) -> Option<Arc<Identity>> {
        self.local.identity.clone()
    }

    /// The sources of a chunk: first members that keep the chunk, then members with room, by rank.
    /// This agent takes its place in the ranking. Members without a connection count as gone; new
    /// members are waited for.
    pub(crate) async fn sources(&self, chunk: u32, can_keep: bool) -> Sources {
        let clock = &self.local.clock;
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
        let candidate = |member: MemberId| {
            if member == self.local.me {
                return Some(Candidate::Me);
            }
            let link = Arc::clone(&group.links.get(&member)?.link);
            let (is_up, (keeps, can_keep)) = (link.phase().0 == Phase::Up, link.kept(chunk));
            is_up.then_some(Candidate::Other { link, keeps, can_keep })
        };
        let ranking = group.table.ranking(&group.all, chunk);
        sources(ranking.into_iter().filter_map(candidate), can_keep, group.links.is_empty())
    }

    /// The address of a member, if known.
    pub(crate) fn address_of(&self, member: MemberId) -> Option<String> {
        self.group().links.get(&member).map(|kept| kept.link.address.clone())
    }

    /// Whether the job has other members.
    pub(crate) fn has_links(&self) -> bool {
        !self.group().links.is_empty()
    }

    /// What the lists of other agents say about `chunks` chunks.
    pub(crate) fn kept_elsewhere(
        &self,
        chunks: u32,
    ) -> KeptElsewhere<impl Iterator<Item = u32> + use<>> {
        let table = self.owners();
        let lists: BTreeMap<_, _> =
            self.links().iter().map(|link| (link.member, link.kept_bits())).collect();
        let (mut anywhere, mut at_owner) = (ChunkBits::none(chunks), ChunkBits::none(chunks));
        lists.values().for_each(|list| anywhere.add_all(list));
        for chunk in (0..chunks).filter(|chunk| anywhere.holds(*chunk)) {
            let owner = table.owner(chunk).and_then(|owner| lists.get(&owner));
            if owner.is_some_and(|list| list.holds(chunk)) {
                at_owner.add(chunk);
            }
        }
        let own = (0..chunks).filter(move |chunk| anywhere.holds(*chunk) && table.owns(*chunk));
        KeptElsewhere { own, at_owner }
    }

    /// A member that keeps a chunk.
    pub(crate) fn holder(&self, chunk: u32) -> Option<Arc<Link>> {
        let group = self.group();
        let keeps = |link: &Arc<Link>| link.phase().0 == Phase::Up && link.kept(chunk).0;
        let owner = group.table.owner(chunk).and_then(|owner| group.links.get(&owner));
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

    /// The number of chunks owned by each member.
    pub(crate) fn owned(&self) -> BTreeMap<MemberId, u64> {
        self.owners().counts()
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
