//! Epochs read from healthy servers.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use dl_meta::{Memory, Stop};
use dl_server::prepare;
use dl_store::{CountStore, Counters};
use dl_tests::cluster::{Cluster, context};
use dl_tests::dice::Dice;
use dl_tests::rounds;
use libdiesel::{
    Client, Dataset, FilePath, Kind, OrderSettings, ResumeToken, Selection, ShuffleOptions,
    SnapshotCache, Tail,
};

use super::scene::{self, Files};

/// A server over a counted store in memory, and a dataset.
struct Scene {
    _cluster: Cluster,
    client: Client,
    counters: Arc<Counters>,
    folder: tempfile::TempDir,
    files: Files,
}

impl Scene {
    fn new(files: Files) -> Result<Self> {
        let mut cluster = Cluster::new()?;
        let (store, counters) = CountStore::new(dl_store::memory());
        let context = context(Arc::new(store), Arc::new(Memory::new()));
        cluster.run(prepare(&context, Stop::Fresh))?;
        cluster.start(&context, 1)?;
        let client = cluster.client()?;
        scene::put(&client, &files)?;
        Ok(Self { _cluster: cluster, client, counters, folder: tempfile::tempdir()?, files })
    }

    fn reader(&self) -> Result<Dataset> {
        scene::reader(&self.client, &SnapshotCache::new(self.folder.path(), 1 << 30))
    }

    fn file_bytes(&self) -> u64 {
        self.files.values().map(|data| data.len() as u64).sum()
    }
}

/// Keeps S-42 and S-43: four ranks with separate handles.
#[test]
fn ranks_read_each_file_once_and_fetch_little_extra() -> Result<()> {
    let mut files = scene::files(8_000, 12_000)?;
    files.insert(FilePath::new("large")?, Dice::new(4).bytes(3_000_000));
    // Several groups with a short last group, and a single group.
    for (world, group) in [(4, 5), (1, 7), (1, 1_000)] {
        while files.len() % world as usize != 0 {
            files.pop_last();
        }
        let scene = Scene::new(files.clone())?;
        let readers = (0..world).map(|_| scene.reader()).collect::<Result<Vec<_>>>()?;
        let before = scene.counters.counts();
        let mut read = Vec::new();
        for (rank, reader) in (0..).zip(&readers) {
            let epoch = reader.shuffle(ShuffleOptions::new(1, 2, group).of_rank(rank, world))?;
            let expected: Vec<u32> = epoch.cursor()?.collect();
            let halves = std::thread::scope(|scope| {
                let threads = [(); 2].map(|()| scope.spawn(|| scene::rest(&epoch, &scene.files)));
                threads.map(|thread| thread.join().expect("a reader gives its errors back"))
            });
            let mut got = Vec::new();
            for half in halves {
                got.extend(half?);
            }
            ensure!(epoch.position() == epoch.length(), "rank {rank} is at {}", epoch.position());
            let of = |numbers: &[u32]| numbers.iter().copied().collect::<BTreeSet<_>>();
            ensure!(of(&got) == of(&expected) && got.len() == expected.len(), "rank {rank}");
            read.extend(got);
        }
        let all: BTreeSet<u32> = read.iter().copied().collect();
        ensure!(all.len() == scene.files.len() && read.len() == all.len(), "{} files", read.len());
        let fetched = scene.counters.counts().read_bytes - before.read_bytes;
        let most = scene.file_bytes() + scene.file_bytes() / 20;
        ensure!(fetched <= most, "{world} ranks fetched {fetched} bytes, more than {most}");
    }
    Ok(())
}

/// Keeps S-42 and S-74.
#[test]
fn an_epoch_continues_with_the_unread_files() -> Result<()> {
    let scene = Scene::new(scene::files(3_000, 9_000)?)?;
    let reader = scene.reader()?;
    let files = reader.snapshot().context("a snapshot")?.files();
    let dice = Dice::new(5);
    for round in 0..rounds(12_u32, 100) {
        let (world, other) = (1 + dice.below(4) as u32, 1 + dice.below(4) as u32);
        let group = 1 + dice.below(9) as u32;
        let selection = match dice.once_in(3) {
            true => Some(Selection::of(files, (0..files).filter(|_| dice.once_in(2)))?),
            false => None,
        };
        let options = |rank, world| ShuffleOptions {
            selection: selection.clone(),
            ..ShuffleOptions::new(9, u64::from(round), group).of_rank(rank, world)
        };
        let first = (0..world)
            .map(|rank| Ok(reader.shuffle(options(rank, world))?))
            .collect::<Result<Vec<_>>>()?;
        let length = first.first().context("there is a rank")?.length();
        let at = dice.below(length as usize + 1);
        let mut read = Vec::new();
        for epoch in &first {
            read.extend(scene::some(epoch, &scene.files, at)?);
        }
        let token = first.first().context("there is a rank")?.token(at as u64).to_string();
        let resume = Some(token.parse::<ResumeToken>()?);
        // The same ranks continue: seed, epoch and group come from the token.
        for (rank, epoch) in (0..world).zip(&first) {
            let again = ShuffleOptions { resume: resume.clone(), ..options(rank, world) };
            let again = ShuffleOptions {
                order: OrderSettings { seed: 0, epoch: 0, group: 1, ..again.order },
                ..again
            };
            let again = scene::rest(&reader.shuffle(again)?, &scene.files)?;
            ensure!(again == scene::rest(epoch, &scene.files)?, "round {round}: rank {rank}");
        }
        // Another number of ranks continues too.
        for rank in 0..other {
            let mut options = ShuffleOptions { resume: resume.clone(), ..options(rank, other) };
            options.order.tail = Tail::Pad;
            read.extend(scene::rest(&reader.shuffle(options)?, &scene.files)?);
        }
        let all: BTreeSet<u32> = read.into_iter().collect();
        let selected = selection.as_ref().map_or(files, |selection| selection.count(0..files));
        // Files dropped by the first ranks are read by the second ranks.
        let left_out = selected as usize - all.len();
        ensure!(left_out == 0, "round {round}: {left_out} left out");
    }
    Ok(())
}

/// Keeps S-43 and S-75: reads by path, as after DL_shuffle of the paper.
#[test]
fn gets_along_the_order_are_answered_from_whole_chunks() -> Result<()> {
    let scene = Scene::new(scene::files(3_000, 9_000)?)?;
    let reader = scene.reader()?;
    let snapshot = Arc::clone(reader.snapshot().context("a snapshot")?);
    let epoch = reader.shuffle(ShuffleOptions::new(1, 0, 4))?;
    let paths: Vec<FilePath> =
        epoch.cursor()?.map(|number| snapshot.path(number)).collect::<Result<_, _>>()?;
    let same = |path: &FilePath, bytes: &Bytes| {
        ensure!(scene.files.get(path).is_some_and(|put| put == bytes), "{path}");
        Ok(())
    };
    let before = scene.counters.counts();
    for batch in paths.chunks(100) {
        // Workers of a loader read slightly out of order.
        let (one, other) = batch.split_at(batch.len() / 2);
        for (path, file) in other.iter().zip(reader.get_many(other)?) {
            same(path, &file?)?;
        }
        for path in one {
            same(path, &reader.get(path)?)?;
        }
    }
    let after = scene.counters.counts();
    let (reads, chunks) = (after.ranges - before.ranges, u64::from(snapshot.chunks()));
    ensure!(reads <= chunks, "{reads} reads of {chunks} chunks");
    // Files outside the epoch, and all files after its end, are read as usual.
    let first = paths.first().context("there are files")?;
    same(first, &reader.get(first)?)?;
    let missing = FilePath::new("none")?;
    let found = reader.get_many(&[first.clone(), missing])?;
    let kinds: Vec<_> =
        found.iter().map(|file| file.as_ref().err().map(|why| why.kind())).collect();
    ensure!(kinds == [None, Some(Kind::NotFound)], "{kinds:?}");
    drop(epoch);
    let before = scene.counters.counts();
    for path in paths.iter().take(50) {
        same(path, &reader.get(path)?)?;
    }
    ensure!(scene.counters.counts().ranges >= before.ranges + 40, "from where?");
    Ok(())
}
