//! The sources of a chunk among the agents of a job, in the order in which they are asked.
//!
//! Must hold: agents with the same list and bitmaps never wait for each other in a circle: an agent
//! is asked to fetch a chunk only if it stands before the asker in the chunk's ranking.

/// Maximum of members asked for one chunk.
pub const ASKED_MAX: usize = 3;

/// A member in the ranking of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Candidate<L> {
    /// This agent.
    Me,
    /// Another agent with a connection.
    Other {
        /// The connection.
        link: L,
        /// Whether the agent keeps the chunk.
        keeps: bool,
        /// Whether it has room for more chunks.
        can_keep: bool,
    },
}

/// The possible sources of a chunk, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources<L> {
    /// Other members to be asked first.
    pub links: Vec<L>,
    /// How many of them, the first, keep the chunk.
    pub holders: usize,
    /// Whether this agent is next behind them, and so keeps the chunk.
    pub is_mine: bool,
}

/// The sources of a chunk by its ranking: first members that keep the chunk, then members with
/// room. This agent takes its place in the ranking if it `can_keep` the chunk. `is_alone`: the job
/// has no other member.
pub fn sources<L>(
    ranking: impl IntoIterator<Item = Candidate<L>>,
    can_keep: bool,
    is_alone: bool,
) -> Sources<L> {
    let (mut holders, mut others, mut is_mine) = (Vec::new(), Vec::new(), false);
    for candidate in ranking {
        match candidate {
            Candidate::Me => is_mine = can_keep,
            Candidate::Other { link, keeps: true, .. } => holders.push(link),
            Candidate::Other { link, can_keep: true, .. } if !is_mine => others.push(link),
            Candidate::Other { .. } => {}
        }
    }
    let is_last = others.len() <= ASKED_MAX;
    let kept_by = holders.len().min(ASKED_MAX);
    let links = holders.into_iter().chain(others).take(ASKED_MAX).collect();
    Sources { links, holders: kept_by, is_mine: is_mine && is_last || is_alone }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(link: u32, keeps: bool, can_keep: bool) -> Candidate<u32> {
        Candidate::Other { link, keeps, can_keep }
    }

    #[test]
    fn holders_come_first_then_members_with_room_before_this_agent() {
        let ranking = [
            other(1, false, true),
            other(2, false, false),
            Candidate::Me,
            other(3, false, true),
            other(4, true, false),
        ];
        let found = sources(ranking, true, false);
        assert_eq!(found, Sources { links: vec![4, 1], holders: 1, is_mine: true });
        let found = sources(ranking, false, false);
        assert_eq!(found, Sources { links: vec![4, 1, 3], holders: 1, is_mine: false });
    }

    #[test]
    fn an_agent_keeps_no_chunk_behind_too_many_members() {
        let ranking = (0..4).map(|link| other(link, false, true)).chain([Candidate::Me]);
        let found = sources(ranking, true, false);
        assert_eq!(found, Sources { links: vec![0, 1, 2], holders: 0, is_mine: false });
        let alone = sources::<u32>([], false, true);
        assert_eq!(alone, Sources { links: Vec::new(), holders: 0, is_mine: true });
    }
}
