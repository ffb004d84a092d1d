//! A message of Read or GetChunks as frames of a connection, without a copy of long pieces. This
//! module encodes the bytes around each piece; the frames share the piece itself.
//!
//! Must hold: the frames equal the encoding of the generated types.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use crate::pb::{ChunkPiece, GetChunksReply, ReadPiece, ReadReply};

/// Number of the field `pieces` of a reply.
const PIECES: u32 = 1;
/// Number of the field `data` of a piece.
const DATA: u32 = 4;

/// Shorter pieces are copied: a separate frame would cost more.
const SHARED_MIN: usize = 32 << 10;

/// A message whose only field, `pieces`, has bytes of files or chunks.
pub trait PiecedReply: Message + Default + 'static {
    /// A piece.
    type Piece: Message + Default;

    /// The pieces, in their order.
    fn pieces(&self) -> &[Self::Piece];

    /// Takes the pieces out.
    fn into_pieces(self) -> Vec<Self::Piece>;

    /// The field `data` of a piece.
    fn data(piece: &Self::Piece) -> &Bytes;

    /// Takes `data` out of a piece, and the fields with greater numbers as another piece.
    fn split(piece: &mut Self::Piece) -> (Bytes, Self::Piece);
}

impl PiecedReply for ReadReply {
    type Piece = ReadPiece;

    fn pieces(&self) -> &[ReadPiece] {
        &self.pieces
    }

    fn into_pieces(self) -> Vec<ReadPiece> {
        self.pieces
    }

    fn data(piece: &ReadPiece) -> &Bytes {
        &piece.data
    }

    fn split(piece: &mut ReadPiece) -> (Bytes, ReadPiece) {
        let data = std::mem::take(&mut piece.data);
        let after = ReadPiece {
            last: std::mem::take(&mut piece.last),
            length: std::mem::take(&mut piece.length),
            crc: std::mem::take(&mut piece.crc),
            extent: std::mem::take(&mut piece.extent),
            ..ReadPiece::default()
        };
        (data, after)
    }
}

impl PiecedReply for GetChunksReply {
    type Piece = ChunkPiece;

    fn pieces(&self) -> &[ChunkPiece] {
        &self.pieces
    }

    fn into_pieces(self) -> Vec<ChunkPiece> {
        self.pieces
    }

    fn data(piece: &ChunkPiece) -> &Bytes {
        &piece.data
    }

    fn split(piece: &mut ChunkPiece) -> (Bytes, ChunkPiece) {
        (std::mem::take(&mut piece.data), ChunkPiece::default())
    }
}

/// The frames of a message still to be sent.
#[derive(Debug, Default)]
pub struct ReplyFrames(VecDeque<Bytes>);

impl ReplyFrames {
    /// The frames of a message.
    pub fn new<R: PiecedReply>(reply: R) -> Self {
        let length = reply.encoded_len();
        let not_copied: usize = reply.pieces().iter().map(|piece| shared(R::data(piece))).sum();
        let mut frames = VecDeque::new();
        let mut spelled = BytesMut::with_capacity(5 + length - not_copied);
        // The gRPC prefix of a message: not compressed, and its length.
        spelled.put_u8(0);
        // A message is bounded far below 4 GiB.
        spelled.put_u32(length as u32);
        for mut piece in reply.into_pieces() {
            encode_key(PIECES, WireType::LengthDelimited, &mut spelled);
            encode_varint(piece.encoded_len() as u64, &mut spelled);
            if shared(R::data(&piece)) == 0 {
                encode(&piece, &mut spelled);
                continue;
            }
            let (data, after) = R::split(&mut piece);
            encode(&piece, &mut spelled);
            encode_key(DATA, WireType::LengthDelimited, &mut spelled);
            encode_varint(data.len() as u64, &mut spelled);
            frames.push_back(spelled.split().freeze());
            frames.push_back(data);
            encode(&after, &mut spelled);
        }
        if !spelled.is_empty() {
            frames.push_back(spelled.freeze());
        }
        Self(frames)
    }
}

impl Iterator for ReplyFrames {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.0.pop_front()
    }
}

/// The number of bytes of a piece sent without a copy.
fn shared(data: &Bytes) -> usize {
    if data.len() >= SHARED_MIN { data.len() } else { 0 }
}

fn encode(piece: &impl Message, spelled: &mut BytesMut) {
    piece.encode(spelled).expect("a buffer that grows has room");
}

#[cfg(test)]
mod tests {
    use bytes::Buf;

    use super::*;
    use crate::pb::Extent;

    fn piece(item: u32, length: usize) -> ReadPiece {
        let data = (0..length).map(|byte| byte as u8).collect();
        let last = item % 2 == 1;
        let extent = Extent { part: Bytes::from_static(&[7; 16]), length: item, crc: 1 };
        let extent = item.is_multiple_of(3).then_some(extent);
        let length = if last { length as u64 } else { 0 };
        ReadPiece { item, data, last, length, crc: item, extent, ..ReadPiece::default() }
    }

    fn check<R: PiecedReply + Clone>(reply: R) {
        let frames: Vec<Bytes> = ReplyFrames::new(reply.clone()).collect();
        assert!(frames.iter().all(|frame| !frame.is_empty()));
        let long = reply.pieces().iter().map(R::data).filter(|data| data.len() >= SHARED_MIN);
        for data in long {
            assert!(frames.iter().any(|frame| frame.as_ptr() == data.as_ptr()));
        }
        let mut sent = Bytes::from(frames.concat());
        assert_eq!((sent.get_u8(), sent.get_u32() as usize), (0, sent.len()));
        assert_eq!(sent, reply.encode_to_vec());
    }

    #[test]
    fn the_frames_are_the_message_and_long_pieces_are_shared() {
        let failed = ReadPiece {
            item: 3,
            status: 2,
            problem: "gone".to_owned(),
            last: true,
            ..ReadPiece::default()
        };
        let long = SHARED_MIN;
        for pieces in [
            vec![],
            vec![piece(0, 0), piece(1, long - 1), failed.clone()],
            vec![piece(0, long)],
            vec![piece(0, 8 * long), piece(1, 1), piece(1, long), failed, piece(6, long + 1)],
        ] {
            let of_chunk = |piece: &ReadPiece| ChunkPiece {
                range: piece.item,
                status: piece.status,
                problem: piece.problem.clone(),
                data: piece.data.clone(),
            };
            check(GetChunksReply { pieces: pieces.iter().map(of_chunk).collect() });
            check(ReadReply { pieces });
        }
    }
}
