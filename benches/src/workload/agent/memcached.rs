//! A plain client of memcached over a unix socket.
//!
//! Must hold: the client does no more than to send keys and to receive the answer; every answer is whole.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Result, ensure};
use dl_format::FilePath;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    socket: UnixStream,
    request: Vec<u8>,
    answer: Vec<u8>,
    length: usize,
}

impl Connection {
    /// Connects; values have `length` bytes.
    pub(super) fn open(at: &Path, length: usize) -> Result<Self> {
        let socket = UnixStream::connect(at)?;
        Ok(Self { socket, request: Vec::new(), answer: Vec::new(), length })
    }

    /// Stores a value under each of the keys.
    pub(super) fn fill(&mut self, keys: &[FilePath]) -> Result<()> {
        let value = vec![b'x'; self.length];
        for batch in keys.chunks(256) {
            self.request.clear();
            for key in batch {
                self.request.extend_from_slice(b"set ");
                self.request.extend_from_slice(key.as_bytes());
                write!(self.request, " 0 0 {} noreply\r\n", self.length)?;
                self.request.extend_from_slice(&value);
                self.request.extend_from_slice(b"\r\n");
            }
            self.socket.write_all(&self.request)?;
        }
        for batch in keys.chunks(64) {
            self.get(batch)?;
        }
        Ok(())
    }

    /// Gets the values of some keys with one request.
    pub(super) fn get(&mut self, keys: &[FilePath]) -> Result<()> {
        self.request.clear();
        self.request.extend_from_slice(b"get");
        // "VALUE key 0 length\r\n", the value, "\r\n" for each of them, and "END\r\n".
        let overhead = "VALUE  0 \r\n\r\n".len() + self.length.to_string().len();
        let mut expected = "END\r\n".len();
        for key in keys {
            self.request.push(b' ');
            self.request.extend_from_slice(key.as_bytes());
            expected += key.as_bytes().len() + overhead + self.length;
        }
        self.request.extend_from_slice(b"\r\n");
        self.socket.write_all(&self.request)?;
        if self.answer.len() < expected {
            self.answer.resize(expected, 0);
        }
        let answer = &mut self.answer[..expected];
        // An answer without one of the values is too short: the read would wait for ever.
        let first = self.socket.read(answer)?;
        ensure!(first >= 5 && answer.starts_with(b"VALUE"), "memcached lost a key");
        self.socket.read_exact(&mut answer[first..])?;
        ensure!(answer.ends_with(b"END\r\n"), "memcached lost a key");
        Ok(())
    }
}
