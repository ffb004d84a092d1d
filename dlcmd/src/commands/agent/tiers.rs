//! The tiers of an agent's cache, from the command line.
//!
//! Must hold: memory comes first. A folder is used only if it exists.

use std::path::PathBuf;

use dl_agent::DiskConfig;
use dl_runtime::units;

use crate::exit::Failure;
use crate::text::{escaped, shown};

/// Most folders of an agent.
const FOLDERS_MAX: usize = 4;

/// The tier that is no folder.
const MEMORY: &str = "memory";

/// The tiers in a list as in `memory:8GiB,/nvme/diesel:200GiB`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Tiers {
    /// Bytes of memory, if given.
    pub(super) memory: Option<u64>,
    pub(super) disks: Vec<DiskConfig>,
}

impl Tiers {
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        let wrong = |why: &str| {
            let text = escaped(text.as_bytes());
            Failure::usage(format!(
                "--tiers {text}: {why}; type tiers such as memory:8GiB,/nvme/diesel:200GiB"
            ))
        };
        let mut tiers = Self::default();
        for (number, tier) in text.split(',').enumerate() {
            let size = tier.rsplit_once(':');
            let size = size.and_then(|(name, size)| Some((name.trim(), units::size(size.trim())?)));
            let (name, bytes) = size.ok_or_else(|| wrong("a tier has no size"))?;
            match name {
                MEMORY if number == 0 => tiers.memory = Some(bytes),
                MEMORY => return Err(wrong("memory comes first")),
                _ if name.starts_with('/') => {
                    tiers.disks.push(DiskConfig { path: PathBuf::from(name), quota: bytes });
                }
                _ => return Err(wrong("a folder begins with /")),
            }
        }
        let mut paths: Vec<_> = tiers.disks.iter().map(|disk| &disk.path).collect();
        paths.sort();
        paths.dedup();
        if paths.len() < tiers.disks.len() {
            return Err(wrong("a folder is named twice"));
        }
        if tiers.disks.len() > FOLDERS_MAX {
            return Err(wrong("there are more than four folders"));
        }
        Ok(tiers)
    }

    /// The first folder that does not exist, in words.
    pub(super) fn missing(&self) -> Option<String> {
        let missing = self.disks.iter().find(|disk| !disk.path.is_dir())?;
        Some(format!("--tiers: there is no folder {}: make it first", shown(&missing.path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_memory_and_folders_with_sizes() {
        let disk = |path: &str, quota| DiskConfig { path: path.into(), quota };
        let parsed = Tiers::parse("memory:8GiB, /nvme/a:b:200GiB,/ssd:1MiB").unwrap();
        let disks = vec![disk("/nvme/a:b", 200 << 30), disk("/ssd", 1 << 20)];
        assert_eq!(parsed, Tiers { memory: Some(8 << 30), disks });
        assert_eq!(Tiers::parse("/ssd:1GiB").unwrap().memory, None);
        for (text, says) in [
            ("", "no size"),
            ("/nvme", "no size"),
            ("/nvme:much", "no size"),
            ("nvme:1GiB", "begins with /"),
            ("/nvme:1GiB,memory:1GiB", "memory comes first"),
            ("/nvme:1GiB,/nvme:2GiB", "twice"),
            ("/a:1GiB,/b:1GiB,/c:1GiB,/d:1GiB,/e:1GiB", "more than four"),
        ] {
            let why = Tiers::parse(text).unwrap_err().to_string();
            assert!(why.contains(says) && why.contains("type tiers such as"), "{text}: {why}");
        }
        let missing = Tiers::parse("/no/such/folder:1GiB").unwrap().missing();
        assert!(missing.unwrap().contains("no folder /no/such/folder"));
    }
}
