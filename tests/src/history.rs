//! History of the writes to a dataset: test writers report each begin and acknowledgement.
//!
//! Must hold: a read is correct if its result was valid at any moment during the read. Acknowledged
//! content stays valid until a later write is acknowledged. A write without acknowledgement may
//! take effect at any time.

use std::collections::BTreeMap;
use std::iter;
use std::sync::{Mutex, MutexGuard};

use anyhow::{Result, bail, ensure};
use dl_format::{Crc32c, FilePath};
use dl_proto::StatItem;
use dl_runtime::locked;

/// Writes of a path in the message about a wrong read.
const SHOWN: usize = 4;

/// Length and checksum of a file, or of expected bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    length: u64,
    crc: Crc32c,
}

impl Content {
    /// The content of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self { length: bytes.len() as u64, crc: Crc32c::of(bytes) }
    }

    /// The content in a server's answer; none where the path has no file.
    ///
    /// # Errors
    /// When the path is a folder.
    pub fn of_item(item: &StatItem) -> Result<Option<Self>> {
        match item {
            StatItem::File(record) => Ok(Some(Self { length: record.length, crc: record.crc })),
            StatItem::Missing => Ok(None),
            StatItem::Folder => bail!("a folder stands where files are written"),
        }
    }
}

/// A point in the order of all reported events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment(u64);

/// A running write or delete. A dropped value stands for a write without acknowledgement.
#[derive(Debug)]
#[must_use = "a write is acknowledged, or may take effect at any time"]
pub struct PendingWrite {
    path: FilePath,
    at: Moment,
}

impl PendingWrite {
    /// The path of the write.
    pub fn path(&self) -> &FilePath {
        &self.path
    }
}

#[derive(Debug)]
struct Write {
    /// None for a delete.
    content: Option<Content>,
    begun: Moment,
    acknowledged: Option<Moment>,
}

/// The state of every path before the first write.
const NOTHING: Write = Write { content: None, begun: Moment(0), acknowledged: Some(Moment(0)) };

/// The history of a dataset without files below files.
#[derive(Debug, Default)]
pub struct HistoryChecker(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    now: Moment,
    writes: BTreeMap<FilePath, Vec<Write>>,
}

impl State {
    fn tick(&mut self) -> Moment {
        self.now.0 += 1;
        self.now
    }

    fn of(&self, path: &FilePath) -> &[Write] {
        self.writes.get(path).map(Vec::as_slice).unwrap_or_default()
    }
}

impl HistoryChecker {
    /// Reports the begin of a write of `content`, or of a delete with none.
    pub fn begin(&self, path: &FilePath, content: Option<Content>) -> PendingWrite {
        let mut state = self.state();
        let at = state.tick();
        let write = Write { content, begun: at, acknowledged: None };
        state.writes.entry(path.clone()).or_default().push(write);
        PendingWrite { path: path.clone(), at }
    }

    /// Reports the acknowledgement of a write.
    pub fn acknowledge(&self, begun: PendingWrite) {
        let PendingWrite { path, at } = begun;
        let mut state = self.state();
        let now = state.tick();
        let mut writes = state.writes.get_mut(&path).into_iter().flatten().rev();
        if let Some(write) = writes.find(|write| write.begun == at) {
            write.acknowledged = Some(now);
        }
    }

    /// The moment at which a read begins.
    pub fn now(&self) -> Moment {
        self.state().now
    }

    /// All written paths.
    pub fn paths(&self) -> Vec<FilePath> {
        self.state().writes.keys().cloned().collect()
    }

    /// Whether every write to the path is acknowledged.
    pub fn is_settled(&self, path: &FilePath) -> bool {
        self.state().of(path).iter().all(|write| write.acknowledged.is_some())
    }

    /// Whether a write of `content` began and was never acknowledged.
    pub fn may_appear(&self, path: &FilePath, content: Option<Content>) -> bool {
        let state = self.state();
        let mut lost = state.of(path).iter().filter(|write| write.acknowledged.is_none());
        lost.any(|write| write.content == content)
    }

    /// Checks the result of a read that began at `since`.
    ///
    /// # Errors
    /// When the path had other content at every moment since then.
    pub fn check(&self, path: &FilePath, found: Option<Content>, since: Moment) -> Result<()> {
        let state = self.state();
        let writes = state.of(path);
        let is_over = |write: &Write| {
            write.acknowledged.is_some_and(|at| {
                let mut later = writes.iter().filter(|later| later.begun > at);
                later.any(|later| later.acknowledged.is_some_and(|at| at <= since))
            })
        };
        let mut all = iter::once(&NOTHING).chain(writes);
        let is_right = all.any(|write| write.content == found && !is_over(write));
        let last = writes.get(writes.len().saturating_sub(SHOWN)..).unwrap_or_default();
        ensure!(
            is_right,
            "read {path}: {found:?} was valid at no moment since {since:?}; last writes: {last:?}"
        );
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(bytes: &[u8]) -> Option<Content> {
        Some(Content::of(bytes))
    }

    /// Whether absence, the first and the second content are correct for a read since `since`.
    fn right(history: &HistoryChecker, path: &FilePath, since: Moment) -> [bool; 3] {
        [None, some(b"first"), some(b"second")]
            .map(|found| history.check(path, found, since).is_ok())
    }

    #[test]
    fn overwritten_content_is_valid_until_the_acknowledgement() -> Result<()> {
        let (history, path) = (HistoryChecker::default(), FilePath::new("a")?);
        assert_eq!(right(&history, &path, history.now()), [true, false, false]);
        let first = history.begin(&path, some(b"first"));
        let early = history.now();
        assert_eq!(right(&history, &path, early), [true, true, false]);
        history.acknowledge(first);
        let late = history.now();
        assert_eq!(right(&history, &path, late), [false, true, false]);
        let second = history.begin(&path, some(b"second"));
        assert!(!history.is_settled(&path));
        assert_eq!(right(&history, &path, late), [false, true, true]);
        history.acknowledge(second);
        assert!(history.is_settled(&path));
        assert_eq!(right(&history, &path, early), [true, true, true]);
        assert_eq!(right(&history, &path, late), [false, true, true]);
        assert_eq!(right(&history, &path, history.now()), [false, false, true]);
        Ok(())
    }

    #[test]
    fn concurrent_and_unacknowledged_writes_may_take_effect() -> Result<()> {
        let (history, path) = (HistoryChecker::default(), FilePath::new("a")?);
        let first = history.begin(&path, some(b"first"));
        let second = history.begin(&path, some(b"second"));
        history.acknowledge(second);
        history.acknowledge(first);
        assert_eq!(right(&history, &path, history.now()), [false, true, true]);
        drop(history.begin(&path, some(b"lost")));
        let deleted = history.begin(&path, None);
        history.acknowledge(deleted);
        assert_eq!(right(&history, &path, history.now()), [true, false, false]);
        history.check(&path, some(b"lost"), history.now())?;
        let may_appear = [some(b"lost"), some(b"first"), None];
        assert_eq!(
            may_appear.map(|content| history.may_appear(&path, content)),
            [true, false, false]
        );
        Ok(())
    }
}
