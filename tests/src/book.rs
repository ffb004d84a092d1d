//! What stands at paths while some write there and others read, as those who write tell it.
//!
//! Must hold: an answer is right when it stood there at some moment while it was asked for. What
//! was acknowledged may stand there until something that began after that is acknowledged too; what
//! began and was never acknowledged may come at any time.

use std::collections::BTreeMap;
use std::iter;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail, ensure};
use dl_format::{Crc32c, FilePath};
use dl_proto::StatItem;

/// Writes at a path that are shown when an answer is wrong.
const SHOWN: usize = 4;

/// What tells the bytes of a file from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    length: u64,
    crc: Crc32c,
}

impl Content {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self { length: bytes.len() as u64, crc: Crc32c::of(bytes) }
    }

    /// As a server tells it; none where nothing is.
    ///
    /// # Errors
    /// When it is a folder.
    pub fn told(item: &StatItem) -> Result<Option<Self>> {
        match item {
            StatItem::File(record) => Ok(Some(Self { length: record.length, crc: record.crc })),
            StatItem::Missing => Ok(None),
            StatItem::Folder => bail!("a folder stands where files are written"),
        }
    }
}

/// A point in the order of all that a book was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment(u64);

/// A write or a delete that is under way. Dropped, it was never acknowledged.
#[derive(Debug)]
#[must_use = "it is acknowledged, or may come at any time"]
pub struct Begun {
    path: FilePath,
    at: Moment,
}

impl Begun {
    /// Where.
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

/// What stood everywhere before anything was written.
const NOTHING: Write = Write { content: None, begun: Moment(0), acknowledged: Some(Moment(0)) };

/// The book of one dataset, in which no file is a folder too.
#[derive(Debug, Default)]
pub struct Book(Mutex<State>);

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

impl Book {
    /// Somebody begins to write this there, or, with none, to delete what is there.
    pub fn begin(&self, path: &FilePath, content: Option<Content>) -> Begun {
        let mut state = self.state();
        let at = state.tick();
        let write = Write { content, begun: at, acknowledged: None };
        state.writes.entry(path.clone()).or_default().push(write);
        Begun { path: path.clone(), at }
    }

    /// It was acknowledged.
    pub fn acknowledge(&self, begun: Begun) {
        let Begun { path, at } = begun;
        let mut state = self.state();
        let now = state.tick();
        let mut writes = state.writes.get_mut(&path).into_iter().flatten().rev();
        if let Some(write) = writes.find(|write| write.begun == at) {
            write.acknowledged = Some(now);
        }
    }

    /// The beginning of a question that is asked now.
    pub fn now(&self) -> Moment {
        self.state().now
    }

    /// Every path at which somebody began to write.
    pub fn paths(&self) -> Vec<FilePath> {
        self.state().writes.keys().cloned().collect()
    }

    /// Whether all that began there is acknowledged.
    pub fn is_settled(&self, path: &FilePath) -> bool {
        self.state().of(path).iter().all(|write| write.acknowledged.is_some())
    }

    /// Whether this began there and was never acknowledged.
    pub fn may_come(&self, path: &FilePath, content: Option<Content>) -> bool {
        let state = self.state();
        let mut lost = state.of(path).iter().filter(|write| write.acknowledged.is_none());
        lost.any(|write| write.content == content)
    }

    /// Compares with what was found there by somebody who began to ask at `since`.
    ///
    /// # Errors
    /// When it stood there at no moment between then and now.
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
        ensure!(is_right, "{path} is {found:?}, asked for at {since:?}; the last of it: {last:?}");
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(bytes: &[u8]) -> Option<Content> {
        Some(Content::of(bytes))
    }

    /// Whether nothing, the first and the second write are right for who asks at `since`.
    fn right(book: &Book, path: &FilePath, since: Moment) -> [bool; 3] {
        [None, some(b"first"), some(b"second")].map(|found| book.check(path, found, since).is_ok())
    }

    #[test]
    fn what_was_overwritten_is_right_for_who_asked_before_that_was_acknowledged() -> Result<()> {
        let (book, path) = (Book::default(), FilePath::new("a")?);
        assert_eq!(right(&book, &path, book.now()), [true, false, false]);
        let first = book.begin(&path, some(b"first"));
        let early = book.now();
        assert_eq!(right(&book, &path, early), [true, true, false]);
        book.acknowledge(first);
        let late = book.now();
        assert_eq!(right(&book, &path, late), [false, true, false]);
        let second = book.begin(&path, some(b"second"));
        assert!(!book.is_settled(&path));
        assert_eq!(right(&book, &path, late), [false, true, true]);
        book.acknowledge(second);
        assert!(book.is_settled(&path));
        assert_eq!(right(&book, &path, early), [true, true, true]);
        assert_eq!(right(&book, &path, late), [false, true, true]);
        assert_eq!(right(&book, &path, book.now()), [false, false, true]);
        Ok(())
    }

    #[test]
    fn of_two_at_once_either_may_hold_and_what_was_never_acknowledged_may_come() -> Result<()> {
        let (book, path) = (Book::default(), FilePath::new("a")?);
        let first = book.begin(&path, some(b"first"));
        let second = book.begin(&path, some(b"second"));
        book.acknowledge(second);
        book.acknowledge(first);
        assert_eq!(right(&book, &path, book.now()), [false, true, true]);
        drop(book.begin(&path, some(b"lost")));
        let deleted = book.begin(&path, None);
        book.acknowledge(deleted);
        assert_eq!(right(&book, &path, book.now()), [true, false, false]);
        book.check(&path, some(b"lost"), book.now())?;
        let may_come = [some(b"lost"), some(b"first"), None];
        assert_eq!(may_come.map(|content| book.may_come(&path, content)), [true, false, false]);
        Ok(())
    }
}
