//! The messages of PutChunk as frames of a connection, without a copy of the object. This module
//! encodes the bytes before each piece; the frames share the piece itself.
//!
//! Must hold: the frames equal the encoding of the generated types.

use bytes::{BufMut, Bytes};
use dl_format::DatasetId;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use crate::limits::CHUNK_PIECE_BYTES;
use crate::pb::PutChunkRequest;

/// Number of the field `data` of a PutChunkRequest.
const DATA: u32 = 3;

/// The frames of an object still to be sent. A clone sends the same frames.
#[derive(Debug, Clone)]
pub struct PutFrames {
    /// Complete messages, and the bytes before the first piece of `rest`.
    before: Vec<u8>,
    rest: Bytes,
}

impl PutFrames {
    /// The frames of `object`, to be stored in `dataset`.
    pub fn new(dataset: DatasetId, object: Bytes) -> Self {
        let head = PutChunkRequest {
            dataset: Bytes::copy_from_slice(dataset.as_bytes()),
            length: object.len() as u64,
            data: Bytes::new(),
        };
        let mut frames = Self { before: Vec::new(), rest: object };
        frames.begin_message(head.encoded_len());
        frames.before.append(&mut head.encode_to_vec());
        frames.begin_piece();
        frames
    }

    fn piece_length(&self) -> usize {
        self.rest.len().min(CHUNK_PIECE_BYTES)
    }

    /// Encodes the gRPC prefix of a message: not compressed, and its length.
    fn begin_message(&mut self, length: usize) {
        self.before.put_u8(0);
        // A message is a piece and a few bytes.
        self.before.put_u32(length as u32);
    }

    /// Encodes the message around the next piece, if any.
    fn begin_piece(&mut self) {
        let length = self.piece_length();
        if length > 0 {
            let field = key_len(DATA) + encoded_len_varint(length as u64);
            self.begin_message(field + length);
            encode_key(DATA, WireType::LengthDelimited, &mut self.before);
            encode_varint(length as u64, &mut self.before);
        }
    }
}

impl Iterator for PutFrames {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if !self.before.is_empty() {
            return Some(std::mem::take(&mut self.before).into());
        }
        let piece = self.rest.split_to(self.piece_length());
        self.begin_piece();
        (!piece.is_empty()).then_some(piece)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf;

    use super::*;

    #[test]
    fn the_frames_are_the_messages_that_the_generated_types_read() {
        let dataset = DatasetId::from_bytes([7; 16]);
        for length in [0, 1, CHUNK_PIECE_BYTES, 3 * CHUNK_PIECE_BYTES + 5] {
            let object: Bytes = (0..length).map(|byte| byte as u8).collect();
            let mut frames = PutFrames::new(dataset, object.clone());
            let mut sent = Vec::new();
            for (number, frame) in frames.by_ref().enumerate() {
                assert!(!frame.is_empty());
                // A piece shares the memory of its object.
                let is_shared = object.as_ptr_range().contains(&frame.as_ptr());
                assert_eq!(is_shared, number % 2 == 1);
                sent.extend_from_slice(&frame);
            }
            assert!(frames.next().is_none());
            let (mut sent, mut messages) = (Bytes::from(sent), Vec::new());
            while sent.has_remaining() {
                assert_eq!(sent.get_u8(), 0, "not compressed");
                let length = sent.get_u32() as usize;
                messages.push(PutChunkRequest::decode(sent.split_to(length)).expect("a message"));
            }
            let (head, pieces) = messages.split_first().expect("a head");
            assert_eq!(&head.dataset[..], dataset.as_bytes());
            assert_eq!((head.length, head.data.len()), (length as u64, 0));
            assert_eq!(
                pieces.iter().map(|piece| &piece.data[..]).collect::<Vec<_>>().concat(),
                object
            );
            assert!(pieces.iter().all(|piece| piece.data.len() <= CHUNK_PIECE_BYTES));
        }
    }
}
