//! A plain client of memcached over a unix socket or TCP.
//!
//! Must hold: the client only sends keys and receives answers. Every answer is whole.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_format::FilePath;
use serde::{Deserialize, Serialize};

/// Limit of the wait for an answer over TCP.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Address of a memcached.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Listener {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// A bidirectional connection.
trait Socket: Read + Write + std::fmt::Debug {}

impl<T: Read + Write + std::fmt::Debug> Socket for T {}

#[derive(Debug)]
pub(crate) struct Connection {
    socket: Box<dyn Socket>,
    request: Vec<u8>,
    answer: Vec<u8>,
    length: usize,
}

impl Connection {
    /// Connects; values have `length` bytes.
    pub(crate) fn open(at: &Listener, length: usize) -> Result<Self> {
        let socket: Box<dyn Socket> = match at {
            Listener::Unix(socket) => Box::new(UnixStream::connect(socket)?),
            Listener::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, TIMEOUT)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                Box::new(stream)
            }
        };
        Ok(Self { socket, request: Vec::new(), answer: Vec::new(), length })
    }

    /// Stores a value.
    pub(crate) fn set(&mut self, key: &FilePath, value: &[u8]) -> Result<()> {
        self.request.clear();
        self.add_set(key, value, "")?;
        self.socket.write_all(&self.request)?;
        let mut answer = [0; "STORED\r\n".len()];
        self.socket.read_exact(&mut answer)?;
        ensure!(answer == *b"STORED\r\n", "memcached did not store {key}");
        Ok(())
    }

    fn add_set(&mut self, key: &FilePath, value: &[u8], how: &str) -> Result<()> {
        self.request.extend_from_slice(b"set ");
        self.request.extend_from_slice(key.as_bytes());
        write!(self.request, " 0 0 {}{how}\r\n", value.len())?;
        self.request.extend_from_slice(value);
        self.request.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Stores a value for each key.
    pub(super) fn fill(&mut self, keys: &[FilePath]) -> Result<()> {
        let value = vec![b'x'; self.length];
        for batch in keys.chunks(256) {
            self.request.clear();
            batch.iter().try_for_each(|key| self.add_set(key, &value, " noreply"))?;
            self.socket.write_all(&self.request)?;
        }
        for batch in keys.chunks(64) {
            self.get(batch)?;
        }
        Ok(())
    }

    /// Gets the values of several keys with one request.
    pub(crate) fn get(&mut self, keys: &[FilePath]) -> Result<()> {
        self.request.clear();
        self.request.extend_from_slice(b"get");
        // For each key "VALUE key 0 length\r\n", the value and "\r\n"; then "END\r\n".
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
        // A missing value makes the answer too short, and the read would never end.
        let first = self.socket.read(answer)?;
        ensure!(first >= 5 && answer.starts_with(b"VALUE"), "memcached lost a key");
        self.socket.read_exact(&mut answer[first..])?;
        ensure!(answer.ends_with(b"END\r\n"), "memcached lost a key");
        Ok(())
    }
}
