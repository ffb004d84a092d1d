//! A plain client of several memcached over TCP.
//!
//! Must hold: the number of a key selects its instance. The loss of an instance loses its keys
//! only.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};

/// Limit of the wait for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Connections to the instances.
#[derive(Debug)]
pub(super) struct Instances {
    /// Connections by instance; `None` stands for a lost instance.
    connections: Vec<Option<TcpStream>>,
    request: Vec<u8>,
    answer: Vec<u8>,
    length: usize,
}

impl Instances {
    /// Connects to all; values have `length` bytes.
    pub(super) fn open(at: &[SocketAddr], length: usize) -> Result<Self> {
        let connect = |at: &SocketAddr| {
            let connection = TcpStream::connect_timeout(at, PATIENCE)?;
            connection.set_nodelay(true)?;
            connection.set_read_timeout(Some(PATIENCE))?;
            anyhow::Ok(Some(connection))
        };
        let connections = at.iter().map(connect).collect::<Result<_>>()?;
        Ok(Self { connections, request: Vec::new(), answer: Vec::new(), length })
    }

    /// Number of the instance of a key.
    pub(super) fn of(number: u32, instances: usize) -> usize {
        number as usize % instances
    }

    /// Stores a value; a lost instance stores nothing.
    pub(super) fn set(&mut self, number: u32, key: &[u8], value: &[u8]) -> Result<()> {
        self.request.clear();
        self.request.extend_from_slice(b"set ");
        self.request.extend_from_slice(key);
        write!(self.request, " 0 0 {}\r\n", value.len())?;
        self.request.extend_from_slice(value);
        self.request.extend_from_slice(b"\r\n");
        let mut stored = [0; "STORED\r\n".len()];
        let is_there = self.ask(number, &mut stored);
        ensure!(!is_there || stored == *b"STORED\r\n", "memcached stored no value");
        Ok(())
    }

    /// Gets a value; false for a lost instance or a missing key.
    pub(super) fn get(&mut self, number: u32, key: &[u8]) -> Result<bool> {
        self.request.clear();
        self.request.extend_from_slice(b"get ");
        self.request.extend_from_slice(key);
        self.request.extend_from_slice(b"\r\n");
        let overhead = "VALUE  0 \r\n\r\nEND\r\n".len() + self.length.to_string().len();
        let mut answer = std::mem::take(&mut self.answer);
        answer.resize(overhead + key.len() + self.length, 0);
        let is_there = self.ask(number, &mut answer);
        let is_whole = is_there && answer.ends_with(b"END\r\n");
        self.answer = answer;
        Ok(is_whole)
    }

    /// Sends the request and fills `answer`; false for a lost instance or a shorter answer.
    fn ask(&mut self, number: u32, answer: &mut [u8]) -> bool {
        let instance = Self::of(number, self.connections.len());
        let Some(connection) = &mut self.connections[instance] else { return false };
        let mut exchange = || {
            connection.write_all(&self.request)?;
            let mut received = 0;
            while received < answer.len() {
                match connection.read(&mut answer[received..])? {
                    0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                    read => received += read,
                }
                if answer[..received] == *b"END\r\n" {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let exchange: std::io::Result<bool> = exchange();
        exchange.unwrap_or_else(|_| {
            self.connections[instance] = None;
            false
        })
    }
}
