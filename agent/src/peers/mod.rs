//! The other agents of a job (paper, 4.2, Figure 7): each chunk belongs to one of them, which fetches it
//! from the servers once and gives it to the others.
//!
//! Must hold: what comes from another agent is checked like what comes from a server; without any other
//! agent everything is read from the servers.

mod address;
mod frame;
mod handshake;
mod incoming;
mod link;
mod owners;
mod serve;
mod status;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libdiesel::agent::{DatasetId, MemberId, TaskMember, TaskMembership, Version};
use tokio::sync::Notify;

pub use address::{InvalidPeerAddress, PeerAddress};
pub(crate) use handshake::Circle;
pub(crate) use incoming::Incoming;
use link::Staying;
pub(crate) use link::{Got, Link, Phase};
pub(crate) use owners::Owners;
pub(crate) use serve::Door;
pub use status::PeerStatus;

/// Members that are asked for one chunk at most.
const ASKED_MAX: usize = 3;

/// The agents that read one version of a dataset for one job.
#[derive(Debug)]
pub(crate) struct Peers {
    me: MemberId,
    group: Mutex<Group>,
    /// A member came of whom the servers have not told yet.
    pub(crate) changed: Notify,
}

/// What the servers said last of the members.
#[derive(Debug, Default)]
struct Group {
    /// None until the servers have answered.
    circle: Option<Circle>,
    members_version: Option<[u8; 16]>,
    owners: Arc<Owners>,
    links: BTreeMap<MemberId, Staying>,
}

/// Where a chunk may come from, one after the other.
#[derive(Debug)]
pub(crate) struct Sources {
    /// Other members that are asked first.
    pub(crate) links: Vec<Arc<Link>>,
    /// Whether this agent is the next one behind them, and so keeps the chunk.
    pub(crate) is_mine: bool,
}

impl Peers {
    /// Of an agent that knows no other member yet.
    pub(crate) fn new(me: MemberId) -> Self {
        Self { me, group: Mutex::default(), changed: Notify::new() }
    }

    fn group(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the servers say now. Needs a runtime. Gives whether the members have changed.
    pub(crate) fn update(
        &self,
        dataset: DatasetId,
        version: Version,
        joined: &TaskMembership,
    ) -> bool {
        let told = joined.members_version();
        let mut group = self.group();
        if group.members_version == Some(told) {
            return false;
        }
        let circle = Circle::new(&joined.secret, dataset, version);
        let can_serve = |member: &&TaskMember| member.id == self.me || !member.address.is_empty();
        let members: Vec<&TaskMember> = joined.members.iter().filter(can_serve).collect();
        let mut links = std::mem::take(&mut group.links);
        for member in members.iter().filter(|member| member.id != self.me) {
            let kept = links.remove(&member.id).filter(|kept| kept.link.address == member.address);
            let address = member.address.clone();
            let kept =
                kept.unwrap_or_else(|| Staying::new(member.id, address, circle.clone(), self.me));
            group.links.insert(member.id, kept);
        }
        group.owners = Arc::new(Owners::of(members));
        group.circle = Some(circle);
        group.members_version = Some(told);
        true
    }

    /// What a member proves itself with.
    pub(crate) fn circle(&self) -> Option<Circle> {
        self.group().circle.clone()
    }

    /// Whether a member is known.
    pub(crate) fn knows(&self, member: MemberId) -> bool {
        self.group().links.contains_key(&member)
    }

    /// Whether a chunk belongs to this agent; so does each one while no member is known.
    pub(crate) fn owns(&self, chunk: u32) -> bool {
        let owners = Arc::clone(&self.group().owners);
        owners.owner(chunk).is_none_or(|owner| owner == self.me)
    }

    /// Where a chunk may come from: from who keeps it, else from who comes first among those that can.
    /// Members without a connection count as gone; those that have joined just now are waited for.
    pub(crate) async fn sources(&self, chunk: u32) -> Sources {
        for link in self.links() {
            link.tried().await;
        }
        let group = self.group();
        let is_up = |link: &&Arc<Link>| link.phase().0 == Phase::Up;
        let of = |member| group.links.get(&member).map(|kept| &kept.link).filter(is_up);
        let (mut holders, mut others, mut is_mine) = (Vec::new(), Vec::new(), false);
        for member in group.owners.ranking(chunk) {
            if member == self.me {
                is_mine = true;
            } else if let Some(link) = of(member) {
                match link.keeps(chunk) {
                    (true, _) => holders.push(Arc::clone(link)),
                    (false, true) if !is_mine => others.push(Arc::clone(link)),
                    (false, _) => {}
                }
            }
        }
        let is_last = others.len() <= ASKED_MAX;
        let links = holders.into_iter().chain(others).take(ASKED_MAX).collect();
        Sources { links, is_mine: is_mine && is_last || group.links.is_empty() }
    }

    /// The links to all other members.
    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.group().links.values().map(|kept| Arc::clone(&kept.link)).collect()
    }

    /// How many of so many chunks belong to each member.
    pub(crate) fn owned(&self, chunks: u32) -> BTreeMap<MemberId, u64> {
        let owners = Arc::clone(&self.group().owners);
        let mut owned = BTreeMap::new();
        for owner in (0..chunks).filter_map(|chunk| owners.owner(chunk)) {
            *owned.entry(owner).or_default() += 1;
        }
        owned
    }

    /// How many of so many chunks belong to this agent.
    pub(crate) fn owned_by_me(&self, owned: &BTreeMap<MemberId, u64>, chunks: u32) -> u64 {
        if owned.is_empty() { chunks.into() } else { owned.get(&self.me).copied().unwrap_or(0) }
    }
}

impl Link {
    /// A chunk of so many bytes came whole.
    pub(crate) fn came(&self, bytes: u64) {
        self.counts.chunks.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
