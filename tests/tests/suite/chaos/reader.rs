//! A reader that reads and looks up files during writes.
//!
//! Must hold: each answer was valid at some moment of the request, or is an error about
//! reachability or recovery.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use dl_format::FilePath;
use dl_tests::dice::Dice;
use dl_tests::history::{Content, HistoryChecker};
use libdiesel::{Dataset, Error, Kind, StatItem};

/// Files per request.
const ASKED: usize = 8;

/// A pause between requests, so that refused requests do not keep the servers busy.
const PAUSE: Duration = Duration::from_millis(2);

/// The results of a request.
type Found = Vec<(FilePath, Option<Content>)>;

pub(super) struct Reader {
    dataset: Dataset,
    history: Arc<HistoryChecker>,
    dice: Dice,
}

impl Reader {
    pub(super) fn new(dataset: Dataset, history: Arc<HistoryChecker>, dice: Dice) -> Self {
        Self { dataset, history, dice }
    }

    /// Requests random files; returns the count of answers.
    pub(super) fn step(&self) -> Result<u32> {
        std::thread::sleep(PAUSE);
        let all = self.history.paths();
        let count = ASKED.min(all.len());
        let paths: Vec<FilePath> = (0..count).map(|_| self.dice.pick(&all).clone()).collect();
        let since = self.history.now();
        let found = if self.dice.once_in(2) { self.read(&paths)? } else { self.look_up(&paths)? };
        let mut answers = 0;
        for (path, content) in found {
            self.history.check(&path, content, since)?;
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
            let content = Content::of_item(item)?;
            anyhow::Ok((path.clone(), content))
        };
        paths.iter().zip(&items).map(told).collect()
    }
}

/// Accepts the errors permitted during a failure.
fn refusal(error: Error) -> Result<()> {
    let kind = error.kind();
    if kind.is_retryable() || kind == Kind::NeedsRecovery { Ok(()) } else { Err(error.into()) }
}
