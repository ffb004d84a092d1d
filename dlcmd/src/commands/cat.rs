//! `dlcmd cat`: the bytes of one file on stdout.
//!
//! Must hold: any size in bounded memory; a reader that stops early is no error.

use std::io::{self, Write};

use clap::Args;
use libdiesel::ReadItem;

use super::file_at;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Print the contents of a file
///
/// The bytes are written as they are, also with --json.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  dlcmd cat dl://imagenet/labels.csv | head")]
pub(crate) struct Arguments {
    /// The file
    #[arg(value_name = "dl://DS/PATH")]
    file: Address,
}

/// Prints the file.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let file = arguments.file;
    if file.path.is_none() {
        return Err(Failure::usage(format!(
            "cat {file}: it names a dataset; type dl://{}/PATH",
            file.dataset
        )));
    }
    let dataset = context.dataset(&file)?;
    let Some((path, record)) = file_at("cat", &dataset, &file)? else {
        return Err(Failure::failed(format!(
            "cat {file}: it is a folder; dlcmd ls shows what is in it"
        )));
    };
    let mut read = Ok(0);
    out.write(|out| {
        let mut sink = Sink { out, failed: None };
        read = dataset.read_to(ReadItem::from((path.clone(), record)), &mut sink);
        sink.failed.map_or(Ok(()), Err)
    })?;
    read?;
    Ok(Exit::Done)
}

/// Stdout with its last error: the library reports only that its writer failed.
struct Sink<'a> {
    out: &'a mut dyn Write,
    failed: Option<io::Error>,
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes).inspect_err(|why| {
            if why.kind() != io::ErrorKind::Interrupted {
                self.failed = Some(why.kind().into());
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
