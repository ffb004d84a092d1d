//! Sizes that both ends agree on.
//!
//! Must hold: a request whose paths are cut at [`REQUEST_PATH_BYTES`] fits into what a server takes,
//! and an answer that is sent after [`REPLY_BYTES`] into what a client takes.

/// Largest HTTP/2 frame that a client takes: the default of 16 KiB costs two thirds of the
/// throughput of large messages.
pub const FRAME_BYTES: u32 = 1 << 20;

/// Receive window of one stream of a client, in bytes: enough to be sending while an acknowledgement is on its
/// way.
pub const STREAM_WINDOW_BYTES: u32 = 2 << 20;

/// Largest frame that a server takes: a piece of a chunk. What has come of a frame is held until
/// its end.
pub const SERVER_FRAME_BYTES: u32 = CHUNK_PIECE_BYTES as u32;

/// Receive window of one stream of a server, in bytes: a client sends so much before the server has
/// memory for its chunk.
pub const SERVER_STREAM_WINDOW_BYTES: u32 = 128 << 10;

/// Receive window of a server's connection, in bytes: bounds what one client's requests keep in
/// memory before they are read. Several times that of a stream, so that those that wait for memory
/// leave room for the one that has some.
pub const SERVER_WINDOW_BYTES: u32 = 2 << 20;

/// Receive window of a client's connection, in bytes: no bound beside those of its streams. A
/// listing that waits for its reader must not stop the reads that the reader waits for.
pub const CLIENT_WINDOW_BYTES: u32 = 1 << 30;

/// Largest answer message that a client accepts, in bytes: pieces stay far below.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Largest request message that a server accepts, in bytes. Small, because a request is held whole
/// before anything about it is known: what is longer is asked in several requests.
pub const REQUEST_BYTES_MAX: usize = 2 << 20;

/// Bytes of paths after which a client asks for the rest in another request: what else a request
/// says of each path fits beside them.
pub const REQUEST_PATH_BYTES: usize = 512 << 10;

/// Bytes of a chunk in one message of PutChunk: few enough that both ends still have them in a
/// processor's cache when they take them from the connection to the chunk.
pub(crate) const CHUNK_PIECE_BYTES: usize = 128 << 10;

/// Payload after which an answer message is sent, in bytes.
pub const REPLY_BYTES: usize = 256 << 10;

/// Most items of one Read.
pub const READ_ITEMS_MAX: usize = 65_536;

/// Most paths of one Stat.
pub const STAT_PATHS_MAX: usize = 65_536;

/// Most ranges of one GetChunks.
pub const CHUNK_RANGES_MAX: usize = 64;
