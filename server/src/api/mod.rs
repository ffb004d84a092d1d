//! The gRPC service and the HTTP port.
//!
//! Must hold: no logic of the store lives here; each request passes admission first.

pub(crate) mod admission;
pub(crate) mod frames;
pub(crate) mod gate;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod service;
pub(crate) mod shown;
pub(crate) mod web;
