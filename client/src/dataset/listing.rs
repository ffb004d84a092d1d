//! Listings of folders, from a snapshot or from the servers.
//!
//! Must hold: both sources give the same entries in the same order.

use dl_format::DirPath;
use dl_proto::ListEntry;

use super::Dataset;
use crate::error::Error;
use crate::path::AsPath;
use crate::remote::Pages;
use crate::snapshot::Walk;

/// The entries of a folder, in the byte order of their paths. A folder sorts by its name with a
/// slash. The listing ends after the first error.
pub struct Listing(Source);

/// The source of the entries.
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
    /// The files and folders of a folder (paper, DL_ls), or with `recursive` all files below the
    /// folder. With `names_only` files come faster, without their records.
    ///
    /// # Errors
    /// [`Kind::NotFound`](crate::Kind::NotFound) if there is no such folder, and errors of the
    /// servers and of the connection. Later entries can fail too.
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
