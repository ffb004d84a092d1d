//! Encoding of messages: protobuf, with memory allocated once.
//!
//! Must hold: the bytes equal those of any other protobuf codec. Growing a buffer step by step for
//! a message of a mebibyte would copy more than sending does. The memory of a message is a small
//! multiple of its bytes: messages of very many empty fields are refused.

use std::marker::PhantomData;

use bytes::Buf;
use prost::Message;
use prost::encoding::decode_varint;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic_prost::{ProstCodec, ProstDecoder};

use crate::error::WireError;
use crate::limits::READ_ITEMS_MAX;

/// Encodes `T` and decodes `U`.
#[derive(Debug, Clone)]
pub struct ProtobufCodec<T, U>(PhantomData<(T, U)>);

/// Maximum of fields in a message, however short: the most repeated fields of a request, and its
/// other fields.
const FIELDS_MAX: usize = READ_ITEMS_MAX + 16;

/// Average bytes for each field in messages with more fields. Each field takes about 150 bytes in
/// memory, even an empty field.
const FIELD_BYTES_MIN: usize = 16;

/// Decodes messages with a bounded number of fields.
#[derive(Debug, Clone)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

/// Encodes into memory of the exact size.
#[derive(Debug, Clone)]
pub struct SizedEncoder<T>(PhantomData<T>);

impl<T, U> Default for ProtobufCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for ProtobufCodec<T, U>
where
    T: Message + 'static,
    U: Message + Default + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = SizedEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        SizedEncoder(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstCodec::<T, U>::raw_decoder(BufferSettings::default()))
    }
}

impl<T: Message> Encoder for SizedEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(message.encoded_len());
        message.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // The message is contiguous; otherwise only its first part is checked.
        check_fields(buffer.chunk()).map_err(|why| Status::invalid_argument(why.to_string()))?;
        self.0.decode(buffer)
    }
}

/// Checks that a message has a bounded memory size after decoding: for callers that decode by
/// themselves.
///
/// # Errors
/// For very many short fields.
pub fn check_fields(message: impl Buf) -> Result<(), WireError> {
    let length = message.remaining();
    if length <= FIELDS_MAX || fields(message) <= FIELDS_MAX.max(length / FIELD_BYTES_MIN) {
        return Ok(());
    }
    Err(WireError::invalid("message", "it has too many short fields"))
}

/// The number of fields of a message, up to the first invalid field. Fields in groups count like
/// top-level fields: our messages have no groups, and decoders skip them.
fn fields(mut message: impl Buf) -> usize {
    let mut count = 0;
    while message.has_remaining() {
        let Ok(key) = decode_varint(&mut message) else { break };
        let skipped = match key & 7 {
            0 => decode_varint(&mut message).map(|_| 0).ok(),
            1 => Some(8),
            2 => decode_varint(&mut message).ok(),
            3 | 4 => Some(0),
            5 => Some(4),
            _ => None,
        };
        let skipped = skipped.and_then(|skipped| usize::try_from(skipped).ok());
        let Some(skipped) = skipped.filter(|skipped| *skipped <= message.remaining()) else {
            break;
        };
        message.advance(skipped);
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb;

    #[test]
    fn fields_are_counted_without_being_decoded() {
        let item = pb::ReadItem { offset: 300, ..Default::default() };
        let items = vec![item; 1_000];
        let request = pb::ReadRequest { dataset: vec![7; 16].into(), items, ..Default::default() };
        let mut message = request.encode_to_vec();
        assert_eq!(fields(&message[..]), 1_001);
        assert_eq!(fields(message[..500].chain(&message[500..])), 1_001, "in two pieces");
        message.truncate(message.len() - 1);
        assert_eq!(fields(&message[..]), 1_000);
        assert_eq!(fields(&[][..]), 0);
        assert_eq!(fields(&[0xff; 20][..]), 0);
    }

    #[test]
    fn a_message_of_very_many_empty_fields_is_refused() {
        // Fields 11 and 12 are unknown: a group of one byte at each end, and a short string.
        let (begin, end, other) = ([0x5b], [0x5c], [0x62, 1, 7]);
        let empty = [0x12, 0].repeat(FIELDS_MAX + 1);
        let messages = [
            empty.clone(),
            [&begin[..], &end, &empty].concat(),
            [&other[..], &begin, &begin, &other, &end, &end, &empty].concat(),
            [&begin[..], &empty, &end].concat(),
        ];
        for message in messages {
            check_fields(&message[..]).unwrap_err();
            check_fields(message[..7].chain(&message[7..])).unwrap_err();
            pb::ReadRequest::decode(&message[..]).expect("else nobody would have to look for it");
        }
        let long = [0x12, 14].iter().copied().chain([0; 14]).collect::<Vec<u8>>();
        check_fields(&long.repeat(2 * FIELDS_MAX)[..]).unwrap();
    }
}
