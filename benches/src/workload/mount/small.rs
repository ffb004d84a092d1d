//! Files of 4 KiB through the mount: warm, out of the agent, and the first of them.
//!
//! Must hold: all chunks are in the agent. Processor time is that of reader and server.

use anyhow::Result;

use super::files::Files;
use super::place::learn_names;
use super::{READERS, SMALL, read};
use crate::measure::{Bar, Bench, Side, add, in_turns, time};
use crate::setup::Settings;

const FILES: u32 = 40_000;

/// Times that all files are read, for a turn of a second.
const WARM_TIMES: usize = 5;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let files = Files::new(settings, "mount-small", settings.scaled(FILES), SMALL)?;
    let text = format!("{} files of 4 KiB in random order: open, read, close", files.order.len());
    Ok(vec![
        warm(settings, &files, &text)?,
        cold(settings, &files, &text)?,
        rate(settings, &files, &text)?,
        first_byte(settings, &files)?,
    ])
}

fn warm(settings: &Settings, files: &Files, text: &str) -> Result<Bench> {
    let (dir, reads) = (files.place.dir(), files.reads(1));
    let mounted = files.place.mount()?;
    let server = mounted.server()?;
    let sides = in_turns(settings.runs(), ["mount", "ext4"], |_| {
        Ok([
            reads.processor_rate(dir, server, WARM_TIMES)?,
            reads.processor_rate(&files.local, server, WARM_TIMES)?,
        ])
    })?;
    let name = "mount 4 KiB, warm page cache";
    Ok(Bench::new(name, text, "files/CPU s", sides, Bar::AtLeastTimes(0.65)))
}

fn cold(settings: &Settings, files: &Files, text: &str) -> Result<Bench> {
    let (dir, reads) = (files.place.dir(), files.reads(1));
    let sides = in_turns(settings.runs(), ["names known", "names unknown"], |_| {
        let mut rates = [0.0; 2];
        for (rate, are_known) in rates.iter_mut().zip([true, false]) {
            let mounted = files.place.mount()?;
            if are_known {
                learn_names(dir)?;
            }
            *rate = reads.processor_rate(dir, mounted.server()?, 1)?;
        }
        Ok(rates)
    })?;
    let name = "mount 4 KiB, out of the agent, one reader";
    Ok(Bench::new(name, text, "files/CPU s", sides, Bar::None))
}

fn rate(settings: &Settings, files: &Files, text: &str) -> Result<Bench> {
    let reads = files.reads(READERS);
    let sides = in_turns(settings.runs(), ["out of the agent", "ext4, warm"], |_| {
        let _mounted = files.place.mount()?;
        Ok([reads.rate(files.place.dir())?, reads.rate(&files.local)?])
    })?;
    let text = format!("{text}, {READERS} readers");
    Ok(Bench::new("mount 4 KiB, rate", text, "files/s", sides, Bar::None))
}

fn first_byte(settings: &Settings, files: &Files) -> Result<Bench> {
    let first = files.order.first().map(|path| files.place.dir().join(path)).unwrap_or_default();
    let mut sides = ["dlcmd mount, and the first file", "nothing"].map(Side::new);
    let mut buffer = [0; SMALL];
    for _ in 0..settings.runs().max(5) {
        let (_mounted, seconds) = time(|| {
            let mounted = files.place.mount()?;
            read(&first, &mut buffer)?;
            Ok(mounted)
        })?;
        add(&mut sides, [seconds * 1e3, 0.0]);
    }
    let text = format!("{} files, agent and snapshot on this machine", files.order.len());
    Ok(Bench::new("mount, first byte", text, "ms", sides, Bar::AtMost(150.0)))
}
