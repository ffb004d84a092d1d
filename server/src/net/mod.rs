//! Connections: sockets, TLS, limits, and the bytes in flight.
//!
//! Must hold: memory and connections stay bounded, whatever clients send or refuse to read.

pub(crate) mod connections;
pub(crate) mod inflight;
pub(crate) mod socket;
pub(crate) mod tls;
pub(crate) mod unsent;
