//! Listings of folders, by a snapshot or by the servers.
//!
//! Must hold: both give the same entries in the same order.

use dl_format::DirPath;
use dl_proto::ListEntry;

use super::Dataset;
use crate::error::Error;
use crate::path::AsPath;
use crate::remote::Pages;
use crate::snapshot::Walk;

/// The entries of a folder, in the byte order of their paths; a folder sorts as its name and a
/// slash. Ends after the first error.
pub struct Listing(Source);

/// Where entries come from.
enum Source {
    Snapshot(Walk),
    Servers(Box<Pages>),
}

/// The page and the stream would fill screens.
impl std::fmt::Debug for Listing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listing").finish_non_exhaustive()
    }
}

impl Dataset {
    /// What is in a folder (paper, DL_ls): its files and folders, or with `recursive` all files
    /// below it. With `names_only` files come without their records, which is faster.
    ///
    /// # Errors
    /// [`Kind::NotFound`](crate::Kind::NotFound) when there is no such folder, and those of the
    /// servers and of the way to them. Entries can fail later.
    pub fn list(
        &self,
        dir: impl AsPath<DirPath>,
        recursive: bool,
        names_only: bool,
    ) -> Result<Listing, Error> {
        let dir = dir.as_path("list")?;
        Ok(Listing(match self.snapshot() {
            Some(snapshot) => Source::Snapshot(snapshot.list(&dir, recursive, names_only)?),
            None => {
                let pages = Pages::open(&self.0.remote, &dir, recursive, names_only)?;
                Source::Servers(Box::new(pages))
            }
        }))
    }
}

impl Iterator for Listing {
    type Item = Result<ListEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Source::Snapshot(walk) => walk.next(),
            Source::Servers(pages) => pages.next(),
        }
    }
}
