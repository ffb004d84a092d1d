//! The commit block: the 32 bytes of an object written by a server.
//!
//! Must hold: all zero before the commit; afterwards a stamp above zero, zeroes, and the checksum
//! of both. No other bytes are a commit block.

use crate::checksum::Crc32c;
use crate::decode::{Cursor, range};
use crate::encode::FieldWriter;
use crate::error::DecodeError;
use crate::id::Stamp;
use crate::layout::{COMMIT_LEN, COMMIT_OFFSET};

/// The block for a stamp; the stamp zero gives the block of an uncommitted object.
pub(super) fn commit_block(stamp: Stamp) -> [u8; COMMIT_LEN] {
    let mut block = [0; COMMIT_LEN];
    if stamp == Stamp::default() {
        return block;
    }
    let (body, crc) = block.split_at_mut(COMMIT_LEN - 4);
    FieldWriter(body).field(&stamp.get().to_le_bytes());
    FieldWriter(crc).field(&Crc32c::of(body).value().to_le_bytes());
    block
}

pub(super) fn decode_commit(raw: &[u8]) -> Result<Option<Stamp>, DecodeError> {
    let block = range(raw, COMMIT_OFFSET, COMMIT_LEN).unwrap_or_default();
    let stamp = Stamp::new(Cursor::new(block, COMMIT_OFFSET).u64("stamp")?);
    if block != commit_block(stamp) {
        return Err(DecodeError::new("commit block", COMMIT_OFFSET, "does not match its checksum"));
    }
    Ok((stamp != Stamp::default()).then_some(stamp))
}
