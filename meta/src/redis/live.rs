//! Searches for live files below folders: all files ever written there may be deleted.
//!
//! Must hold: the answer equals the answer of a walk over each folder. The search asks about many folders at
//! once, in no order, and ends at the first live file: live folders cost a few rows, dead folders few rounds.
//! A round reads a bounded number of rows, and fewer while many calls search.

use std::iter::repeat_n;
use std::ops::RangeInclusive;

use futures::future::BoxFuture;

use super::failure::Failure;
use super::folders::{BEGIN, Folder, GLANCE, PAGE, Pages, Reader};
use super::keys::BUCKETS;
use super::rows::Member;

/// Searches of the process with many rows in a round.
pub(super) const TURNS: usize = 16;
/// Rows of such a round.
const LARGE_ROUND_ROWS: usize = 8 * PAGE;
/// Rows of a round of all other searches.
const ROUND_ROWS: usize = 32 * GLANCE;
/// Most waiting folders of a search with many folders at a time.
const OPEN_MAX: usize = 2_000;
/// Folders in a single search: a first round has room for a few rows of each.
const FOLDERS_MAX: usize = LARGE_ROUND_ROWS / GLANCE;

/// Whether a live file lies below each folder; meaningless with a stale reader. Boxed, as mostly unused.
pub(super) fn hold_live<'a>(
    reader: &'a mut Reader<'_>,
    paths: &'a [Vec<u8>],
) -> BoxFuture<'a, Result<Vec<bool>, Failure>> {
    Box::pin(async move {
        if reader.deletions.are_none() {
            return Ok(vec![true; paths.len()]);
        }
        let mut are_live = Vec::with_capacity(paths.len());
        for paths in paths.chunks(FOLDERS_MAX) {
            are_live.extend(search(reader, paths).await?);
        }
        Ok(are_live)
    })
}

async fn search(reader: &mut Reader<'_>, paths: &[Vec<u8>]) -> Result<Vec<bool>, Failure> {
    let shared = reader.shared;
    let shares = shares(reader.root.is_large);
    let searches = paths.iter().map(|path| Search::of(path, *shares.start(), reader));
    let mut searches: Vec<Search> = searches.collect();
    while !reader.is_stale() {
        let wanted: usize = searches.iter().map(Search::wanted).sum();
        if wanted == 0 {
            break;
        }
        let turn = if wanted > ROUND_ROWS { shared.searches.try_acquire().ok() } else { None };
        let mut room = if turn.is_some() { LARGE_ROUND_ROWS } else { ROUND_ROWS };
        let (mut owners, mut folders) = (Vec::new(), Vec::new());
        for (owner, search) in searches.iter_mut().enumerate() {
            let next = search.begin(&shares, &mut room);
            owners.extend(repeat_n(owner, next.len()));
            folders.extend(next);
        }
        reader.fill(&mut folders).await?;
        for (owner, folder) in owners.into_iter().zip(folders) {
            if let Some(search) = searches.get_mut(owner) {
                search.look(folder, *shares.start(), reader)?;
            }
        }
    }
    Ok(searches.iter().map(|search| search.is_live).collect())
}

/// The least and the most rows of a folder in a round. A large folder is read in all of its buckets.
fn shares(is_large: bool) -> RangeInclusive<usize> {
    if is_large { 2 * usize::from(BUCKETS)..=LARGE_ROUND_ROWS } else { GLANCE..=PAGE }
}

fn pages(share: usize) -> Pages {
    Pages { first: share.min(PAGE), hashed: (share / usize::from(BUCKETS)).max(1) }
}

#[derive(Debug)]
struct Search {
    /// Folders with unread rows; the last folders come first. Beyond [`OPEN_MAX`], folders are read singly,
    /// so each level adds few.
    open: Vec<Folder>,
    /// Rows of the next round, doubled each time.
    rows: usize,
    is_live: bool,
}

impl Search {
    fn of(path: &[u8], least: usize, reader: &Reader<'_>) -> Self {
        let folder = reader.folder(path.to_vec(), BEGIN, pages(least));
        Self { open: vec![folder], rows: least, is_live: false }
    }

    /// Rows of the next round of the search.
    fn wanted(&self) -> usize {
        if self.open.is_empty() { 0 } else { self.rows }
    }

    /// The folders that the search reads in this round, as far as there is room.
    fn begin(&mut self, shares: &RangeInclusive<usize>, room: &mut usize) -> Vec<Folder> {
        let mut rows = self.rows.min(*room);
        if self.open.len() > OPEN_MAX {
            rows = rows.min(*shares.start());
        }
        let count = self.open.len().min(rows / shares.start());
        let Some(share) = rows.checked_div(count) else { return Vec::new() };
        let share = share.min(*shares.end());
        *room = room.saturating_sub(count * share);
        self.rows = (self.rows * 2).min(LARGE_ROUND_ROWS);
        let mut folders = self.open.split_off(self.open.len() - count);
        for folder in &mut folders {
            folder.set_pages(pages(share));
        }
        folders
    }

    fn look(
        &mut self,
        mut folder: Folder,
        least: usize,
        reader: &Reader<'_>,
    ) -> Result<(), Failure> {
        let mut below = Vec::new();
        while !self.is_live
            && let Some(row) = folder.next_row()
        {
            match Member::decode(&row.bytes)? {
                Member::Large | Member::Marker(_) => {}
                Member::File(name, _) => self.is_live = folder.is_first(name) && !row.is_dead,
                Member::Folder(name) => {
                    let is_new = folder.is_new(name);
                    below.extend(is_new.then(|| folder.inside(name)));
                }
            }
        }
        if self.is_live {
            self.open.clear();
            return Ok(());
        }
        if folder.is_waiting() {
            self.open.push(folder);
        }
        let below = below.into_iter().map(|path| reader.folder(path, BEGIN, pages(least)));
        self.open.extend(below);
        Ok(())
    }
}
