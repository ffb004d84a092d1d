//! Reading an epoch in its order, as a measurement.
//!
//! Must hold: every file is read and checked as in a training job; unreadable files are reported.

use std::time::Duration;

use libdiesel::{Dataset, ShuffleOptions};
use serde::Serialize;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::{counted, sized};

/// The line of `--json`.
#[derive(Debug, Serialize)]
struct Read {
    files: u64,
    bytes: u64,
    failed: u64,
    seconds: f64,
    files_per_second: f64,
    bytes_per_second: f64,
}

/// Reads all files of a rank, and prints the speed.
pub(super) fn run(
    dataset: &Dataset,
    options: ShuffleOptions,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let began = context.clock.monotonic();
    let epoch = dataset.shuffle(options)?;
    let (mut files, mut bytes, mut failed) = (0_u64, 0_u64, 0_u64);
    while let Some(file) = epoch.next()? {
        match file.bytes {
            Ok(read) => {
                files += 1;
                bytes += read.len() as u64;
            }
            Err(error) => {
                failed += 1;
                context.notes.error(Failure::from(error));
            }
        }
        if context.shutdown.is_requested() {
            return Ok(Exit::Interrupted);
        }
    }
    let took = context.clock.monotonic().saturating_sub(began).max(Duration::from_micros(1));
    let seconds = took.as_secs_f64();
    let (file_rate, byte_rate) = (files as f64 / seconds, bytes as f64 / seconds);
    if out.is_json() {
        let (files_per_second, bytes_per_second) = (file_rate, byte_rate);
        let read = Read { files, bytes, failed, seconds, files_per_second, bytes_per_second };
        out.json("epoch", &read)?;
    } else {
        out.line(format_args!(
            "{} of {} in {seconds:.2} s: {file_rate:.0} files/s, {}/s",
            counted(files, "file"),
            sized(bytes),
            sized(byte_rate as u64)
        ))?;
    }
    Ok(if failed > 0 { Exit::Partly } else { Exit::Done })
}
