//! Reads from the servers in place of the agent, noted in the page of the reader, so the status
//! report shows them.
//!
//! Must hold: the note ends with the read, unless another read of the process goes on.

use dl_node::{Gauge, milliseconds};
use dl_runtime::since_boot;

use super::read::AgentReader;

impl AgentReader {
    /// Reads a file from the servers. Of several concurrent reads, the note shows the last.
    pub(crate) fn uncached<T>(&self, number: u32, read: impl FnOnce() -> T) -> T {
        let chunk = self.snapshot().place(number).ok().map(|place| u64::from(place.chunk) + 1);
        let (Some(chunk), Some(attached)) = (chunk, self.attached_now()) else { return read() };
        let pins = &attached.maps.pins;
        pins.set(Gauge::ElsewhereSince, milliseconds(since_boot()));
        pins.set(Gauge::Elsewhere, chunk);
        let done = read();
        if pins.get(Gauge::Elsewhere) == chunk {
            pins.set(Gauge::Elsewhere, 0);
        }
        done
    }
}
