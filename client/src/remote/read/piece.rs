//! Reads of a whole piece of a file by its place: a small file, or a part of a large file.
//!
//! Must hold: a piece is delivered only with a matching checksum. A damaged piece is requested once
//! more, past all copies.

use bytes::Bytes;
use dl_format::{ChunkId, Crc32c};
use dl_proto::ChunkRange;

use crate::error::{Error, Kind};
use crate::remote::chunks::get_chunks;
use crate::remote::dataset::RemoteDataset;
use crate::remote::failure::Failure;
use crate::remote::session::Session;
use crate::snapshot::FilePlace;

impl RemoteDataset {
    /// Reads a piece in a chunk.
    pub(crate) fn read_piece(&self, chunk: ChunkId, place: FilePlace) -> Result<Bytes, Error> {
        let length = u32::try_from(place.length).unwrap_or(u32::MAX);
        if length == 0 {
            return Ok(Bytes::new());
        }
        let session = self.session()?;
        let range = ChunkRange { chunk, offset: place.offset, length };
        for pass_copies in [false, true] {
            let bytes = session.wait(self.read_chunk_range(&session, range, pass_copies))?;
            if Crc32c::of(&bytes) == place.crc {
                return Ok(bytes.into());
            }
        }
        Err(Error::new(Kind::Corrupt, "read", self.address(), Failure::damaged(chunk)))
    }

    async fn read_chunk_range(
        &self,
        session: &Session,
        range: ChunkRange,
        pass_copies: bool,
    ) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::with_capacity(range.length as usize);
        let take = |_, _, piece: Bytes| bytes.extend_from_slice(&piece);
        let ended = get_chunks(session, self.info(), &[range], pass_copies, take).await?;
        ended.into_iter().collect::<Result<(), Error>>()?;
        Ok(bytes)
    }
}
