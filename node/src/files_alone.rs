//! How absent files come to a reader in no order.
//!
//! Must hold: a number without a meaning stands for files with their chunks.

/// How absent files come to a reader in no order, as its agent says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilesAlone {
    /// With their chunks.
    No = 0,
    /// From the servers, because no further chunk can be kept.
    OfServers = 1,
    /// From other agents, which may have them; else with their chunks.
    OfAgents = 2,
    /// From local disks; else from the servers.
    OfDisksOrServers = 3,
    /// From local disks; else with their chunks.
    OfDisksOrChunks = 4,
}

impl FilesAlone {
    const ALL: [Self; 5] =
        [Self::No, Self::OfServers, Self::OfAgents, Self::OfDisksOrServers, Self::OfDisksOrChunks];

    /// The meaning of a number in the page of a reader.
    pub fn of_number(number: u64) -> Self {
        Self::ALL.into_iter().find(|one| *one as u64 == number).unwrap_or(Self::No)
    }

    /// Whether the agent is asked for files.
    pub fn asks_agent(self) -> bool {
        matches!(self, Self::OfAgents) || self.comes_from_disks()
    }

    /// Whether local disks may have the files.
    pub fn comes_from_disks(self) -> bool {
        matches!(self, Self::OfDisksOrServers | Self::OfDisksOrChunks)
    }

    /// Whether the servers give files that nobody else has.
    pub fn comes_from_servers(self) -> bool {
        matches!(self, Self::OfServers | Self::OfDisksOrServers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_one_meaning() {
        for one in FilesAlone::ALL {
            assert_eq!(FilesAlone::of_number(one as u64), one);
        }
        assert_eq!(FilesAlone::of_number(5), FilesAlone::No);
        let asking = FilesAlone::ALL.map(FilesAlone::asks_agent);
        assert_eq!(asking, [false, false, true, true, true]);
    }
}
