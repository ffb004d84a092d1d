//! Listings: streamed in pages, resumed after the last entry when a connection breaks.
//!
//! Must hold: no entry is left out or given twice, however often the stream breaks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dl_format::DirPath;
use dl_proto::{ListEntry, ListRequest, pb};
use tonic::Streaming;

use crate::error::{Error, Kind};
use crate::process::Owned;
use crate::remote::connections::Try;
use crate::remote::dataset::RemoteDataset;
use crate::remote::failure::Failure;

const ACTION: &str = "list";

/// The time for a server to find the next entry, for example among very many deleted files.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// A listing from the servers.
pub(crate) struct Pages {
    dataset: Arc<RemoteDataset>,
    request: ListRequest,
    stream: Option<Owned<(Streaming<pb::ListReply>, Try)>>,
    page: std::vec::IntoIter<pb::ListEntry>,
    /// The begin of the wait for the next entry, on the monotonic clock, over all servers.
    since: Option<Duration>,
    ended: bool,
}

impl Pages {
    /// Requests the entries of a folder.
    pub(crate) fn open(
        dataset: &Arc<RemoteDataset>,
        dir: &DirPath,
        recursive: bool,
        names_only: bool,
    ) -> Result<Self, Error> {
        let mut pages = Self {
            dataset: Arc::clone(dataset),
            request: ListRequest {
                dataset: dataset.info().id,
                dir: dir.clone(),
                recursive,
                after: None,
                names_only,
            },
            stream: None,
            page: Vec::new().into_iter(),
            since: None,
            ended: false,
        };
        pages.ask(Duration::ZERO)?;
        Ok(pages)
    }

    /// The next entry; none after the last one and after an error.
    pub(crate) fn next(&mut self) -> Option<Result<ListEntry, Error>> {
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

    fn turn_page(&mut self) -> Result<(), Error> {
        let (session, subject) = (self.dataset.session()?, self.subject());
        let since = *self.since.get_or_insert_with(|| session.connections.now());
        // The stream of a parent process stays untouched.
        let Some((stream, this)) = self.stream.as_mut().and_then(Owned::get_mut) else {
            return self.ask(Duration::ZERO);
        };
        let mut heard = this.now();
        let page = loop {
            let next = session.connections.next_of(this, ACTION, &subject, stream);
            match session.wait(next) {
                Ok(Some(page)) if page.entries.is_empty() => {
                    heard = this.now();
                    if let Err(failure) = goes_on(this, since) {
                        let failure = this.at_server(failure);
                        return Err(self.fail(failure));
                    }
                }
                page => break page,
            }
        };
        let silent = this.now().saturating_sub(heard);
        match page {
            Ok(page) => {
                self.take(page);
                Ok(())
            }
            Err(failure) if failure.kind.is_retryable() => self.ask(silent),
            Err(failure) => {
                let failure = this.at_server(failure);
                Err(self.fail(failure))
            }
        }
    }

    /// Requests the entries after the last entry, and tries again if the stream breaks before its
    /// first page. `waited` is the silence before the call.
    fn ask(&mut self, waited: Duration) -> Result<(), Error> {
        let session = self.dataset.session()?;
        let connections = &session.connections;
        let since = *self.since.get_or_insert_with(|| connections.now());
        let message = pb::ListRequest::from(self.request.clone());
        let opened = connections.call(
            ACTION,
            || self.subject(),
            connections.usual().less(waited),
            |mut server, this| {
                let request = this.request(message.clone());
                async move {
                    let mut stream = this.answer(server.list(request)).await?;
                    let page = loop {
                        match this.message(&mut stream).await? {
                            // The time for an entry counts over all servers.
                            Some(page) if page.entries.is_empty() => match goes_on(&this, since) {
                                Ok(()) => {}
                                Err(failure) => return Ok(Err(this.at_server(failure))),
                            },
                            page => break page,
                        }
                    };
                    Ok(Ok((stream, this, page)))
                }
            },
        );
        let (stream, this, page) = match session.wait(opened)? {
            Ok(opened) => opened,
            Err(failure) => return Err(self.fail(failure)),
        };
        self.stream = Some(Owned::new((stream, this)));
        self.take(page);
        Ok(())
    }

    fn take(&mut self, page: Option<pb::ListReply>) {
        self.ended = page.is_none();
        self.since = None;
        self.page = page.map(|page| page.entries).unwrap_or_default().into_iter();
    }

    fn fail(&mut self, failure: Failure) -> Error {
        self.ended = true;
        self.page = Vec::new().into_iter();
        Error::new(failure.kind, ACTION, self.subject(), failure)
    }

    fn subject(&self) -> String {
        format!("{}/{}", self.dataset.address(), self.request.dir)
    }
}

/// Notes the sign of life in a page without entries, unless the next entry has taken too long since
/// `since`.
fn goes_on(this: &Try, since: Duration) -> Result<(), Failure> {
    this.note_progress();
    if this.now().saturating_sub(since) < LONGEST {
        return Ok(());
    }
    let why =
        format!("the server found no entry within {} s; run `dlcmd purge`", LONGEST.as_secs());
    Err(Failure::new(Kind::TimedOut, why))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tonic::Status;

    use super::*;
    use crate::remote::testing::{Script, dataset, open, options, path, record, start};

    fn numbered(count: u32) -> Vec<ListEntry> {
        let file = |n| ListEntry::File(path(&format!("file{n:04}")), Some(record(b"x")));
        (0..count).map(file).collect()
    }

    fn page(entries: &[ListEntry]) -> Result<pb::ListReply, Status> {
        Ok(pb::ListReply { entries: entries.iter().cloned().map(Into::into).collect() })
    }

    #[test]
    fn a_broken_listing_resumes_after_the_last_entry() {
        let all = numbered(100);
        let (stored, opened) = (all.clone(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&opened);
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
    fn a_listing_survives_empty_pages_and_reports_a_later_error() {
        let listed = |end: Status, ends: usize| {
            let asked = AtomicUsize::new(0);
            let list = move |_: ListRequest| match asked.fetch_add(1, Ordering::SeqCst) < ends {
                true => vec![page(&[]), page(&[]), Err(end.clone())],
                false => vec![page(&[]), page(&numbered(3)), page(&[]), page(&numbered(2))],
            };
            let script = Script { list: Box::new(list), ..Script::default() };
            let mut options = options(&[start(script)]);
            if ends == usize::MAX {
                options.request_timeout = Duration::from_secs(1);
            }
            let dataset = open(options);
            let listing =
                dataset.list(&DirPath::ROOT, true, false).map_err(|e| format!("{e:?}"))?;
            listing.collect::<Result<Vec<_>, _>>().map_err(|e| format!("{e:?}"))
        };
        let stopping = || Status::unavailable("stopping");
        assert_eq!(listed(stopping(), 0).map(|all| all.len()), Ok(5));
        assert_eq!(listed(stopping(), 2).map(|all| all.len()), Ok(5));
        let never = listed(stopping(), usize::MAX).unwrap_err();
        assert!(never.contains("stopping"), "{never}");
        let at_once = listed(Status::data_loss("torn"), 1).unwrap_err();
        assert!(at_once.contains("torn"), "{at_once}");
    }

    #[test]
    fn a_missing_folder_is_an_error_and_an_empty_folder_is_not() {
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
