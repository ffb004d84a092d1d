//! What a purge decides, from the rows of a survey alone: which chunks are rewritten, what goes,
//! and what has to wait.
//!
//! Must hold: a chunk goes only when none of its entries is a version that counts: each is older
//! than the winner of its path, a copy of it, or deleted. A tombstone goes when no object holds a
//! version that it names. Nothing that could not be read is taken for absent.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use dl_format::layout::{ENTRY_LEN, HEADER_MAX, ID_LEN, ORIGIN_LEN, PAGE};
use dl_format::{ChunkId, Deletions, EntrySet, EntryVersion, ObjectKind, Stamp, Version};
use dl_meta::ObjectRecord;

use crate::commit::STANDSTILL_MAX;
use crate::snapshot::Older;
use crate::survey::{Named, Row, Survey, Writer, writer};

/// A chunk of which more than this share is dead is rewritten, in percent.
const DEAD_PERCENT: u64 = 30;

/// Parts that no file names are left for an upload that goes on, for so long after its last sign: two
/// hours more than any upload may stand still, which is longer than it takes until what is sealed has come
/// or is refused.
const UPLOAD: Duration = STANDSTILL_MAX.saturating_add(Duration::from_secs(2 * 60 * 60));

/// Bytes of an entry in the header of the chunk that it is moved to, beside its path: with the version
/// that it keeps, and the chunk that this names.
const MOVED_ENTRY: usize = ENTRY_LEN + ORIGIN_LEN + ID_LEN;

/// When something may go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// When the survey began: what is decided by it holds for what was there then.
    pub(super) now: SystemTime,
    /// How long nothing must have needed it, for readers that looked it up before.
    pub(super) grace: Duration,
    /// What was needed after that may still be read, by a snapshot of an older version.
    pub(super) read_until: Option<Stamp>,
    /// How old its id must be: until then its put may be repeated, or somebody may be about to
    /// write what depends on it.
    pub(super) settled: Duration,
    pub(super) chunk_size: u64,
    /// Whether tombstones may go.
    pub(super) with_tombstones: bool,
}

/// What the rows say of a chunk.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    /// The entries that count.
    pub(super) kept: EntrySet,
    kept_cost: u64,
    /// Bytes that they take in the header of the chunk that they are moved to.
    kept_header: u64,
    cost: u64,
    /// Some entry is the winner of its path, and deleted.
    is_shadow: bool,
    /// Since when no other entry counts, at the latest.
    since: Stamp,
}

/// What the rows say of all objects.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) states: Vec<State>,
    /// Entries that tombstones name and that some chunk holds.
    held: HashMap<ChunkId, EntrySet>,
    /// Versions that only a deleted winner hides.
    pub(super) hidden: Deletions,
    /// Winners that are deleted, and that no tombstone names any more: it is lost or damaged.
    pub(super) undone: Deletions,
    /// Winners that are not deleted.
    pub(super) files: u64,
}

/// What to do, by numbers in the log.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) rewrite: Vec<usize>,
    /// In this order.
    pub(super) remove: Vec<usize>,
    /// What goes, or is rewritten, when its time has come; and when that is, as far as the rows tell.
    pub(super) waiting: Vec<usize>,
    pub(super) until: SystemTime,
}

/// Until when these snapshots need nothing that is needed no more. A version is all objects
/// up to its last stamp, unless one came into the log after others with later stamps, or has left it:
/// then that version may need anything.
pub(super) fn read_until(objects: &[ObjectRecord], older: &[Older]) -> Option<Stamp> {
    let until = |older: &Older| {
        let last = older.version.last_stamp()?;
        let mut before = Version::default();
        let is_before = |object: &&ObjectRecord| object.stamp <= last;
        objects.iter().filter(is_before).for_each(|object| before.add(object.id, object.stamp));
        Some(if before == older.version { last } else { Stamp::default() })
    };
    older.iter().filter_map(until).min()
}

/// What becomes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stays,
    /// Until then at least.
    Waits(SystemTime),
    Goes,
}

impl State {
    /// Whether two such chunks go into one of `size` bytes, so that of many that are put together only one
    /// is left that is small.
    fn is_small(&self, size: u64) -> bool {
        let half = |whole: u64| (whole / 2).saturating_sub(PAGE as u64);
        let more = u64::from(self.kept.count()) * (MOVED_ENTRY - ENTRY_LEN) as u64;
        self.kept_cost + more < half(size) && self.kept_header < half(HEADER_MAX as u64)
    }
}

impl Ledger {
    pub(super) fn new(survey: &Survey) -> Self {
        let states = vec![State::default(); survey.objects.len()];
        Self {
            states,
            held: HashMap::new(),
            hidden: Deletions::default(),
            undone: Deletions::default(),
            files: 0,
        }
    }

    /// Takes the rows of one path, of so many bytes.
    pub(super) fn add(&mut self, path: usize, winner: &Row, others: &[Row], named: &Named) {
        let version = winner.record.version;
        let is_deleted = named.contains(&version);
        self.files += u64::from(!is_deleted);
        for row in std::iter::once(winner).chain(others) {
            if named.contains(&row.record.version) {
                let EntryVersion { chunk, entry, .. } = row.record.version;
                self.held.entry(chunk).or_default().insert(entry);
            }
            let Some(state) = self.states.get_mut(row.object) else { continue };
            state.cost += row.cost;
            let is_winner = row.record.holder == winner.record.holder;
            if is_winner && !is_deleted {
                state.kept.insert(row.record.holder.entry);
                state.kept_cost += row.cost;
                state.kept_header += (MOVED_ENTRY + path) as u64;
                continue;
            }
            let is_version = row.record.version == version;
            state.is_shadow |= is_version && is_deleted;
            state.since = state.since.max(match (is_version, is_deleted) {
                (true, true) => named.since(version.chunk),
                (true, false) => winner.record.holder.stamp,
                (false, _) => version.stamp,
            });
            if is_deleted && !is_version && !named.contains(&row.record.version) {
                self.hidden.insert(&row.record.version);
            }
        }
    }

    /// Bytes of an object that no file needs: all of it, but for the live entries of a chunk.
    pub(super) fn dead_bytes(&self, number: usize, object: &ObjectRecord) -> u64 {
        let kept = self.states.get(number).map_or(0, |state| state.kept_cost);
        object.object_length.saturating_sub(kept)
    }

    /// Whether some chunk holds what a tombstone names.
    pub(super) fn is_held(&self, deletions: &Deletions) -> bool {
        deletions.iter().any(|(chunk, entries)| {
            let held = self.held.get(&chunk);
            held.is_some_and(|held| entries.iter().any(|entry| held.contains(entry)))
        })
    }

    /// `held` are the tombstones for which [`Ledger::is_held`].
    pub(super) fn plan(&self, survey: &Survey, rules: Rules, held: &HashSet<usize>) -> Plan {
        let is_whole = survey.is_whole();
        let chunks: Vec<Fate> = (0..survey.objects.len())
            .map(|number| self.fate_of_chunk(survey, number, rules, is_whole))
            .collect();
        let parts = Parts::new(survey);
        let (rewrite, waiting) = self.rewrites(survey, rules, is_whole);
        let young = waiting.iter().filter_map(|number| survey.objects.get(*number));
        let until = young.map(|object| rules.settles(object)).max().unwrap_or(rules.now);
        let mut plan = Plan { rewrite, remove: Vec::new(), waiting, until };
        for (number, object) in survey.objects.iter().enumerate() {
            let fate = match object.kind {
                ObjectKind::Chunk => chunks.get(number).copied().unwrap_or(Fate::Stays),
                ObjectKind::Part if !is_whole => Fate::Stays,
                ObjectKind::Part => parts.fate(object, rules, &chunks),
                ObjectKind::Tombstone if !is_whole || held.contains(&number) => Fate::Stays,
                ObjectKind::Tombstone if !rules.with_tombstones => {
                    Fate::Waits(rules.until(object, object.stamp))
                }
                ObjectKind::Tombstone => rules.fate(object, object.stamp),
            };
            // What is not in the store any more is not there to be removed.
            match fate {
                Fate::Goes if survey.stored.contains_key(&object.id) => plan.remove.push(number),
                Fate::Waits(until) => {
                    plan.waiting.push(number);
                    plan.until = plan.until.max(until);
                }
                Fate::Goes | Fate::Stays => {}
            }
        }
        // A chunk that names parts goes after them: it is what leads to them.
        plan.remove.sort_by_key(|number| match survey.objects.get(*number).map(|o| o.kind) {
            Some(ObjectKind::Part) => 0,
            Some(ObjectKind::Chunk) => 1,
            Some(ObjectKind::Tombstone) | None => 2,
        });
        plan
    }

    fn fate_of_chunk(&self, survey: &Survey, number: usize, rules: Rules, is_whole: bool) -> Fate {
        let (Some(object), Some(state)) = (survey.objects.get(number), self.states.get(number))
        else {
            return Fate::Stays;
        };
        let is_known = state.cost > 0 && !survey.unread.contains_key(&number);
        // What can't be read may hold older versions that this one hides.
        if !is_known || state.kept.count() > 0 || state.is_shadow && !is_whole {
            return Fate::Stays;
        }
        rules.fate(object, state.since)
    }

    /// Chunks with holes, and small ones when there are several to be put together; and those with
    /// holes that are too young.
    fn rewrites(&self, survey: &Survey, rules: Rules, is_whole: bool) -> (Vec<usize>, Vec<usize>) {
        let large: HashSet<usize> = survey.extents.iter().map(|(number, _)| *number).collect();
        let may_go = |number: usize, state: &State| {
            state.kept.count() > 0
                && !large.contains(&number)
                && !survey.unread.contains_key(&number)
                && (is_whole || !state.is_shadow)
        };
        let (mut holes, mut small, mut young) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (state, object)) in self.states.iter().zip(survey.objects.iter()).enumerate() {
            if !may_go(number, state) {
                continue;
            }
            let dead = state.cost.saturating_sub(state.kept_cost);
            let has_holes = dead.saturating_mul(100) > state.cost.saturating_mul(DEAD_PERCENT);
            match (has_holes, rules.settles(object) <= rules.now) {
                (true, true) => holes.push(number),
                (true, false) => young.push(number),
                (false, true) if state.is_small(rules.chunk_size) => small.push(number),
                (false, _) => {}
            }
        }
        // One alone would be written again by each purge, beside one that is damaged.
        if small.len() > 1 {
            holes.append(&mut small);
        }
        holes.sort_unstable();
        (holes, young)
    }
}

impl Rules {
    /// Everything that keeps an object that no path needs since then.
    fn fate(self, object: &ObjectRecord, since: Stamp) -> Fate {
        let until = self.until(object, since);
        let is_named = self.read_until.is_some_and(|until| since > until);
        if until <= self.now && !is_named { Fate::Goes } else { Fate::Waits(until) }
    }

    /// Until when it stays, whatever snapshots name.
    fn until(self, object: &ObjectRecord, since: Stamp) -> SystemTime {
        later(since.time(), self.grace).max(self.settles(object))
    }

    fn settles(self, object: &ObjectRecord) -> SystemTime {
        later(object.id.sealed_at(), self.settled)
    }
}

/// A time that can't be told is not reached for long.
fn later(time: SystemTime, by: Duration) -> SystemTime {
    const LONG: Duration = Duration::from_secs(1 << 40);
    time.checked_add(by).unwrap_or(SystemTime::UNIX_EPOCH + LONG)
}

/// Who needs the parts of large files.
#[derive(Debug)]
struct Parts {
    /// The chunks that name each.
    named_by: HashMap<ChunkId, Vec<usize>>,
    /// When each writer sealed its last object.
    last: HashMap<Writer, SystemTime>,
}

impl Parts {
    fn new(survey: &Survey) -> Self {
        let mut named_by: HashMap<ChunkId, Vec<usize>> = HashMap::new();
        for (number, extent) in &survey.extents {
            named_by.entry(extent.part).or_default().push(*number);
        }
        let mut last = HashMap::new();
        let has_parts = survey.objects.iter().any(|object| object.kind == ObjectKind::Part);
        for object in survey.objects.iter().filter(|_| has_parts) {
            let sealed = last.entry(writer(object.id)).or_insert(SystemTime::UNIX_EPOCH);
            *sealed = object.id.sealed_at().max(*sealed);
        }
        Self { named_by, last }
    }

    fn fate(&self, object: &ObjectRecord, rules: Rules, chunks: &[Fate]) -> Fate {
        let Some(named_by) = self.named_by.get(&object.id) else {
            let last = self.last.get(&writer(object.id)).copied();
            let is_over = last.and_then(|last| last.checked_add(UPLOAD));
            let is_over = is_over.is_some_and(|until| until <= rules.now);
            return if is_over { rules.fate(object, object.stamp) } else { Fate::Stays };
        };
        let fates = named_by.iter().map(|number| chunks.get(*number).copied());
        fates.fold(Fate::Goes, |least, fate| match (least, fate.unwrap_or(Fate::Stays)) {
            (Fate::Stays, _) | (_, Fate::Stays) => Fate::Stays,
            (Fate::Waits(one), Fate::Waits(other)) => Fate::Waits(one.max(other)),
            (Fate::Waits(until), Fate::Goes) | (Fate::Goes, Fate::Waits(until)) => {
                Fate::Waits(until)
            }
            (Fate::Goes, Fate::Goes) => Fate::Goes,
        })
    }
}
