//! A plain client of several memcached over TCP.
//!
//! Must hold: the number of a key selects its instance. The loss of an instance loses its keys
//! only.

use std::net::SocketAddr;

use anyhow::Result;
use dl_format::FilePath;

use crate::workload::agent::memcached::{Connection, Listener};

/// Connections to the instances.
#[derive(Debug)]
pub(super) struct Instances {
    /// Connections by instance; `None` stands for a lost instance.
    connections: Vec<Option<Connection>>,
}

impl Instances {
    /// Connects to all; values have `length` bytes.
    pub(super) fn open(at: &[SocketAddr], length: usize) -> Result<Self> {
        let connect = |at: &SocketAddr| Ok(Some(Connection::open(&Listener::Tcp(*at), length)?));
        Ok(Self { connections: at.iter().map(connect).collect::<Result<_>>()? })
    }

    /// Number of the instance of a key.
    pub(super) fn of(number: u32, instances: usize) -> usize {
        number as usize % instances
    }

    /// Stores a value; a lost instance stores nothing.
    pub(super) fn set(&mut self, number: u32, key: &FilePath, value: &[u8]) {
        self.ask(number, |connection| connection.set(key, value));
    }

    /// Gets a value; false for a lost instance.
    pub(super) fn get(&mut self, number: u32, key: &FilePath) -> bool {
        self.ask(number, |connection| connection.get(std::slice::from_ref(key)))
    }

    fn ask(&mut self, number: u32, ask: impl FnOnce(&mut Connection) -> Result<()>) -> bool {
        let instance = Self::of(number, self.connections.len());
        let Some(connection) = &mut self.connections[instance] else { return false };
        let is_there = ask(connection).is_ok();
        if !is_there {
            self.connections[instance] = None;
        }
        is_there
    }
}
