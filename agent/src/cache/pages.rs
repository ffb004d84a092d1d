//! The memory pages of the arena.
//!
//! Must hold: the figures come from the kernel, for the maps of this process only.

use std::fs;

use serde::{Deserialize, Serialize};

/// The arena's pages in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// Bytes of the arena mapped by the agent.
    pub mapped_bytes: u64,
    /// The part of `mapped_bytes` in huge pages.
    pub huge_bytes: u64,
    /// The machine's setting: the word in brackets of
    /// `/sys/kernel/mm/transparent_hugepage/shmem_enabled`; empty without such a file.
    pub setting: String,
}

impl Pages {
    /// Asks the kernel, which walks through all pages of the process. Blocks.
    pub(crate) fn now() -> Self {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        Self::of(&maps, &setting.unwrap_or_default())
    }

    fn of(maps: &str, setting: &str) -> Self {
        let mut pages = Self::default();
        let mut is_arena = false;
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let (Some(name), Some(value)) = (words.next(), words.next()) else { continue };
            // The first line of a map begins with its addresses, the others with `Name:`.
            if !name.ends_with(':') {
                is_arena = line.contains(" /memfd:diesel-arena");
            }
            let bytes = || value.parse::<u64>().unwrap_or(0).saturating_mul(1024);
            match name {
                "Rss:" if is_arena => pages.mapped_bytes += bytes(),
                "ShmemPmdMapped:" if is_arena => pages.huge_bytes += bytes(),
                _ => {}
            }
        }
        let chosen = setting.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        pages.setting = chosen.map(|(word, _)| word.to_owned()).unwrap_or_default();
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_maps_of_the_arena_count() {
        let maps = "\
7f0000000000-7f0000400000 rw-s 00000000 00:01 1031 /memfd:diesel-arena (deleted)
Size:               4096 kB
Rss:                3072 kB
ShmemPmdMapped:     2048 kB
7f0000400000-7f0000800000 rw-s 00000000 00:01 1032 /memfd:diesel-arena (deleted)
Rss:                   4 kB
ShmemPmdMapped:        0 kB
7f0000800000-7f0000900000 rw-s 00000000 00:01 1033 /memfd:diesel-table (deleted)
Rss:                 512 kB
ShmemPmdMapped:      512 kB
";
        let pages = Pages::of(maps, "always within_size [advise] never deny force\n");
        let setting = "advise".to_owned();
        let expected = Pages { mapped_bytes: 3_076 << 10, huge_bytes: 2 << 20, setting };
        assert_eq!(pages, expected);
        assert_eq!(Pages::of("", ""), Pages::default());
    }
}
