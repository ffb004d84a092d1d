//! Reading ranges of objects, into memory that the ranges of one call share.
//!
//! Must hold: a deleted object is not read any more, also when another process deleted or moved the file.
//! A range is given whole or not at all.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::directory::Directory;
use super::files::{Errno, Files, OpenFile, Result, State};
use crate::{Error, Key, Kind, ObjectRange};

const READ: &str = "read object";

/// Larger buffers are not kept for the next call.
const KEPT_BYTES: usize = 8 << 20;

/// The result of a range.
pub(super) type Read = std::result::Result<Bytes, Error>;

/// An open object.
#[derive(Debug)]
struct Opened<F> {
    file: Arc<OpenFile<F>>,
    size: u64,
}

/// A range within an open file.
#[derive(Debug)]
struct Piece<F> {
    file: Arc<OpenFile<F>>,
    offset: u64,
    length: usize,
}

impl<F: Files> Directory<F> {
    /// Reads ranges, waiting for the disk where needed.
    pub(super) fn read(&self, wanted: &[ObjectRange]) -> Vec<Read> {
        let mut last: Option<(&Key, Opened<F::File>)> = None;
        let mut pieces = Vec::with_capacity(wanted.len());
        for range in wanted {
            let opened = match last.take() {
                Some((key, opened)) if *key == range.key => Ok(opened),
                _ => self.opened(&range.key),
            };
            pieces.push(match opened {
                Ok(opened) => {
                    let piece = piece(&opened, range);
                    last = Some((&range.key, opened));
                    piece
                }
                Err(errno) => Err(Error::from_errno(errno, READ, &range.key)),
            });
        }
        let mut memory = self.memory(pieces.iter().flatten());
        let mut start = 0;
        let ends: Vec<_> = pieces
            .into_iter()
            .zip(wanted)
            .map(|(piece, wanted)| {
                let Piece { file, offset, length } = piece?;
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

    /// Reads ranges up to the first range that has to wait for the disk.
    pub(super) fn read_cached(&self, wanted: &[ObjectRange]) -> Vec<Bytes> {
        if self.waits_always.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut last: Option<(&Key, Opened<F::File>)> = None;
        let mut pieces = Vec::with_capacity(wanted.len());
        for range in wanted {
            let opened = match last.take() {
                Some((key, opened)) if *key == range.key => Some(opened),
                _ => self.open_before(&range.key),
            };
            let Some(opened) = opened else { break };
            let Ok(piece) = piece(&opened, range) else { break };
            pieces.push(piece);
            last = Some((&range.key, opened));
        }
        let mut memory = self.memory(pieces.iter());
        let mut ends = Vec::with_capacity(pieces.len());
        let mut start = 0;
        for Piece { file, offset, length } in pieces {
            let end = start + length;
            let buffer = memory.get_mut(start..end).unwrap_or_default();
            match self.files.read_cached(&file.file, offset, buffer) {
                Ok(count) if count == length => {}
                Err(Errno::OPNOTSUPP) => {
                    self.waits_always.store(true, Ordering::Relaxed);
                    break;
                }
                // `read` finds the cause.
                Ok(_) | Err(_) => break,
            }
            ends.push(start..end);
            start = end;
        }
        let memory = self.shared(memory);
        ends.into_iter().map(|range| memory.slice(range)).collect()
    }

    /// An object that the process has open, when the file still has its name.
    fn open_before(&self, key: &Key) -> Option<Opened<F::File>> {
        let file = self.open.get(key)?;
        // Another process or thread may have deleted or moved the object meanwhile.
        match self.files.state_at(key.as_str()) {
            Ok(State { id, size, .. }) if id == file.id => Some(Opened { file, size }),
            // `open` finds the cause.
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
        let file = Arc::new(OpenFile { file, id });
        self.open.insert(key, Arc::clone(&file));
        Ok(Opened { file, size })
    }

    /// Memory for the bytes of `pieces`, with any content.
    fn memory<'a>(&self, pieces: impl Iterator<Item = &'a Piece<F::File>>) -> Vec<u8>
    where
        F::File: 'a,
    {
        let length = pieces.map(|piece| piece.length).sum();
        if length > KEPT_BYTES {
            return vec![0; length];
        }
        let mut memory = self.buffers.take(length);
        if memory.len() < length {
            memory.resize(length, 0);
        }
        memory
    }

    /// Shares the memory, which is reused after its last slice unless it is large.
    fn shared(&self, memory: Vec<u8>) -> Bytes {
        match memory.len() {
            1..=KEPT_BYTES => self.buffers.lend(memory, 0),
            _ => memory.into(),
        }
    }
}

fn piece<F>(opened: &Opened<F>, wanted: &ObjectRange) -> std::result::Result<Piece<F>, Error> {
    let too_short = || too_short(wanted, opened.size);
    let range = wanted.range.within(opened.size).ok_or_else(too_short)?;
    let length = usize::try_from(range.end - range.start).map_err(|_| too_short())?;
    Ok(Piece { file: Arc::clone(&opened.file), offset: range.start, length })
}

fn too_short(wanted: &ObjectRange, size: u64) -> Error {
    let why = format!("the object ends at byte {size}, before the range does");
    Error::because(Kind::Corrupt, READ, &wanted.key, why)
}
