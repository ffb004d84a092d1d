//! Listings: streamed in pages, resumed after the last entry when a connection breaks.
//!
//! Must hold: no entry is left out or given twice, however often the stream breaks.

use std::time::Duration;

use bytes::Bytes;
use dl_format::DirPath;
use dl_proto::{ListEntry, ListRequest, pb};
use tonic::Streaming;

use crate::error::Error;
use crate::remote::connections::Try;
use crate::remote::dataset::Dataset;
use crate::remote::failure::Failure;
use crate::remote::process::{Owned, Process};
use crate::snapshot::Walk;

/// The entries of a folder, in the byte order of their paths; a folder sorts as its name and a
/// slash. Ends after the first error.
pub struct Listing(Source);

/// Where entries come from.
enum Source {
    Snapshot(Walk),
    Servers(Box<Pages>),
}

/// A listing by the servers.
struct Pages {
    dataset: Dataset,
    request: ListRequest,
    stream: Option<Owned<(Streaming<pb::ListReply>, Try)>>,
    page: std::vec::IntoIter<pb::ListEntry>,
    ended: bool,
    /// How long the next entry has been waited for: pages without any may go on for long.
    waited: Duration,
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
    /// [`Kind::NotFound`](crate::Kind::NotFound) when the servers know no such folder, and those
    /// of the way to them. Entries can fail later.
    pub fn list(&self, dir: &DirPath, recursive: bool, names_only: bool) -> Result<Listing, Error> {
        if let Some(snapshot) = self.snapshot() {
            return Ok(Listing(Source::Snapshot(snapshot.list(dir, recursive, names_only)?)));
        }
        let mut pages = Pages {
            dataset: self.clone(),
            request: ListRequest {
                dataset: self.info().id,
                dir: dir.clone(),
                recursive,
                after: None,
                names_only,
            },
            stream: None,
            page: Vec::new().into_iter(),
            ended: false,
            waited: Duration::ZERO,
        };
        pages.open()?;
        Ok(Listing(Source::Servers(Box::new(pages))))
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

impl Pages {
    fn next(&mut self) -> Option<Result<ListEntry, Error>> {
        loop {
            if let Some(entry) = self.page.next() {
                self.request.after = Some(Bytes::clone(&entry.path));
                let entry = ListEntry::try_from(entry);
                return Some(entry.map_err(|why| self.fail(why.into())));
            }
            if self.ended {
                return None;
            }
            if let Err(error) = self.turn_page() {
                self.ended = true;
                return Some(Err(error));
            }
        }
    }
}

impl Pages {
    fn turn_page(&mut self) -> Result<(), Error> {
        // That of a parent is not touched.
        let Some((stream, this)) = self.stream.as_mut().and_then(Owned::get_mut) else {
            return self.open();
        };
        let process = Process::current()?;
        let began = process.clock.monotonic();
        match process.runtime.block_on(this.message(stream)) {
            Ok(page) => {
                self.take(page, process.clock.monotonic().saturating_sub(began));
                Ok(())
            }
            Err(failure) if failure.kind.is_retryable() => {
                self.waited += process.clock.monotonic().saturating_sub(began);
                self.open()
            }
            Err(failure) => Err(self.fail(failure)),
        }
    }

    /// Asks for what comes after the last entry; a stream that breaks before its first page is
    /// tried again.
    fn open(&mut self) -> Result<(), Error> {
        let process = Process::current()?;
        let began = process.clock.monotonic();
        let session = self.dataset.session()?;
        let connections = &session.connections;
        let message = pb::ListRequest::from(self.request.clone());
        let opened = connections.call(
            "list",
            || self.subject(),
            connections.usual().less(self.waited),
            |mut server, this| {
                let request = this.request(message.clone());
                async move {
                    let mut stream = this.answer(server.list(request)).await?;
                    let page = this.message(&mut stream).await?;
                    Ok((stream, this, page))
                }
            },
        );
        let (stream, this, page) = session.wait(opened)?;
        self.stream = Some(Owned::new((stream, this)));
        self.take(page, process.clock.monotonic().saturating_sub(began));
        Ok(())
    }

    /// Takes a page that was waited for so long.
    fn take(&mut self, page: Option<pb::ListReply>, waited: Duration) {
        self.ended = page.is_none();
        self.page = page.map(|page| page.entries).unwrap_or_default().into_iter();
        let has_none = self.page.as_slice().is_empty();
        self.waited = if has_none { self.waited + waited } else { Duration::ZERO };
    }

    fn fail(&mut self, failure: Failure) -> Error {
        self.ended = true;
        self.page = Vec::new().into_iter();
        Error::new(failure.kind, "list", self.subject(), failure)
    }

    fn subject(&self) -> String {
        format!("dl://{}/{}", self.dataset.info().name, self.request.dir)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tonic::Status;

    use super::*;
    use crate::error::Kind;
    use crate::remote::testing::{Script, dataset, path, record};

    fn numbered(count: u32) -> Vec<ListEntry> {
        let file = |n| ListEntry::File(path(&format!("file{n:04}")), Some(record(b"x")));
        (0..count).map(file).collect()
    }

    fn page(entries: &[ListEntry]) -> Result<pb::ListReply, Status> {
        Ok(pb::ListReply { entries: entries.iter().cloned().map(Into::into).collect() })
    }

    #[test]
    fn a_listing_that_breaks_goes_on_after_the_last_entry() {
        let all = numbered(100);
        let (stored, opened) = (all.clone(), std::sync::Arc::new(AtomicUsize::new(0)));
        let count = std::sync::Arc::clone(&opened);
        let list = move |request: ListRequest| {
            count.fetch_add(1, Ordering::SeqCst);
            let after = |entry: &&ListEntry| match (entry, &request.after) {
                (ListEntry::File(path, _), Some(after)) => path.as_bytes() > &after[..],
                _ => true,
            };
            let rest: Vec<_> = stored.iter().filter(after).cloned().collect();
            let mut pages: Vec<_> = rest.chunks(15).map(page).collect();
            if pages.len() > 2 {
                pages.truncate(2);
                pages.push(Err(Status::unavailable("stopping")));
            }
            pages
        };
        let dataset = dataset(Script { list: Box::new(list), ..Script::default() });
        let listed: Result<Vec<_>, _> =
            dataset.list(&DirPath::ROOT, false, false).unwrap().collect();
        assert_eq!(listed.unwrap(), all);
        assert!(opened.load(Ordering::SeqCst) > 2);
    }

    /// Keeps S-12.
    #[test]
    fn pages_without_entries_are_waited_through_and_one_that_breaks_each_time_is_given_up() {
        for breaks in [false, true] {
            let list = move |_: ListRequest| match breaks {
                true => vec![page(&[]), Err(Status::unavailable("stopping"))],
                false => vec![page(&[]), page(&[]), page(&numbered(3)), page(&[])],
            };
            let dataset = dataset(Script { list: Box::new(list), ..Script::default() });
            let listed: Result<Vec<_>, _> =
                dataset.list(&DirPath::ROOT, true, false).unwrap().collect();
            assert_eq!(listed.ok().map(|all| all.len()), (!breaks).then_some(3));
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error_at_once_and_an_empty_one_is_none() {
        let list = |request: ListRequest| match request.dir.is_root() {
            true => vec![],
            false => vec![Err(Status::not_found("no such folder"))],
        };
        let dataset = dataset(Script { list: Box::new(list), ..Script::default() });
        let none = DirPath::from(path("none"));
        assert_eq!(dataset.list(&none, true, true).unwrap_err().kind(), Kind::NotFound);
        assert!(dataset.list(&DirPath::ROOT, true, true).unwrap().next().is_none());
    }

    #[test]
    fn an_error_ends_a_listing() {
        let list = |_| vec![page(&numbered(3)), Err(Status::data_loss("damaged"))];
        let dataset = dataset(Script { list: Box::new(list), ..Script::default() });
        let listed: Vec<_> = dataset.list(&DirPath::ROOT, true, false).unwrap().collect();
        assert_eq!(listed.len(), 4);
        assert_eq!(listed[3].as_ref().unwrap_err().kind(), Kind::Corrupt);
    }
}
