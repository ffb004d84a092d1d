//! What the agent of a node and its workers share (paper, 4.2): the layout of memory, the pins, the
//! messages and the socket.
//!
//! Must hold: an agent and a worker of the same version agree on all of it, and a worker of another
//! version is refused by its first message.

mod copying;
mod files_alone;
mod layout;
mod mapped;
mod memory;
mod message;
#[cfg(test)]
mod model;
mod socket;
#[cfg(test)]
mod tests;

pub use copying::{copy_bytes, copy_of, copy_to_new};
pub use files_alone::FilesAlone;
pub use layout::{Arena, Gauge, Maps, PinPage, Pinned, SLOTS_MAX, Shape, Table, Word};
pub use mapped::{Advice, HUGE_PAGE, Mapped, Mapping, advise, fetch};
pub use memory::{Access, SharedMemory};
pub use message::{
    Begin, FromAgent, HINTS_MAX, Hello, NO_FILE, PROTOCOL, RUNS_MAX, Servers, ToAgent, Want,
    WantFiles, WantedVersion, Welcome, milliseconds,
};
pub use socket::{DESCRIPTORS_MAX, Socket, accept, bind_at};
