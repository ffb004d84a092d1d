//! The CSI driver: datasets as volumes of Kubernetes. The *driver* answers the kubelet and mounts, the
//! *holder* keeps the connections with the kernel, the *launcher* runs the servers (docs/MOUNT.md).
//!
//! Must hold: what was published is found again after a restart of the driver. Nothing stays of a
//! volume after the last unpublish: no mount, no folder, no process.

#![forbid(unsafe_code)]

mod driver;
mod holder;
mod launcher;
mod messages;
mod mounts;
mod node;
mod orphans;
mod registration;
mod sessions;
mod settings;
mod sockets;
mod volume;

pub use driver::{probe, serve};
pub use holder::{Holder, greet_holder};
pub use launcher::{LAUNCHER, Launcher, launch};
pub use settings::Driver;

/// The name of the driver in Kubernetes.
pub const NAME: &str = "csi.diesel";

/// Wire types and servers generated from `csi.proto`.
#[allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::clone_on_ref_ptr,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::missing_errors_doc,
    clippy::wildcard_imports,
    reason = "generated; a test compares it with csi.proto"
)]
#[rustfmt::skip]
#[path = "generated/csi.v1.rs"]
mod pb;

/// Wire types and servers generated from `registration.proto`.
#[allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    dead_code,
    clippy::all,
    clippy::clone_on_ref_ptr,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::missing_errors_doc,
    clippy::wildcard_imports,
    reason = "generated; a test compares it with registration.proto"
)]
#[rustfmt::skip]
#[path = "generated/pluginregistration.rs"]
mod registration_pb;
