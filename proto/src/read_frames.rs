//! A message of Read as it goes over a connection, made without copying long pieces: what stands
//! around each of them is spelled here, the piece itself is shared.
//!
//! Must hold: the frames are what the generated types would encode.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use crate::pb::{ReadPiece, ReadReply};

/// Number of the field `pieces` of a ReadReply.
const PIECES: u32 = 1;
/// Number of the field `data` of a ReadPiece.
const DATA: u32 = 4;

/// Shorter pieces are copied: a frame of their own would cost more.
const SHARED_MIN: usize = 32 << 10;

/// What is left to send of a message.
#[derive(Debug, Default)]
pub struct ReadFrames(VecDeque<Bytes>);

impl ReadFrames {
    /// All of a message.
    pub fn new(reply: ReadReply) -> Self {
        let length = reply.encoded_len();
        let not_copied: usize = reply.pieces.iter().map(|piece| shared(&piece.data)).sum();
        let mut frames = VecDeque::new();
        let mut spelled = BytesMut::with_capacity(5 + length - not_copied);
        // What gRPC puts before a message: that it isn't compressed, and its length.
        spelled.put_u8(0);
        // A message is no longer than its bound, which is far below 4 GiB.
        spelled.put_u32(length as u32);
        for mut piece in reply.pieces {
            encode_key(PIECES, WireType::LengthDelimited, &mut spelled);
            encode_varint(piece.encoded_len() as u64, &mut spelled);
            if shared(&piece.data) == 0 {
                encode(&piece, &mut spelled);
                continue;
            }
            let data = std::mem::take(&mut piece.data);
            let after = ReadPiece {
                last: std::mem::take(&mut piece.last),
                length: std::mem::take(&mut piece.length),
                crc: std::mem::take(&mut piece.crc),
                extent: std::mem::take(&mut piece.extent),
                ..ReadPiece::default()
            };
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

impl Iterator for ReadFrames {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.0.pop_front()
    }
}

/// How many bytes of a piece are not copied.
fn shared(data: &Bytes) -> usize {
    if data.len() >= SHARED_MIN { data.len() } else { 0 }
}

fn encode(piece: &ReadPiece, spelled: &mut BytesMut) {
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
            let reply = ReadReply { pieces };
            let frames: Vec<Bytes> = ReadFrames::new(reply.clone()).collect();
            assert!(frames.iter().all(|frame| !frame.is_empty()));
            let long = reply.pieces.iter().filter(|piece| piece.data.len() >= long);
            for piece in long {
                let is_shared = |frame: &Bytes| frame.as_ptr() == piece.data.as_ptr();
                assert!(frames.iter().any(is_shared));
            }
            let sent = frames.concat();
            let mut sent = Bytes::from(sent);
            assert_eq!((sent.get_u8(), sent.get_u32() as usize), (0, sent.len()));
            assert_eq!(sent, reply.encode_to_vec());
        }
    }
}
