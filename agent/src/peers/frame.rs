//! The messages between two agents: heads of 16 bytes, partly with a body.
//!
//! Must hold: a head of any bytes decodes to a message or an error.

use std::io;

/// Bytes of a head.
pub(crate) const HEAD: usize = 16;

/// Maximum body of one piece, so a small answer need not wait for all of a large one.
pub(crate) const PIECE_MAX: usize = 256 << 10;

/// Maximum of unanswered requests on one connection.
pub(crate) const REQUESTS_MAX: usize = 64;

/// Maximum bytes of the list of kept chunks, a bit for each chunk.
pub(crate) const KEPT_MAX: usize = 1 << 20;

/// Maximum files of one request, and maximum bytes of the answer.
pub(crate) const FILES_MAX: usize = 256;
pub(crate) const FILES_BYTES_MAX: usize = 1 << 20;

/// Bytes of the bitmap of delivered files.
pub(crate) const COMES: usize = FILES_MAX / 8;

/// A request. Its number is repeated in its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// All files of a chunk, from the start of the first file to the end of the last.
    Chunk { number: u32, chunk: u32 },
    /// Files; the body has their numbers, 4 bytes each.
    Files { number: u32, count: u32 },
    /// The list of kept chunks, unless unchanged since a generation.
    Kept { generation: u32 },
    /// The rest of the answer to a request is not needed any more.
    Forget { number: u32 },
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The next bytes of a chunk, in the body, with their offset in the chunk.
    Piece { number: u32, offset: u32, length: u32 },
    /// The present files: the body has [`COMES`] bytes of bitmap, then the bytes of the files, one
    /// behind the other.
    Files { number: u32, length: u32 },
    /// The chunk is being fetched from the servers: a sign of life.
    Wait { number: u32 },
    /// The chunk is absent and will not be fetched.
    ReadElsewhere { number: u32 },
    /// Whether there is room to keep more chunks, and whether the agent knows the asker as a member;
    /// the body has a bit for each chunk, or is empty if nothing has changed.
    Kept { generation: u32, can_keep: bool, is_known: bool, length: u32 },
    /// The agent ends.
    Goodbye,
}

impl Request {
    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        match self {
            Self::Chunk { number, chunk } => head(1, number, chunk, 0),
            Self::Kept { generation } => head(2, generation, 0, 0),
            Self::Files { number, count } => head(3, number, count, 0),
            Self::Forget { number } => head(4, number, 0, 0),
        }
    }

    pub(crate) fn from_bytes(bytes: [u8; HEAD]) -> io::Result<Self> {
        match parts(bytes) {
            (1, number, chunk, 0) => Ok(Self::Chunk { number, chunk }),
            (2, generation, 0, 0) => Ok(Self::Kept { generation }),
            (4, number, 0, 0) => Ok(Self::Forget { number }),
            (3, number, count, 0) if (1..=FILES_MAX as u32).contains(&count) => {
                Ok(Self::Files { number, count })
            }
            _ => Err(invalid_message()),
        }
    }
}

impl Answer {
    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        match self {
            Self::Piece { number, offset, length } => head(1, number, offset, length),
            Self::Wait { number } => head(2, number, 0, 0),
            Self::ReadElsewhere { number } => head(3, number, 0, 0),
            Self::Goodbye => head(4, 0, 0, 0),
            Self::Files { number, length } => head(6, number, length, 0),
            Self::Kept { generation, can_keep, is_known, length } => {
                let flags = u32::from(can_keep) | (u32::from(is_known) << 1);
                head(5, generation, flags, length)
            }
        }
    }

    pub(crate) fn from_bytes(bytes: [u8; HEAD]) -> io::Result<Self> {
        match parts(bytes) {
            (1, number, offset, length) if (1..=PIECE_MAX as u32).contains(&length) => {
                Ok(Self::Piece { number, offset, length })
            }
            (2, number, 0, 0) => Ok(Self::Wait { number }),
            (3, number, 0, 0) => Ok(Self::ReadElsewhere { number }),
            (4, 0, 0, 0) => Ok(Self::Goodbye),
            (6, number, length, 0) if length <= FILES_BYTES_MAX as u32 => {
                Ok(Self::Files { number, length })
            }
            (5, generation, flags @ 0..4, length) if length <= KEPT_MAX as u32 => {
                let (can_keep, is_known) = (flags & 1 != 0, flags & 2 != 0);
                Ok(Self::Kept { generation, can_keep, is_known, length })
            }
            _ => Err(invalid_message()),
        }
    }
}

pub(crate) fn invalid_message() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the other agent sent an invalid message")
}

fn head(kind: u32, number: u32, one: u32, other: u32) -> [u8; HEAD] {
    let mut bytes = [0; HEAD];
    let words = [kind, number, one, other];
    bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
    bytes
}

fn parts(bytes: [u8; HEAD]) -> (u32, u32, u32, u32) {
    let word = |at: usize| {
        let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk()).copied();
        u32::from_le_bytes(word.unwrap_or_default())
    };
    (word(0), word(4), word(8), word(12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_invalid_bytes_are_refused() {
        let request = Request::Chunk { number: 7, chunk: u32::MAX };
        let files = Request::Files { number: 7, count: FILES_MAX as u32 };
        let forget = Request::Forget { number: 9 };
        for request in [request, files, forget, Request::Kept { generation: 8 }] {
            assert_eq!(Request::from_bytes(request.to_bytes()).unwrap(), request);
        }
        let answers = [
            Answer::Piece { number: 1, offset: 2, length: 3 },
            Answer::Wait { number: u32::MAX },
            Answer::Files { number: 4, length: FILES_BYTES_MAX as u32 },
            Answer::ReadElsewhere { number: 5 },
            Answer::Kept { generation: 9, can_keep: true, is_known: false, length: 0 },
            Answer::Kept {
                generation: 9,
                can_keep: false,
                is_known: true,
                length: KEPT_MAX as u32,
            },
            Answer::Goodbye,
        ];
        for answer in answers {
            assert_eq!(Answer::from_bytes(answer.to_bytes()).unwrap(), answer);
        }
        let long = [head(1, 1, 1, PIECE_MAX as u32 + 1), head(5, 1, 1, KEPT_MAX as u32 + 1)];
        for refused in
            long.into_iter().chain([head(0, 1, 1, 1), head(3, 1, 1, 0), head(5, 1, 4, 0)])
        {
            assert!(Answer::from_bytes(refused).is_err(), "{refused:?}");
        }
        assert!(Request::from_bytes(head(1, 1, 1, 1)).is_err());
        assert!(Answer::from_bytes([0xff; HEAD]).is_err());
    }
}
