//! Reads from the servers of files that the agent could not give: told to the agent, so that people see
//! them among the waits.
//!
//! Must hold: a read that has ended is no longer told, unless another one of this process goes on.

use dl_runtime::since_boot;

use super::layout::Gauge;
use super::message::milliseconds;
use super::read::Worker;

impl Worker {
    /// Reads a file elsewhere. Of several reads at the same time the last one is told.
    pub(crate) fn elsewhere<T>(&self, number: u32, read: impl FnOnce() -> T) -> T {
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
