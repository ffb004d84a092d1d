//! Reads through a mount whose agent can't hold the dataset, beside a mount without an agent.
//!
//! Must hold: each turn begins with an empty agent and an empty page cache.

use anyhow::Result;

use super::place::Place;
use super::{DATASET, Reads, SMALL, paths};
use crate::measure::{Bar, Bench, in_turns};
use crate::setup::{Server, Settings, shuffle};
use crate::workload::agent::node::put;

/// Files of the dataset, and files that a turn reads: more bytes than the small agent holds.
const FILES: u32 = 20_000;
const READ_FILES: usize = 5_000;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("mount-without");
    let server = Server::start(&folder.join("data"))?;
    let files = settings.scaled(FILES);
    put(&server.address, DATASET, files, SMALL)?;
    let mut order = paths(files);
    shuffle(&mut order, 7);
    order.truncate(READ_FILES);
    let reads = Reads { order: &order, length: SMALL, readers: 1 };
    let place = || Place::new(&server.address, DATASET, &folder);
    let (large, small) = (place()?.with_memory("1GiB"), place()?.with_memory("16MiB"));
    let none = place()?.without_agent();
    let measure = |place: &Place| {
        let _mounted = place.mount()?;
        reads.rate(place.dir())
    };
    let names = ["an agent of 16 MiB", "an agent of 1 GiB", "no agent"];
    let [small, large, none] = in_turns(settings.runs(), names, |_| {
        Ok([measure(&small)?, measure(&large)?, measure(&none)?])
    })?;
    let text = format!(
        "{} of {files} files of 4 KiB in random order, one reader, all caches cold",
        order.len()
    );
    let bench = |name, ours, bar| Bench::new(name, &text, "files/s", [ours, none.clone()], bar);
    Ok(vec![
        bench("mount, a small agent", small, Bar::AtLeastTimes(1.0)),
        bench("mount, an agent that holds all", large, Bar::None),
    ])
}
