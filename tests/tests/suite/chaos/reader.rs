//! One who reads files and looks them up while others write them.
//!
//! Must hold: each answer is what stood there at some moment while it was asked for, or an error
//! that says what can't be reached or has to be recovered.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use dl_format::FilePath;
use dl_tests::book::{Book, Content};
use dl_tests::dice::Dice;
use libdiesel::{Dataset, Error, Kind, StatItem};

/// Files of one question.
const ASKED: usize = 8;

/// Between two questions, so that one who is refused at once leaves the others some time.
const PAUSE: Duration = Duration::from_millis(2);

/// What was found where.
type Found = Vec<(FilePath, Option<Content>)>;

pub(super) struct Reader {
    dataset: Dataset,
    book: Arc<Book>,
    dice: Dice,
}

impl Reader {
    pub(super) fn new(dataset: Dataset, book: Arc<Book>, dice: Dice) -> Self {
        Self { dataset, book, dice }
    }

    /// Asks for some files; gives how many answers there were.
    pub(super) fn step(&self) -> Result<u32> {
        std::thread::sleep(PAUSE);
        let all = self.book.paths();
        let count = ASKED.min(all.len());
        let paths: Vec<FilePath> = (0..count).map(|_| self.dice.pick(&all).clone()).collect();
        let since = self.book.now();
        let found = if self.dice.once_in(2) { self.read(&paths)? } else { self.look_up(&paths)? };
        let mut answers = 0;
        for (path, content) in found {
            self.book.check(&path, content, since)?;
            answers += 1;
        }
        Ok(answers)
    }

    fn read(&self, paths: &[FilePath]) -> Result<Found> {
        let files = match self.dataset.get_many(paths) {
            Ok(files) => files,
            Err(error) => return refusal(error).map(|()| Vec::new()),
        };
        let mut found = Vec::new();
        for (path, file) in paths.iter().zip(files) {
            match file {
                Ok(bytes) => found.push((path.clone(), Some(Content::of(&bytes)))),
                Err(error) if error.kind() == Kind::NotFound => found.push((path.clone(), None)),
                Err(error) => refusal(error)?,
            }
        }
        Ok(found)
    }

    fn look_up(&self, paths: &[FilePath]) -> Result<Found> {
        let items = match self.dataset.stat_many(paths) {
            Ok(items) => items,
            Err(error) => return refusal(error).map(|()| Vec::new()),
        };
        let told = |(path, item): (&FilePath, &StatItem)| {
            let content = Content::told(item)?;
            anyhow::Ok((path.clone(), content))
        };
        paths.iter().zip(&items).map(told).collect()
    }
}

/// Passes what a reader may be told while something goes wrong.
fn refusal(error: Error) -> Result<()> {
    let kind = error.kind();
    if kind.is_retryable() || kind == Kind::NeedsRecovery { Ok(()) } else { Err(error.into()) }
}
