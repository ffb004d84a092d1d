//! The owner of each chunk among the members of a job: rendezvous hashing over the members,
//! weighted by their memory, and bounded by the chunks that each can keep.
//!
//! Must hold: members with the same list compute the same owners. While the members together can
//! keep all chunks, none owns more than it can keep. A joining or leaving member moves its own
//! chunks, and only chunks that no longer fit elsewhere.

use std::collections::BTreeMap;

use dl_format::MemberId;
use dl_proto::TaskMember;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The members able to hold chunks for others.
#[derive(Debug, Default)]
pub struct Owners(Vec<Owner>);

#[derive(Debug, Clone, Copy)]
struct Owner {
    id: MemberId,
    /// Seed of the member's hashes.
    seed: u64,
    memory: u64,
    /// Chunks that the member can keep, if known.
    chunks: Option<u32>,
}

impl Owners {
    /// From members, each with its memory for chunks.
    pub fn of<'a>(members: impl IntoIterator<Item = &'a TaskMember>) -> Self {
        let owners = members.into_iter().filter(|member| member.memory > 0).map(|member| Owner {
            id: member.id,
            seed: xxh3_64_with_seed(member.id.as_bytes(), 0),
            memory: rounded(member.memory),
            chunks: member.chunks,
        });
        Self(owners.collect())
    }

    /// The ids of the members, and what each can keep.
    pub fn members(&self) -> impl Iterator<Item = (MemberId, u64, Option<u32>)> {
        self.0.iter().map(|owner| (owner.id, owner.memory, owner.chunks))
    }

    /// The members by their claim on a chunk: the member with the highest claim, then the member with
    /// the highest claim without the first, and so on.
    pub fn ranking(&self, chunk: u32) -> Vec<MemberId> {
        let mut scores: Vec<_> = self
            .0
            .iter()
            .map(|owner| (score(owner.memory, owner.claim(chunk)), owner.id))
            .collect();
        scores.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
        scores.into_iter().map(|(_, id)| id).collect()
    }
}

impl Owner {
    fn claim(&self, chunk: u32) -> u64 {
        claim(&chunk.to_le_bytes(), self.seed)
    }
}

fn claim(chunk: &[u8; 4], seed: u64) -> u64 {
    xxh3_64_with_seed(chunk, seed) >> 11
}

/// Members with nearly the same memory have the same weight, so that most comparisons need no
/// logarithm: the highest 4 bits count.
fn rounded(memory: u64) -> u64 {
    let low = memory.checked_ilog2().unwrap_or(0).saturating_sub(3);
    memory >> low << low
}

/// With weights w, the largest of w / -ln(u) belongs to a member with probability w / (sum of all
/// w).
fn score(memory: u64, claim: u64) -> f64 {
    // The middle of one of 2^53 equal parts of 0..1: never 0 and never 1.
    let uniform = (claim as f64 + 0.5) / (1_u64 << 53) as f64;
    memory as f64 / -uniform.ln()
}

/// The owner of each chunk of a dataset.
#[derive(Debug, Default)]
pub struct OwnerTable {
    /// Without members, this agent owns all chunks.
    members: Vec<MemberId>,
    /// The index of this agent among the members.
    me: Option<u16>,
    /// Indexed by chunk.
    owners: Vec<u16>,
}

/// Members with equal memory: of these the highest claim wins, without a logarithm.
#[derive(Clone)]
struct Class {
    memory: u64,
    /// The seed and the index of each, in the order of their ids.
    members: Vec<(u64, u16)>,
}

impl Class {
    /// The highest claim on a chunk, and its member; of equal claims, that of the highest id.
    fn winner(&self, chunk: u32) -> Option<(u64, u16)> {
        let chunk = chunk.to_le_bytes();
        let mut best = None;
        for (seed, index) in &self.members {
            let claim = claim(&chunk, *seed);
            if best.is_none_or(|(highest, _)| claim >= highest) {
                best = Some((claim, *index));
            }
        }
        best
    }
}

impl OwnerTable {
    /// Computes the owners of all chunks, which takes up to 6 ns for each chunk and member with equal
    /// memories.
    pub fn of(owners: &Owners, me: MemberId, chunks: u32) -> Self {
        let members: Vec<_> = owners.0.iter().map(|owner| owner.id).collect();
        if members.len() > usize::from(u16::MAX) {
            return Self::default();
        }
        let me = members.iter().position(|id| *id == me).map(|index| index as u16);
        let mut sorted: Vec<_> = owners.0.iter().enumerate().collect();
        sorted.sort_by_key(|(_, owner)| owner.id);
        let mut classes: BTreeMap<u64, Vec<(u64, u16)>> = BTreeMap::new();
        for (index, owner) in sorted {
            classes.entry(owner.memory).or_default().push((owner.seed, index as u16));
        }
        let class = |(memory, members)| Class { memory, members };
        let all: Vec<_> = classes.into_iter().map(class).collect();
        // A member with unknown room takes what its claim gives.
        let mut room: Vec<u32> =
            owners.0.iter().map(|owner| owner.chunks.unwrap_or(u32::MAX)).collect();
        let mut open: Vec<Class> = all.clone();
        let has_room =
            |room: &[u32], index: u16| room.get(usize::from(index)).is_some_and(|left| *left > 0);
        open.iter_mut().for_each(|class| class.members.retain(|one| has_room(&room, one.1)));
        let mut table = Vec::with_capacity(if members.is_empty() { 0 } else { chunks as usize });
        for chunk in 0..chunks {
            // Once all are full, the highest claim fetches for the others without keeping.
            let Some(owner) = owners.winner(&open, chunk).or_else(|| owners.winner(&all, chunk))
            else {
                break;
            };
            table.push(owner);
            let Some(left) = room.get_mut(usize::from(owner)).filter(|left| **left < u32::MAX)
            else {
                continue;
            };
            *left = left.saturating_sub(1);
            if *left == 0 {
                open.iter_mut().for_each(|class| class.members.retain(|one| one.1 != owner));
            }
        }
        Self { members, me, owners: table }
    }

    /// The owner of a chunk.
    pub fn owner(&self, chunk: u32) -> Option<MemberId> {
        self.members.get(usize::from(*self.owners.get(chunk as usize)?)).copied()
    }

    /// Whether this agent owns a chunk; true for all chunks while no member is known.
    pub fn owns(&self, chunk: u32) -> bool {
        self.owners.get(chunk as usize).is_none_or(|owner| Some(*owner) == self.me)
    }

    /// The number of chunks owned by each member.
    pub fn counts(&self) -> BTreeMap<MemberId, u64> {
        let mut counts = vec![0; self.members.len()];
        for owner in &self.owners {
            counts.get_mut(usize::from(*owner)).into_iter().for_each(|count| *count += 1);
        }
        self.members.iter().copied().zip(counts).collect()
    }

    /// The members by their claim on a chunk, its owner first.
    pub fn ranking(&self, owners: &Owners, chunk: u32) -> Vec<MemberId> {
        let mut ranking = owners.ranking(chunk);
        let owner = self.owner(chunk).and_then(|owner| ranking.iter().position(|id| *id == owner));
        if let Some(owner) = owner {
            ranking.get_mut(..=owner).into_iter().for_each(|before| before.rotate_right(1));
        }
        ranking
    }
}

impl Owners {
    /// The member with the highest claim on a chunk among classes.
    fn winner(&self, classes: &[Class], chunk: u32) -> Option<u16> {
        if let [class] = classes {
            return class.winner(chunk).map(|(_, index)| index);
        }
        let scores = classes.iter().filter_map(|class| {
            let (claim, index) = class.winner(chunk)?;
            let id = self.0.get(usize::from(index))?.id;
            Some((score(class.memory, claim), id, index))
        });
        let best = scores.max_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        best.map(|(_, _, index)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKS: u32 = 20_000;

    fn member(number: u8, memory: u64) -> TaskMember {
        let id = MemberId::from_bytes([number; 16]);
        let (address, key_fingerprint, chunks) = (String::new(), None, None);
        TaskMember { id, address, key_fingerprint, memory, chunks }
    }

    fn table(members: &[TaskMember], chunks: u32) -> OwnerTable {
        OwnerTable::of(&Owners::of(members), MemberId::from_bytes([1; 16]), chunks)
    }

    #[test]
    fn each_member_owns_its_share_of_the_memory() {
        let members = [member(1, 1 << 30), member(2, 3 << 30), member(3, 0), member(4, 4 << 30)];
        let table = table(&members, CHUNKS);
        let counts = table.counts();
        for (member, share) in members.iter().zip([0.125, 0.375, 0.0, 0.5]) {
            let owned = counts.get(&member.id).copied().unwrap_or(0) as f64 / f64::from(CHUNKS);
            assert!((owned - share).abs() < 0.015, "{owned} of {share}");
        }
        assert!((0..CHUNKS).all(|chunk| table.owns(chunk)
            == (table.owner(chunk) == Some(MemberId::from_bytes([1; 16])))));
        assert_eq!(OwnerTable::default().owner(0), None);
        assert!(OwnerTable::default().owns(0));
    }

    #[test]
    fn a_leaving_member_moves_only_its_chunks_to_the_next_in_rank() {
        let members: Vec<_> = (1..=5).map(|number| member(number, u64::from(number))).collect();
        let all = Owners::of(&members);
        let of_all = OwnerTable::of(&all, members[0].id, CHUNKS);
        let rest = table(&members[1..], CHUNKS);
        for chunk in 0..CHUNKS {
            let ranking = of_all.ranking(&all, chunk);
            assert_eq!(ranking, all.ranking(chunk), "without bounds, the highest claim owns");
            let expected = ranking.iter().find(|id| **id != members[0].id);
            assert_eq!(rest.owner(chunk).as_ref(), expected);
        }
    }

    #[test]
    fn no_member_owns_more_than_it_can_keep_while_all_fit() {
        let bounded =
            |number, chunks| TaskMember { chunks: Some(chunks), ..member(number, 1 << 30) };
        let members = [bounded(1, 90), bounded(2, 110), bounded(3, 100), bounded(4, 105)];
        let counts = table(&members, 400).counts();
        for member in &members {
            let owned = counts[&member.id];
            assert!(owned <= member.chunks.unwrap().into() && owned >= 80, "{owned}");
        }
        assert_eq!(counts.values().sum::<u64>(), 400);
        // More chunks than fit: each still has one owner.
        let counts = table(&members, 1_000).counts();
        assert_eq!(counts.values().sum::<u64>(), 1_000);
        assert!(counts.values().all(|owned| *owned > 200), "{counts:?}");
        let owners = Owners::of(&members);
        let table = table(&members, 400);
        assert!((0..400).all(|chunk| {
            let ranking = table.ranking(&owners, chunk);
            ranking.first().copied() == table.owner(chunk) && ranking.len() == members.len()
        }));
    }
}
