//! A dataset of known files, and checks of an epoch's files.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use libdiesel::{
    Attributes, ChunkShape, Client, Dataset, DatasetName, Epoch, FilePath, SnapshotCache,
};

/// Paths with their content.
pub(super) type Files = BTreeMap<FilePath, Vec<u8>>;

pub(super) fn name() -> Result<DatasetName> {
    Ok(DatasetName::new("ds")?)
}

/// Small random files, some of them empty.
pub(super) fn files(count: usize, longest: usize) -> Result<Files> {
    let dice = Dice::new(3);
    let file = |number: usize| {
        let path = FilePath::new(format!("train/{:03}/{number:05}", number / 100))?;
        Ok((path, dice.bytes(dice.below(longest + 1))))
    };
    (0..count).map(file).collect()
}

/// Stores the files in chunks of 1 MiB.
pub(super) fn put(client: &Client, files: &Files) -> Result<Dataset> {
    let dataset = client.create_dataset(&name()?, ChunkShape::new(1 << 20, 64)?)?;
    for (path, data) in files {
        let length = data.len() as u64;
        dataset.put_reader(path, Attributes::default(), length, &mut data.as_slice())?;
    }
    let _ = dataset.flush()?.check()?;
    Ok(dataset)
}

/// A handle with a current snapshot.
pub(super) fn reader(client: &Client, cache: &SnapshotCache) -> Result<Dataset> {
    Ok(client.dataset(&name()?)?.with_snapshot(cache)?)
}

/// The next `count` files of an epoch, compared with the stored files.
pub(super) fn some(epoch: &Epoch, files: &Files, count: usize) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        let Some(file) = epoch.next()? else { break };
        let bytes = file.bytes.with_context(|| format!("file {}", file.position))?;
        ensure!(files.get(&file.path).is_some_and(|put| *put == bytes), "{}", file.path);
        ensure!(epoch.snapshot().path(file.number)? == file.path, "number {}", file.number);
        numbers.push(file.number);
    }
    Ok(numbers)
}

/// All remaining files of an epoch.
pub(super) fn rest(epoch: &Epoch, files: &Files) -> Result<Vec<u32>> {
    some(epoch, files, usize::MAX)
}
