//! Verification of whole objects, and the commit.
//!
//! Must hold: a [`Verified`] exists only for an object with all bytes checked. A commit changes
//! only the commit block, in the header and in the object alike.

use bytes::Bytes;

use super::commit::commit_block;
use super::{Committed, Header};
use crate::checksum::Crc32c;
use crate::decode::{is_zero, range};
use crate::error::DecodeError;
use crate::id::Stamp;
use crate::layout::{COMMIT_LEN, COMMIT_OFFSET, HEADER_LENGTH_OFFSET};

/// A whole object with every byte checked: header, payload checksums, zero padding.
#[derive(Debug)]
pub struct Verified {
    header: Header,
    object: Vec<u8>,
}

impl Verified {
    /// Checks all of `object`.
    ///
    /// # Errors
    /// The first wrong field; for damaged files, the offset of the first.
    pub fn check(object: Vec<u8>) -> Result<Self, DecodeError> {
        let length = Header::length(&object)?;
        let head = range(&object, 0, length).ok_or(DecodeError::new(
            "header length",
            HEADER_LENGTH_OFFSET,
            "the bytes end before the header",
        ))?;
        // A copy, so that the header does not keep the payload in memory.
        let header = Header::decode(&Bytes::copy_from_slice(head))?;
        if header.object_length != object.len() as u64 {
            return Err(DecodeError::new("object length", 64, "is not the number of bytes"));
        }
        header.check_payload(&object)?;
        Ok(Self { header, object })
    }

    /// The header, as sealed by the client.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The object, as given.
    pub fn object(&self) -> &[u8] {
        &self.object
    }

    /// Writes `stamp` into the commit block and returns the object to store.
    ///
    /// # Errors
    /// Never for a stamp above zero.
    pub fn commit(mut self, stamp: Stamp) -> Result<(Committed, Vec<u8>), DecodeError> {
        let block = commit_block(stamp);
        let mut raw = Vec::from(self.header.raw);
        for bytes in [&mut raw, &mut self.object] {
            if let Some(place) = bytes.get_mut(COMMIT_OFFSET..COMMIT_OFFSET + COMMIT_LEN) {
                place.copy_from_slice(&block);
            }
        }
        // No other part of the header depends on the commit block.
        let stamp = (stamp != Stamp::default()).then_some(stamp);
        let header = Header { raw: raw.into(), stamp, ..self.header };
        Ok((header.committed()?, self.object))
    }
}

impl Header {
    fn check_payload(&self, object: &[u8]) -> Result<(), DecodeError> {
        let mut end = self.raw.len();
        if let Some((length, crc)) = self.part {
            if range(object, end, length as usize).map(Crc32c::of) != Some(crc) {
                return Err(DecodeError::new("part", end, "its bytes don't match their checksum"));
            }
            return Ok(());
        }
        let mut extents = self.extents.iter();
        let earlier = extents.next().map(|first| {
            extents.fold(first.crc, |whole, next| whole.then(next.crc, next.length.into()))
        });
        for row in self.rows() {
            let start = row.offset as usize;
            if !object.get(end..start).is_some_and(is_zero) {
                return Err(DecodeError::new("padding", end, "must be zero"));
            }
            let own = range(object, start, row.stored as usize).map(Crc32c::of);
            let whole = own.map(|own| match earlier {
                Some(earlier) => earlier.then(own, row.stored.into()),
                None => own,
            });
            if whole != Some(row.crc) {
                let problem = "its bytes don't match their checksum";
                return Err(DecodeError::new("file", start, problem));
            }
            end = start.saturating_add(row.stored as usize);
        }
        Ok(())
    }
}
