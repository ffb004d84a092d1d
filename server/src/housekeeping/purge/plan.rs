//! The decisions of a purge, by survey rows alone: chunks to rewrite, objects to remove, and objects that wait.
//!
//! Must hold: a chunk goes only when each of its entries is older than the winner of its path, a copy of the
//! winner, or deleted. A tombstone goes when no object holds its versions. An object with an unreadable header
//! counts as present.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use dl_format::{ChunkId, Deletions, EntrySet, EntryVersion, ObjectKind, Stamp, Version};
use dl_meta::ObjectRecord;

use crate::datasets::small::{MOVED_ENTRY, MOVED_MORE, fits_twice};
use crate::datasets::survey::{DeletedEntries, Row, Survey, Writer, writer};
use crate::snapshot::Older;
use crate::write::commit::STANDSTILL_MAX;

/// The dead share in percent above which a chunk is rewritten.
const DEAD_PERCENT: u64 = 30;

/// Time after the last sign of an upload for which parts without a file are kept: two hours more than an
/// upload may stand still. Within two hours each sealed object has arrived or is refused.
const UPLOAD: Duration = STANDSTILL_MAX.saturating_add(Duration::from_secs(2 * 60 * 60));

/// The rules for the time at which objects may go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// The start of the survey: decisions are about the objects of then.
    pub(super) now: SystemTime,
    /// Time for which no file must have needed an object, for readers that looked the file up before.
    pub(super) grace: Duration,
    /// Objects needed after this stamp may still be read by a snapshot of an older version.
    pub(super) read_until: Option<Stamp>,
    /// The least age of the id: before, the put may be repeated, or a client may write an object in need of it.
    pub(super) quiet_age: Duration,
    pub(super) chunk_size: u64,
    pub(super) with_tombstones: bool,
}

/// The state of a chunk by its rows.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    /// The entries with live files.
    pub(super) kept: EntrySet,
    kept_cost: u64,
    /// Bytes of these entries in the header of their next chunk.
    kept_header: u64,
    cost: u64,
    /// Whether an entry is the winner of its path, and deleted.
    is_shadow: bool,
    /// The latest stamp at which an entry died.
    since: Stamp,
}

/// The states of all objects by their rows.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) states: Vec<State>,
    /// Deleted entries in existing chunks.
    held: HashMap<ChunkId, EntrySet>,
    /// Versions hidden by a deleted winner alone.
    pub(super) hidden: Deletions,
    /// The number of winners without a deletion.
    pub(super) files: u64,
}

/// The work of a purge, by numbers in the log.
#[derive(Debug)]
pub(super) struct PurgePlan {
    pub(super) rewrite: Vec<usize>,
    /// In the order of removal.
    pub(super) remove: Vec<usize>,
    /// Objects that go, or are rewritten, later; and the latest of these times, as far as the rows tell.
    pub(super) waiting: Vec<usize>,
    pub(super) until: SystemTime,
}

/// The stamp up to which objects may lose their last file without an effect on the snapshots. A version is all
/// objects up to its last stamp. If an object joined the log out of order, or left, any object may be needed.
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

/// The decision about an object; later variants keep the object longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Goes,
    /// The object stays until this time at least.
    Waits(SystemTime),
    Stays,
}

impl State {
    /// Whether so much of the chunk is dead that its live files move.
    pub(super) fn has_holes(&self) -> bool {
        let dead = self.cost.saturating_sub(self.kept_cost);
        dead.saturating_mul(100) > self.cost.saturating_mul(DEAD_PERCENT)
    }

    /// Whether two such chunks fit into a chunk of `size` bytes.
    fn is_small(&self, size: u64) -> bool {
        let more = u64::from(self.kept.count()) * MOVED_MORE as u64;
        fits_twice(self.kept_cost + more, self.kept_header, size)
    }
}

impl Ledger {
    pub(super) fn new(survey: &Survey) -> Self {
        let states = vec![State::default(); survey.objects.len()];
        Self { states, held: HashMap::new(), hidden: Deletions::default(), files: 0 }
    }

    /// Takes the rows of a path of `path` bytes.
    pub(super) fn add(
        &mut self,
        path: usize,
        winner: &Row,
        others: &[Row],
        deleted: &DeletedEntries,
    ) {
        let version = winner.record.version;
        let is_deleted = deleted.contains(&version);
        self.files += u64::from(!is_deleted);
        for row in std::iter::once(winner).chain(others) {
            if deleted.contains(&row.record.version) {
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
                (true, true) => deleted.since(version.chunk),
                (true, false) => winner.record.holder.stamp,
                (false, _) => version.stamp,
            });
            if is_deleted && !is_version && !deleted.contains(&row.record.version) {
                self.hidden.insert(&row.record.version);
            }
        }
    }

    /// Bytes of an object without its live entries.
    pub(super) fn dead_bytes(&self, number: usize, object: &ObjectRecord) -> u64 {
        let kept = self.states.get(number).map_or(0, |state| state.kept_cost);
        object.object_length.saturating_sub(kept)
    }

    /// Whether a chunk holds an entry of a tombstone.
    pub(super) fn is_held(&self, deletions: &Deletions) -> bool {
        deletions.iter().any(|(chunk, entries)| {
            let held = self.held.get(&chunk);
            held.is_some_and(|held| entries.iter().any(|entry| held.contains(entry)))
        })
    }

    /// `held` are the tombstones for which [`Ledger::is_held`].
    pub(super) fn plan(&self, survey: &Survey, rules: Rules, held: &HashSet<usize>) -> PurgePlan {
        let is_whole = survey.is_whole();
        let chunks: Vec<Fate> = (0..survey.objects.len())
            .map(|number| self.fate_of_chunk(survey, number, rules, is_whole))
            .collect();
        let parts = Parts::new(survey);
        let (rewrite, waiting) = self.rewrites(survey, rules, is_whole);
        let young = waiting.iter().filter_map(|number| survey.objects.get(*number));
        let until = young.map(|object| rules.quiet_at(object)).max().unwrap_or(rules.now);
        let mut plan = PurgePlan { rewrite, remove: Vec::new(), waiting, until };
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
            match fate {
                Fate::Goes => plan.remove.push(number),
                Fate::Waits(until) => {
                    plan.waiting.push(number);
                    plan.until = plan.until.max(until);
                }
                Fate::Stays => {}
            }
        }
        // A chunk goes after the parts that it names: without the chunk nothing leads to them.
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
        // An unreadable object may hold older versions that this chunk hides.
        if !is_known || state.kept.count() > 0 || state.is_shadow && !is_whole {
            return Fate::Stays;
        }
        rules.fate(object, state.since)
    }

    /// Chunks to rewrite, with holes or several small chunks; and chunks that are too young for a rewrite.
    fn rewrites(&self, survey: &Survey, rules: Rules, is_whole: bool) -> (Vec<usize>, Vec<usize>) {
        let large: HashSet<usize> = survey.extents.iter().map(|(number, _)| *number).collect();
        let may_go = |number: usize, state: &State| {
            state.kept.count() > 0
                && !large.contains(&number)
                && !survey.unread.contains_key(&number)
                && (is_whole || !state.is_shadow)
        };
        let (mut chosen, mut small) = (Vec::new(), Vec::new());
        let (mut young, mut young_small) = (Vec::new(), Vec::new());
        for (number, (state, object)) in self.states.iter().zip(survey.objects.iter()).enumerate() {
            if !may_go(number, state) {
                continue;
            }
            let list = match (state.has_holes(), rules.quiet_at(object) <= rules.now) {
                (true, true) => &mut chosen,
                (true, false) => &mut young,
                (false, _) if !state.is_small(rules.chunk_size) => continue,
                (false, true) => &mut small,
                (false, false) => &mut young_small,
            };
            list.push(number);
        }
        // Each purge would write a single small chunk again. A rewrite of chunks with holes may leave another.
        if small.len() + usize::from(!chosen.is_empty()) > 1 {
            chosen.append(&mut small);
        }
        let is_rewritten = !chosen.is_empty() || !young.is_empty();
        if small.len() + young_small.len() + usize::from(is_rewritten) > 1 {
            young.append(&mut young_small);
        }
        // Files keep their neighbours: chunks are read in the order of their ids.
        chosen.sort_unstable();
        (chosen, young)
    }
}

impl Rules {
    /// The decision about an object without files since a stamp.
    fn fate(self, object: &ObjectRecord, since: Stamp) -> Fate {
        let until = self.until(object, since);
        let is_named = self.read_until.is_some_and(|until| since > until);
        if until <= self.now && !is_named { Fate::Goes } else { Fate::Waits(until) }
    }

    /// The time until which an object stays, without regard to snapshots.
    fn until(self, object: &ObjectRecord, since: Stamp) -> SystemTime {
        later(since.time(), self.grace).max(self.quiet_at(object))
    }

    fn quiet_at(self, object: &ObjectRecord) -> SystemTime {
        later(object.id.sealed_at(), self.quiet_age)
    }
}

/// The sum; a time far away where the sum overflows.
fn later(time: SystemTime, by: Duration) -> SystemTime {
    const LONG: Duration = Duration::from_secs(1 << 40);
    time.checked_add(by).unwrap_or(SystemTime::UNIX_EPOCH + LONG)
}

/// The chunks and uploads in need of parts of large files.
#[derive(Debug)]
struct Parts {
    /// The chunks of each part.
    named_by: HashMap<ChunkId, Vec<usize>>,
    /// The time at which each writer sealed its last object.
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
        fates.map(|fate| fate.unwrap_or(Fate::Stays)).max().unwrap_or(Fate::Goes)
    }
}
