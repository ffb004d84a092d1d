//! `dlcmd cat`: the bytes of one file on stdout.
//!
//! Must hold: any size in bounded memory; a reader that stops early is no error.

use std::io::{self, Write};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use dl_format::FilePath;
use libdiesel::{ReadItem, StatItem};

use super::{not_a_folder, not_there};
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
    #[arg(
        value_name = "dl://DS/PATH",
        value_parser = OsStringValueParser::new().try_map(Address::from_argument)
    )]
    file: Address,
}

#[derive(Debug)]
struct CatPlan {
    file: Address,
    path: FilePath,
}

impl Arguments {
    fn plan(self) -> Result<CatPlan, Failure> {
        match &self.file.path {
            Some(path) => Ok(CatPlan { path: path.clone(), file: self.file }),
            None => Err(Failure::usage(format!(
                "cat {}: it names a dataset; type dl://{}/PATH",
                self.file, self.file.dataset
            ))),
        }
    }
}

/// Prints the file.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let plan = arguments.plan()?;
    let dataset = context.dataset(&plan.file)?;
    let record = match dataset.stat(&plan.path)? {
        StatItem::File(_) if plan.file.is_folder => return Err(not_a_folder("cat", &plan.file)),
        StatItem::File(record) => record,
        StatItem::Missing => return Err(not_there("cat", &plan.file)),
        StatItem::Folder => {
            return Err(Failure::failed(format!(
                "cat {}: it is a folder; dlcmd ls shows what is in it",
                plan.file
            )));
        }
    };
    let mut read = Ok(0);
    out.write(|out| {
        let mut sink = Sink { out, failed: None };
        read = dataset.read_to(ReadItem::from((plan.path, record)), &mut sink);
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
