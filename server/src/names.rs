//! What dataset names point to: small objects `names/<name>/<generation>` in the chunk store, of
//! which the highest generation holds. The truth about which datasets live; the metadata store
//! only indexes it.

use std::collections::BTreeMap;

use dl_format::{DatasetName, NameRecord, name_key, name_prefix, parse_name_key};
use dl_proto::Kind;
use dl_store::{ObjectInfo, Prefix, StoreExt};

use crate::error::Error;
use crate::parts::{Parts, key, prefix};

/// A name's newest generation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named {
    pub(crate) generation: u32,
    pub(crate) record: NameRecord,
}

/// What `name` points to; none when it was never used.
pub(crate) async fn newest(parts: &Parts, name: &DatasetName) -> Result<Option<Named>, Error> {
    let found = list(parts, &prefix(name_prefix(name))).await?;
    match found.get(name) {
        Some(generation) => Ok(Some(read(parts, name, *generation).await?)),
        None => Ok(None),
    }
}

/// What every name points to, by name.
pub(crate) async fn all(parts: &Parts) -> Result<Vec<(DatasetName, Named)>, Error> {
    let found = list(parts, &prefix(dl_format::NAMES_PREFIX.to_owned())).await?;
    let mut named = Vec::with_capacity(found.len());
    for (name, generation) in found {
        let record = read(parts, &name, generation).await?;
        named.push((name, record));
    }
    Ok(named)
}

/// Makes a generation. False when it is taken: somebody else was faster, look again.
pub(crate) async fn create(
    parts: &Parts,
    name: &DatasetName,
    generation: u32,
    record: &NameRecord,
) -> Result<bool, Error> {
    let object = key(name_key(name, generation));
    match parts.store.create(&object, record.encode().into()).await {
        Ok(()) => Ok(true),
        Err(error) if error.kind == dl_store::Kind::Exists => Ok(false),
        Err(error) => Err(Error::store("write the name of dataset", name, error)),
    }
}

async fn list(parts: &Parts, prefix: &Prefix) -> Result<BTreeMap<DatasetName, u32>, Error> {
    let objects = parts.store.list_sorted(prefix).await;
    let objects = objects.map_err(|error| Error::store("list the names of", "datasets", error))?;
    let generations =
        objects.iter().filter_map(|ObjectInfo { key, .. }| parse_name_key(key.as_str()));
    // Sorted keys: the last generation of a name stays.
    Ok(generations.collect())
}

async fn read(parts: &Parts, name: &DatasetName, generation: u32) -> Result<Named, Error> {
    let object = key(name_key(name, generation));
    let bytes = parts.store.read_all(&object).await;
    let bytes = bytes.map_err(|error| Error::store("read the name of dataset", name, error))?;
    let record = NameRecord::decode(&bytes).map_err(|error| {
        Error::new(Kind::Corrupt, "read the name of dataset", format!("{name} ({object})"), error)
    })?;
    Ok(Named { generation, record })
}

/// The one of `names` that is nearest to what somebody typed, when it is near at all.
pub(crate) fn nearest<'a>(
    typed: &DatasetName,
    names: impl Iterator<Item = &'a DatasetName>,
) -> Option<&'a DatasetName> {
    let most = typed.as_str().len().div_ceil(3);
    names
        .map(|name| (distance(typed.as_str().as_bytes(), name.as_str().as_bytes()), name))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, name)| name)
}

/// Letters to change, add or leave out, case aside (Levenshtein).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(b) {
            let swapped = corner + usize::from(!x.eq_ignore_ascii_case(y));
            corner = *cell;
            left = swapped.min(corner + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(a.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_the_one_that_was_meant() {
        let name = |text: &str| DatasetName::new(text).unwrap();
        let names = ["imagenet", "imagenet-val", "cifar10"].map(name);
        assert_eq!(nearest(&name("imagnet"), names.iter()), Some(&names[0]));
        assert_eq!(nearest(&name("CIFAR-10"), names.iter()), Some(&names[2]));
        assert_eq!(nearest(&name("voices"), names.iter()), None);
        assert_eq!(distance(b"kitten", b"sitting"), 3);
        assert_eq!(distance(b"", b"abc"), 3);
    }
}
