//! Sizes used by both ends.
//!
//! Must hold: a request with paths up to [`REQUEST_PATH_BYTES`] is accepted by a server, and an
//! answer sent after [`REPLY_BYTES`] is accepted by a client.

/// Largest HTTP/2 frame accepted by a client: the default of 16 KiB costs two thirds of the
/// throughput of large messages.
pub const FRAME_BYTES: u32 = 1 << 20;

/// Receive window of a client's stream, in bytes: enough to continue sending while an
/// acknowledgement is on its way.
pub const STREAM_WINDOW_BYTES: u32 = 2 << 20;

/// Largest frame accepted by a server: a piece of a chunk. An incomplete frame stays in memory
/// until its end.
pub const SERVER_FRAME_BYTES: u32 = CHUNK_PIECE_BYTES as u32;

/// Receive window of a server's stream, in bytes: the amount sent by a client before the server has
/// memory for its chunk.
pub const SERVER_STREAM_WINDOW_BYTES: u32 = 128 << 10;

/// Receive window of a server's connection, in bytes: limits the memory of one client's unread
/// requests. Several times the window of a stream, so that streams waiting for memory do not block
/// a stream with memory.
pub const SERVER_WINDOW_BYTES: u32 = 2 << 20;

/// Receive window of a client's connection, in bytes: no limit beside the windows of its streams. A
/// listing that waits for its reader must not stop the reads of the same reader.
pub const CLIENT_WINDOW_BYTES: u32 = 1 << 30;

/// Largest answer message that a client accepts, in bytes: pieces stay far below.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Largest request message accepted by a server, in bytes. Small, because a request is in memory
/// before any check: longer requests are split.
pub const REQUEST_BYTES_MAX: usize = 2 << 20;

/// Bytes of paths in one request; a client sends more paths in another request. The other fields of
/// each path fit beside them.
pub const REQUEST_PATH_BYTES: usize = 512 << 10;

/// Bytes of a chunk in one message of PutChunk: few enough to stay in a processor's cache between
/// the connection and the chunk.
pub(crate) const CHUNK_PIECE_BYTES: usize = 128 << 10;

/// Payload of an answer message before it is sent, in bytes.
pub const REPLY_BYTES: usize = 256 << 10;

/// Most items of a Read.
pub const READ_ITEMS_MAX: usize = 65_536;

/// Most paths of a Stat.
pub const STAT_PATHS_MAX: usize = 65_536;

/// Most ranges of a GetChunks.
pub const CHUNK_RANGES_MAX: usize = 64;
