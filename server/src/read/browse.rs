//! Look-ups of paths, and listings of folders.
//!
//! Must hold: memory is reserved before it is taken, and a page begins behind the last path of the page before.

use std::time::Duration;

use bytes::Bytes;
use dl_format::layout::PATH_MAX;
use dl_format::{DatasetId, DirPath, FilePath};
use dl_meta::{Found, ListQuery, Steps};
use dl_proto::{Kind, ListEntry, ListRequest, StatItem, StatRequest};
use tokio::sync::mpsc;

use crate::answers::answer::{Reply, hand_over};
use crate::answers::reservation::Reservation;
use crate::datasets::catalog;
use crate::error::Error;
use crate::shared::context::{Budget, ServerContext};

/// Entries of one page of a listing.
const PAGE_ENTRIES: usize = 1_024;
/// Bytes of the paths of a page.
const PAGE_BYTES: usize = 128 << 10;

/// Memory of an entry beside the bytes of its path, while it is listed and sent.
const ENTRY_BYTES: u64 = 256;

/// Memory of a path that is looked up, beside its bytes: its row, item and message.
const STAT_BYTES: usize = 512;

/// Pages of a listing that are in memory together: a page in the making, a waiting page, a page being sent.
const PAGES: u64 = 3;

/// The divisor of the page size while many requests list.
const SMALLER: usize = 4;

/// Interval of the empty pages for a client whose next page takes long, as where very many files were deleted.
const HEARD: Duration = Duration::from_secs(10);

/// The most memory of a page: the last path may be long.
const fn page_cost(entries: usize, bytes: usize) -> u64 {
    entries as u64 * ENTRY_BYTES + bytes as u64 + PATH_MAX as u64
}

/// Memory of a listing, with usual and with small pages.
const LIST_COSTS: [u64; 2] = [
    PAGES * page_cost(PAGE_ENTRIES, PAGE_BYTES),
    PAGES * page_cost(PAGE_ENTRIES / SMALLER, PAGE_BYTES / SMALLER),
];

/// Bytes of memory for looking up paths, and for the answer.
pub(crate) fn cost(paths: &[FilePath]) -> usize {
    paths.iter().map(|path| STAT_BYTES + path.as_bytes().len()).sum()
}

pub(crate) async fn stat(
    context: &ServerContext,
    request: &StatRequest,
) -> Result<Vec<StatItem>, Error> {
    let found = look_up(context, request.dataset, &request.paths).await?;
    Ok(found.into_iter().map(item).collect())
}

/// The files and folders at paths. A path counts as missing only while the metadata of the dataset is complete.
pub(crate) async fn look_up(
    context: &ServerContext,
    dataset: DatasetId,
    paths: &[FilePath],
) -> Result<Vec<Found>, Error> {
    match context.meta.lookup(dataset, paths).await {
        Ok(found) => {
            if found.contains(&Found::Missing) {
                catalog::by_id(context, dataset).await?;
            }
            Ok(found)
        }
        Err(error) => {
            let error = Error::meta("look up files of dataset", dataset, error);
            Err(catalog::explained(context, dataset, error).await)
        }
    }
}

fn item(found: Found) -> StatItem {
    match found {
        Found::File(file) => StatItem::File(file),
        Found::Folder => StatItem::Folder,
        Found::Missing => StatItem::Missing,
    }
}

/// Sends pages through `replies` until the listing ends.
pub(crate) async fn list(
    context: &ServerContext,
    listings: &Budget,
    memory: &Reservation,
    request: ListRequest,
    replies: mpsc::Sender<Reply<Vec<ListEntry>>>,
) -> Result<(), Error> {
    let ListRequest { dataset, dir, recursive, after, names_only } = request;
    let is_small = memory.reserve(context, listings, &LIST_COSTS).await? > 0;
    let (limit, bytes) = match is_small {
        true => (PAGE_ENTRIES / SMALLER, PAGE_BYTES / SMALLER),
        false => (PAGE_ENTRIES, PAGE_BYTES),
    };
    let steps = Steps::default();
    let mut query = ListQuery { dir, recursive, after, limit, bytes, steps: steps.clone() };
    loop {
        let page = context.meta.list(dataset, &query);
        let page = match heard(context, page, &steps, &replies).await? {
            Ok(page) => page,
            Err(error) => {
                let error = Error::meta("list dataset", dataset, error);
                return Err(catalog::explained(context, dataset, error).await);
            }
        };
        // A page may come long after the page before. The metadata may be incomplete by now.
        catalog::by_id(context, dataset).await?;
        if page.is_empty() && query.after.is_none() && !query.dir.is_root() {
            return Err(not_a_folder(context, &query.dir, dataset).await?);
        }
        let is_last = query.is_last(&page);
        query.after = page.last().map(dl_meta::ListEntry::key);
        let entries = page.into_iter().map(|entry| match entry {
            dl_meta::ListEntry::File(path, file) => {
                ListEntry::File(path, (!names_only).then_some(file))
            }
            dl_meta::ListEntry::Folder(path) => ListEntry::Folder(path),
        });
        let entries = entries.collect();
        if is_last {
            return hand_over(context, &replies, Reply::Last(entries)).await;
        }
        hand_over(context, &replies, Reply::More(entries)).await?;
    }
}

/// The result of work; the client gets empty pages meanwhile, as long as the work makes progress.
async fn heard<T, E>(
    context: &ServerContext,
    mut work: impl Future<Output = T> + Unpin,
    steps: &Steps,
    replies: &mpsc::Sender<Reply<Vec<E>>>,
) -> Result<T, Error> {
    let mut told = steps.count();
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            () = context.clock.sleep(HEARD) => {}
        }
        if told != steps.count() {
            told = steps.count();
            hand_over(context, replies, Reply::More(Vec::new())).await?;
        }
    }
}

async fn not_a_folder(
    context: &ServerContext,
    dir: &DirPath,
    dataset: DatasetId,
) -> Result<Error, Error> {
    let bytes = Bytes::copy_from_slice(dir.as_bytes());
    let path =
        FilePath::new(bytes).map_err(|error| Error::new(Kind::Invalid, "list", dir, error))?;
    let found = look_up(context, dataset, std::slice::from_ref(&path)).await?;
    Ok(match found.first() {
        Some(Found::File(_)) => Error::new(Kind::Invalid, "list", dir, "it is a file"),
        _ => Error::new(Kind::NotFound, "list", dir, "there is no such folder"),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dl_meta::{DatasetRecord, DatasetState, Datasets};
    use dl_runtime::fault::Fault;

    use super::*;
    use crate::testing::{path, rig, until_met};

    fn everything(dataset: DatasetId) -> ListRequest {
        let (dir, recursive, after) = (DirPath::ROOT, true, None);
        ListRequest { dataset, dir, recursive, after, names_only: true }
    }

    /// Keeps S-12.
    #[tokio::test]
    async fn of_a_page_that_takes_long_is_heard_as_long_as_it_gets_on() {
        let rig = rig().await;
        let (steps, (replies, mut pages)) = (Steps::default(), mpsc::channel(8));
        let clock = Arc::clone(&rig.context.clock);
        let work = Box::pin(async {
            for _ in 0..7 {
                clock.sleep(Duration::from_secs(5)).await;
                steps.step();
            }
            clock.sleep(Duration::from_secs(120)).await;
        });
        rig.run(heard(&rig.context, work, &steps, &replies)).await.0.unwrap();
        drop(replies);
        let mut count = 0;
        while let Some(Reply::<Vec<ListEntry>>::More(none)) = pages.recv().await {
            assert!(none.is_empty());
            count += 1;
        }
        assert_eq!(count, 4, "one each ten seconds, and none while nothing was looked at");
        let id = rig.create("pets").await;
        rig.store_chunk(id, 1).await;
        rig.adopt().await;
        let (replies, mut pages) = mpsc::channel(8);
        let budget = Budget::new(64 << 20, "test");
        let memory = Reservation::default();
        rig.meta.script("list", [Some(Fault::Delay(Duration::from_secs(35)))]);
        rig.run(list(&rig.context, &budget, &memory, everything(id), replies)).await.0.unwrap();
        assert!(matches!(pages.recv().await, Some(Reply::More(none)) if none.is_empty()));
        assert!(matches!(pages.recv().await, Some(Reply::Last(all)) if all.len() == 1));
    }

    /// Keeps S-05: all was lost and began to come back between two pages, or two questions.
    #[tokio::test]
    async fn a_dataset_lost_during_a_call_is_not_its_partial_rebuild() {
        let rig = rig().await;
        let id = rig.create("pets").await;
        for number in 0..3 {
            rig.store_chunk(id, number).await;
        }
        rig.adopt().await;
        let live = rig.memory.record(id).await.unwrap().unwrap();
        let rebuilt = DatasetRecord { state: DatasetState::Recovering, ..live.clone() };
        for is_lost in [false, true] {
            let (replies, mut pages) = mpsc::channel(8);
            let budget = Budget::new(64 << 20, "test");
            let memory = Reservation::default();
            // The dataset is looked for before, and takes a while.
            rig.meta.script("list", [Some(Fault::Delay(Duration::from_secs(1)))]);
            let mut listed =
                Box::pin(list(&rig.context, &budget, &memory, everything(id), replies));
            until_met(&rig.meta, "list", &mut listed).await;
            if is_lost {
                rig.memory.put_dataset(&rebuilt).await.unwrap();
            }
            let (ended, _) = rig.run(listed).await;
            let page = pages.recv().await;
            assert_eq!((ended.is_err(), page.is_none()), (is_lost, is_lost), "{ended:?}");
        }
        for (name, is_told) in [("file-1", true), ("file-9", false)] {
            rig.memory.put_dataset(&live).await.unwrap();
            look_up(&rig.context, id, &[path(name)]).await.unwrap();
            rig.memory.put_dataset(&rebuilt).await.unwrap();
            let found = look_up(&rig.context, id, &[path(name)]).await;
            assert_eq!(found.is_ok(), is_told, "{name}: {found:?}");
        }
    }
}
