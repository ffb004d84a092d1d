//! Listings of the names of ImageNet.
//!
//! Must hold: the file system of the machine has its names in memory. A first listing has a new mount.

use std::path::Path;

use anyhow::Result;

use super::files::write_all;
use super::place::Place;
use super::{DATASET, paths};
use crate::measure::{Bar, Bench, Side, add, time};
use crate::setup::{Server, Settings, finish, shell};
use crate::workload::agent::node::put;

/// Names of ImageNet, in the folders of its classes.
const NAMES: u32 = 1_281_167;

/// Programs that list, and the bars for the first listing.
const PROGRAMS: [(&str, &str, f64); 2] =
    [("find", "find \"$1\" | wc -l", 2.5), ("ls -lR", "ls -lR \"$1\" > /dev/null", 3.2)];

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("mount-names");
    let server = Server::start(&folder.join("data"))?;
    let files = settings.scaled(NAMES);
    put(&server.address, DATASET, files, 0)?;
    let local = folder.join("local");
    write_all(&local, &paths(files), &[])?;
    let place = Place::new(&server.address, DATASET, &folder)?;
    let mut benches = Vec::new();
    for (name, script, bar) in PROGRAMS {
        let listed =
            |dir: &Path| -> Result<f64> { Ok(time(|| finish(&mut shell(script, [dir])))?.1) };
        listed(&local)?;
        let mut first = ["a new mount", "ext4, warm"].map(Side::new);
        let mut again = ["again", "ext4, warm"].map(Side::new);
        for _ in 0..settings.runs() {
            let _mounted = place.mount()?;
            let of_mount = [listed(place.dir())?, listed(place.dir())?];
            let of_local = listed(&local)?;
            add(&mut first, [of_mount[0], of_local]);
            add(&mut again, [of_mount[1], of_local]);
        }
        let text = format!("{files} names in folders of 1,000");
        let bench = |name: String, sides, bar| Bench::new(name, &text, "s", sides, bar);
        benches.push(bench(format!("mount {name}, first"), first, Bar::AtMostTimes(bar)));
        benches.push(bench(format!("mount {name}, again"), again, Bar::AtMostTimes(1.0)));
    }
    Ok(benches)
}
