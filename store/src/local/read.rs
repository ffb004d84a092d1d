//! Reading ranges of objects, into memory that the ranges of one call share.
//!
//! Must hold: an object that is gone is not read any more, whoever deleted it or moved it away; a
//! range is given whole or not at all.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::directory::Directory;
use super::files::{Errno, Files, Named, Result, State};
use crate::{Error, Key, Kind, ObjectRange};

const READ: &str = "read object";

/// Memory of more bytes is not kept for the next call.
const KEPT_BYTES: usize = 8 << 20;

/// What one range gives.
pub(super) type Read = std::result::Result<Bytes, Error>;

/// An open object.
#[derive(Debug)]
struct Opened<F> {
    file: Arc<Named<F>>,
    size: u64,
}

/// Where the bytes of a range are.
#[derive(Debug)]
struct Place<F> {
    file: Arc<Named<F>>,
    offset: u64,
    length: usize,
}

impl<F: Files> Directory<F> {
    /// Reads ranges one after the other.
    pub(super) fn read(&self, wanted: &[ObjectRange]) -> Vec<Read> {
        let mut last: Option<(&Key, Opened<F::File>)> = None;
        let mut places = Vec::with_capacity(wanted.len());
        for range in wanted {
            let opened = match last.take() {
                Some((key, opened)) if *key == range.key => Ok(opened),
                _ => self.opened(&range.key),
            };
            places.push(match opened {
                Ok(opened) => {
                    let place = place(&opened, range);
                    last = Some((&range.key, opened));
                    place
                }
                Err(errno) => Err(Error::from_errno(errno, READ, &range.key)),
            });
        }
        let mut memory = self.memory(places.iter().flatten());
        let mut start = 0;
        let ends: Vec<_> = places
            .into_iter()
            .zip(wanted)
            .map(|(place, wanted)| {
                let Place { file, offset, length } = place?;
                let end = start + length;
                let buffer = memory.get_mut(start..end).unwrap_or_default();
                match self.files.read(&file.file, offset, buffer) {
                    Ok(count) if count == length => Ok(std::mem::replace(&mut start, end)..end),
                    Ok(count) => Err(too_short(wanted, offset + count as u64)),
                    Err(errno) => Err(Error::from_errno(errno, READ, &wanted.key)),
                }
            })
            .collect();
        let memory = self.shared(memory);
        ends.into_iter().map(|range| Ok(memory.slice(range?))).collect()
    }

    /// Reads as many of the first ranges as can be had at once, without waiting for a disk.
    pub(super) fn read_cached(&self, wanted: &[ObjectRange]) -> Vec<Bytes> {
        if self.waits_always.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut last: Option<(&Key, Opened<F::File>)> = None;
        let mut places = Vec::with_capacity(wanted.len());
        for range in wanted {
            let opened = match last.take() {
                Some((key, opened)) if *key == range.key => Some(opened),
                _ => self.open_before(&range.key),
            };
            let Some(opened) = opened else { break };
            let Ok(place) = place(&opened, range) else { break };
            places.push(place);
            last = Some((&range.key, opened));
        }
        let mut memory = self.memory(places.iter());
        let mut ends = Vec::with_capacity(places.len());
        let mut start = 0;
        for Place { file, offset, length } in places {
            let end = start + length;
            let buffer = memory.get_mut(start..end).unwrap_or_default();
            match self.files.read_cached(&file.file, offset, buffer) {
                Ok(count) if count == length => {}
                Err(Errno::OPNOTSUPP) => {
                    self.waits_always.store(true, Ordering::Relaxed);
                    break;
                }
                // The other way to read finds out.
                Ok(_) | Err(_) => break,
            }
            ends.push(start..end);
            start = end;
        }
        let memory = self.shared(memory);
        ends.into_iter().map(|range| memory.slice(range)).collect()
    }

    /// An object that this process has open, when it still has its name.
    fn open_before(&self, key: &Key) -> Option<Opened<F::File>> {
        let file = self.open.get(key)?;
        // Others may have deleted the object or moved it away, and this process may have between its
        // look-up and its insert.
        match self.files.state_at(key.as_str()) {
            Ok(State { id, size, .. }) if id == file.id => Some(Opened { file, size }),
            // Opening it tells.
            Ok(_) | Err(_) => {
                self.open.remove(key);
                None
            }
        }
    }

    fn opened(&self, key: &Key) -> Result<Opened<F::File>> {
        if let Some(opened) = self.open_before(key) {
            return Ok(opened);
        }
        let file = match self.files.open(key.as_str()) {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.open.clear();
                self.files.open(key.as_str())?
            }
            file => file?,
        };
        let State { id, size, .. } = self.files.state(&file)?;
        let file = Arc::new(Named { file, id });
        self.open.insert(key, Arc::clone(&file));
        Ok(Opened { file, size })
    }

    /// Memory for the bytes of these places, of any content.
    fn memory<'a>(&self, places: impl Iterator<Item = &'a Place<F::File>>) -> Vec<u8>
    where
        F::File: 'a,
    {
        let length = places.map(|place| place.length).sum();
        if length > KEPT_BYTES {
            return vec![0; length];
        }
        let mut memory = self.buffers.take(length);
        if memory.len() < length {
            memory.resize(length, 0);
        }
        memory
    }

    /// Memory that is kept when its last slice is gone, unless it is large.
    fn shared(&self, memory: Vec<u8>) -> Bytes {
        match memory.len() {
            1..=KEPT_BYTES => self.buffers.lend(memory, 0),
            _ => memory.into(),
        }
    }
}

fn place<F>(opened: &Opened<F>, wanted: &ObjectRange) -> std::result::Result<Place<F>, Error> {
    let too_short = || too_short(wanted, opened.size);
    let range = wanted.range.within(opened.size).ok_or_else(too_short)?;
    let length = usize::try_from(range.end - range.start).map_err(|_| too_short())?;
    Ok(Place { file: Arc::clone(&opened.file), offset: range.start, length })
}

fn too_short(wanted: &ObjectRange, size: u64) -> Error {
    let why = format!("the object ends at byte {size}, before the range does");
    Error::because(Kind::Corrupt, READ, &wanted.key, why)
}
