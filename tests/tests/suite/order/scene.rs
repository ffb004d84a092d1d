//! A dataset of known files, and what comes of reading it in the order of an epoch.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use libdiesel::{
    Attributes, ChunkShape, Client, Dataset, DatasetName, Epoch, FilePath, SnapshotCache,
};

/// Paths and what is stored there.
pub(super) type Files = BTreeMap<FilePath, Vec<u8>>;

pub(super) fn name() -> Result<DatasetName> {
    Ok(DatasetName::new("ds")?)
}

/// So many small files, empty ones among them.
pub(super) fn files(count: usize, longest: usize) -> Result<Files> {
    let dice = Dice::new(3);
    let file = |number: usize| {
        let path = FilePath::new(format!("train/{:03}/{number:05}", number / 100))?;
        Ok((path, dice.bytes(dice.below(longest + 1))))
    };
    (0..count).map(file).collect()
}

/// Puts them into chunks of 1 MiB.
pub(super) fn put(client: &Client, files: &Files) -> Result<Dataset> {
    let dataset = client.create_dataset(&name()?, ChunkShape::new(1 << 20, 64)?)?;
    for (path, data) in files {
        let length = data.len() as u64;
        dataset.put_reader(path, Attributes::default(), length, &mut data.as_slice())?;
    }
    let _ = dataset.flush()?.check()?;
    Ok(dataset)
}

/// A handle that answers from a snapshot of now.
pub(super) fn reader(client: &Client, cache: &SnapshotCache) -> Result<Dataset> {
    Ok(client.dataset(&name()?)?.with_snapshot(cache)?)
}

/// The next `count` files that an epoch gives, compared with what was put.
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

/// All that it still gives.
pub(super) fn rest(epoch: &Epoch, files: &Files) -> Result<Vec<u32>> {
    some(epoch, files, usize::MAX)
}
