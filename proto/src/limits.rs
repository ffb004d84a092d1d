//! Sizes that both ends agree on.

/// Largest HTTP/2 frame, set on both ends: the default of 16 KiB costs two thirds of the
/// throughput of large messages.
pub const FRAME_BYTES: u32 = 1 << 20;

/// Receive window of a stream and of a connection, in bytes. Large enough that a chunk is never
/// waiting for an acknowledgement, small enough to bound what a silent reader keeps in memory.
pub const WINDOW_BYTES: u32 = 8 << 20;

/// Largest message either end accepts, in bytes: answers and pieces stay far below.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Bytes of a chunk in one message of PutChunk.
pub const CHUNK_PIECE_BYTES: usize = 1 << 20;

/// Payload after which an answer message is sent, in bytes.
pub const REPLY_BYTES: usize = 1 << 20;

/// Most items of one Read.
pub const READ_ITEMS_MAX: usize = 65_536;

/// Most paths of one Stat.
pub const STAT_PATHS_MAX: usize = 65_536;
