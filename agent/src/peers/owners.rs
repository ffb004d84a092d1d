//! The owner of each chunk among the members of a job: rendezvous hashing over the members,
//! weighted by memory.
//!
//! Must hold: members with the same list compute the same owner. A joining or leaving member moves
//! only its own chunks.

use libdiesel::agent::{MemberId, TaskMember};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The members able to hold chunks for others.
#[derive(Debug, Default)]
pub(crate) struct Owners(Vec<Owner>);

#[derive(Debug)]
struct Owner {
    id: MemberId,
    /// Seed of the member's hashes.
    seed: u64,
    memory: f64,
}

impl Owners {
    /// From members, each with its memory for chunks.
    pub(crate) fn of<'a>(members: impl IntoIterator<Item = &'a TaskMember>) -> Self {
        let owners = members.into_iter().filter(|member| member.memory > 0).map(|member| Owner {
            id: member.id,
            seed: xxh3_64_with_seed(member.id.as_bytes(), 0),
            memory: member.memory as f64,
        });
        Self(owners.collect())
    }

    /// The ids of the members.
    pub(crate) fn ids(&self) -> impl Iterator<Item = MemberId> {
        self.0.iter().map(|owner| owner.id)
    }

    /// The number of members.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The owner of a chunk.
    pub(crate) fn owner(&self, chunk: u32) -> Option<MemberId> {
        let scores = self.0.iter().map(|owner| (owner.score(chunk), owner.id));
        scores.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, id)| id)
    }

    /// The members by their claim on a chunk: first its owner, then the owner without the first
    /// member, and so on.
    pub(crate) fn ranking(&self, chunk: u32) -> Vec<MemberId> {
        let mut scores: Vec<_> =
            self.0.iter().map(|owner| (owner.score(chunk), owner.id)).collect();
        scores.sort_by(|one, other| other.0.total_cmp(&one.0));
        scores.into_iter().map(|(_, id)| id).collect()
    }
}

impl Owner {
    /// With weights w, the largest of w / -ln(u) belongs to a member with probability w / (sum of
    /// all w).
    fn score(&self, chunk: u32) -> f64 {
        let hash = xxh3_64_with_seed(&chunk.to_le_bytes(), self.seed);
        // The middle of one of 2^53 equal parts of 0..1: never 0 and never 1.
        let uniform = ((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        self.memory / -uniform.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKS: u32 = 20_000;

    fn member(number: u8, memory: u64) -> TaskMember {
        let id = MemberId::from_bytes([number; 16]);
        TaskMember { id, address: String::new(), key_fingerprint: None, memory }
    }

    #[test]
    fn each_member_owns_its_share_of_the_memory() {
        let members = [member(1, 1 << 30), member(2, 3 << 30), member(3, 0), member(4, 4 << 30)];
        let owners = Owners::of(&members);
        for (member, share) in members.iter().zip([0.125, 0.375, 0.0, 0.5]) {
            let owned = (0..CHUNKS).filter(|chunk| owners.owner(*chunk) == Some(member.id));
            let owned = owned.count() as f64 / f64::from(CHUNKS);
            assert!((owned - share).abs() < 0.015, "{owned} of {share}");
        }
        assert_eq!(Owners::default().owner(0), None);
    }

    #[test]
    fn a_leaving_member_moves_only_its_chunks_to_the_next_in_rank() {
        let members: Vec<_> = (1..=5).map(|number| member(number, u64::from(number))).collect();
        let (all, rest) = (Owners::of(&members), Owners::of(members.iter().skip(1)));
        for chunk in 0..CHUNKS {
            let ranking = all.ranking(chunk);
            let expected = ranking.iter().find(|id| **id != members.first().unwrap().id);
            assert_eq!(rest.owner(chunk).as_ref(), expected);
        }
    }
}
