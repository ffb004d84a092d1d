//! `dlcmd verify`: compares a dataset's metadata with the chunk store.
//!
//! Must hold: one line for each finding, as found, with a remedy; findings are no success.

use clap::Args;
use libdiesel::admin::{Finding, VerifyProgress, VerifyRequest};
use serde::Serialize;

use super::whole_dataset;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::{counted, sized};

/// Compare a dataset's metadata with its chunks
///
/// Reads the headers of all objects, compares them with the server's metadata, and prints problems
/// with their remedies. Changes nothing.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd verify dl://imagenet
  dlcmd verify --checksums dl://imagenet")]
pub(crate) struct Arguments {
    /// The dataset
    #[arg(value_name = "dl://DS")]
    dataset: Address,

    /// Read every byte and compare it with its checksum
    #[arg(long)]
    checksums: bool,
}

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Found<'a> {
    dataset: &'a str,
    problem: &'a str,
    remedy: &'a str,
}

/// The last line of `--json`.
#[derive(Debug, Serialize)]
struct Verified<'a> {
    dataset: &'a str,
    objects: u64,
    files: u64,
    bytes: u64,
    findings: u64,
}

/// Compares a dataset.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let Arguments { dataset: address, checksums } = arguments;
    whole_dataset("verify", &address)?;
    let name = address.dataset.as_str();
    let request = VerifyRequest { dataset: address.dataset.clone(), checksums };
    let bar = context.notes.bar();
    let (mut findings, mut printed) = (0, Ok(()));
    let verified = context.client()?.verify(
        &request,
        &mut |step| {
            let VerifyProgress { checked, objects, files, .. } = step;
            bar.set_message(format!("{checked} of {objects} objects checked, {files} files"));
        },
        &mut |finding| {
            findings += 1;
            if printed.is_ok() {
                printed = bar.suspend(|| print(name, &finding, out));
            }
        },
    );
    bar.finish_and_clear();
    let VerifyProgress { objects, files, bytes, .. } = verified?;
    if matches!(printed, Err(Failure::StdoutClosed)) {
        // A reader that saw enough still gets the exit code.
        return Ok(Exit::Partly);
    }
    printed?;
    if out.is_json() {
        out.json("verified", &Verified { dataset: name, objects, files, bytes, findings })?;
    } else {
        let (objects, files) = (counted(objects, "object"), counted(files, "file"));
        let findings = counted(findings, "finding");
        let read = if checksums { format!(", {} read", sized(bytes)) } else { String::new() };
        out.line(format_args!("{address}: {objects} with {files} compared{read}, {findings}"))?;
    }
    Ok(if findings == 0 { Exit::Done } else { Exit::Partly })
}

fn print(dataset: &str, finding: &Finding, out: &mut Output<'_>) -> Result<(), Failure> {
    let Finding { problem, remedy } = finding;
    if out.is_json() {
        return out.json("finding", &Found { dataset, problem, remedy });
    }
    out.line(format_args!("{problem}: {remedy}"))
}
