//! The memory limits of the agent.
//!
//! Must hold: the free memory of the cgroup counts where it is less than the machine's.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Bytes of memory for chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget(pub u64);

impl Default for Budget {
    /// Half of the memory available to processes of this cgroup; 64 MiB where it is unknown. Where
    /// no cgroup is visible, an eighth of the machine's free memory up to 2 GiB, because a hidden
    /// limit may be lower.
    fn default() -> Self {
        let free = levels().map(|level| level.free).min();
        let of_free = |free: u64| match is_cgroup_visible() {
            true => free / 2,
            false => (free / 8).min(HIDDEN_MAX),
        };
        Self(free.map_or(64 << 20, of_free))
    }
}

/// Most bytes of the default where no cgroup is visible.
const HIDDEN_MAX: u64 = 2 << 30;

/// Whether limits of the cgroup can be read.
pub fn is_cgroup_visible() -> bool {
    VERSIONS.iter().any(|version| Path::new(version.root).join("cgroup.procs").exists())
}

/// Bytes available until only a tenth of the memory of the cgroup or the machine is free.
fn spare_memory() -> u64 {
    let spare = |level: Level| level.free.saturating_sub(level.all / SHORT_PART);
    levels().map(spare).min().unwrap_or(u64::MAX)
}

/// Checks for memory for another slot, with figures of a moment ago.
#[derive(Debug, Default)]
pub(crate) struct SpareMemory {
    read_at: Option<Duration>,
    bytes: u64,
    /// Slots that had memory at that time.
    populated: u32,
}

impl SpareMemory {
    /// Whether slots up to `slot` may take memory; slots below `populated` have memory already.
    pub(crate) fn allows(
        &mut self,
        slot: u32,
        populated: u32,
        slot_bytes: u32,
        now: Duration,
    ) -> bool {
        if self.read_at.is_none_or(|then| now.saturating_sub(then) >= READ_INTERVAL) {
            (self.bytes, self.populated) = (spare_memory(), populated);
            self.read_at = Some(now);
        }
        let granted = u64::from(slot.saturating_sub(self.populated)).saturating_add(1);
        // A slot takes whole huge pages.
        let granted = granted.saturating_mul(slot_bytes.into()).div_ceil(HUGE_PAGE);
        granted.saturating_mul(HUGE_PAGE) <= self.bytes
    }
}

const HUGE_PAGE: u64 = dl_node::HUGE_PAGE as u64;

/// Interval between two readings of the free memory.
const READ_INTERVAL: Duration = Duration::from_millis(200);

/// Memory is short when less than `1 / SHORT_PART` is free.
const SHORT_PART: u64 = 10;

/// Memory of the machine or of a cgroup, in bytes.
struct Level {
    all: u64,
    free: u64,
}

/// The memory files of a cgroup version.
struct Version {
    /// Its name in the controller list of `/proc/PID/cgroup`.
    controller: &'static str,
    root: &'static str,
    bound: &'static str,
    used: &'static str,
    cached: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        controller: "",
        root: "/sys/fs/cgroup",
        bound: "memory.max",
        used: "memory.current",
        cached: "inactive_file ",
    },
    Version {
        controller: "memory",
        root: "/sys/fs/cgroup/memory",
        bound: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        cached: "total_inactive_file ",
    },
];

fn levels() -> impl Iterator<Item = Level> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let cgroups = VERSIONS.iter().flat_map(|version| version.levels(&own));
    cgroups.collect::<Vec<_>>().into_iter().chain(of_machine())
}

impl Version {
    /// The cgroup of a process with the given `/proc/PID/cgroup`, and its ancestors.
    fn levels(&self, own: &str) -> Vec<Level> {
        let path = own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|name| name == self.controller).then_some(path)
        });
        let root = Path::new(self.root);
        let own = root.join(path.unwrap_or_default().trim_start_matches('/'));
        let levels = own.ancestors().take_while(|level| level.starts_with(root));
        levels.filter_map(|level| self.level(level)).collect()
    }

    /// None for a cgroup without a limit.
    fn level(&self, cgroup: &Path) -> Option<Level> {
        let number =
            |file: &str| fs::read_to_string(cgroup.join(file)).ok()?.trim().parse::<u64>().ok();
        let (all, used) = (number(self.bound)?, number(self.used)?);
        let stat = fs::read_to_string(cgroup.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix(self.cached));
        let cached: u64 = cached.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
        Some(Level { all, free: all.saturating_sub(used).saturating_add(cached) })
    }
}

fn of_machine() -> Option<Level> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let bytes = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(Level { all: bytes("MemTotal:")?, free: bytes("MemAvailable:")? })
}
