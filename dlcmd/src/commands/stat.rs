//! `dlcmd stat`: all properties of a dataset, folder or file.
//!
//! Must hold: one `name: value` per line; names are the JSON fields, with spaces.

use clap::Args;
use dl_format::FileRecord;
use libdiesel::{Counts, DatasetInfo, SmallChunks};

use super::file_at;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::json;
use crate::output::Output;
use crate::text::{permissions, sized};
use crate::time::{exact_text, stamp_text};

/// Show the properties of a dataset, folder or file
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd stat dl://imagenet
  dlcmd stat dl://imagenet/labels.csv")]
pub(crate) struct Arguments {
    /// The dataset, folder or file
    #[arg(value_name = "dl://DS[/PATH]")]
    address: Address,
}

/// Shows the properties.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let address = arguments.address;
    let dataset = context.for_metadata(&address)?;
    let Some(path) = &address.path else {
        let by_snapshot = dataset.snapshot().is_some();
        let info = if by_snapshot { dataset.info().clone() } else { dataset.count()? };
        show_dataset(&info, by_snapshot, out)?;
        return Ok(Exit::Done);
    };
    match file_at("stat", &dataset, &address)? {
        Some((path, record)) => show_file(path.as_bytes(), &record, out)?,
        None if out.is_json() => out.json("folder", &json::Name::new(path.as_bytes()))?,
        None => lines(out, &[("type", "folder"), ("path", &path.to_string())])?,
    }
    Ok(Exit::Done)
}

/// Shows a dataset. A snapshot has neither the creation time nor the number of objects.
fn show_dataset(
    info: &DatasetInfo,
    by_snapshot: bool,
    out: &mut Output<'_>,
) -> Result<(), Failure> {
    if out.is_json() {
        let fields = json::Dataset::from(info);
        return out.json(
            "dataset",
            &match by_snapshot {
                true => fields.by_snapshot(),
                false => fields.with_small(info.small),
            },
        );
    }
    let (files, bytes) = match &info.counts {
        Counts::Known { files, bytes } => (files.to_string(), sized(*bytes)),
        Counts::Unasked => ("not counted".to_owned(), "not counted".to_owned()),
        Counts::Unknown(problem) => (problem.clone(), problem.clone()),
    };
    let changed = info.version.last_stamp().map_or_else(|| "never".to_owned(), stamp_text);
    let of_servers = |name: &str| ["created", "objects"].contains(&name);
    let fields: &[(&str, &str)] = &[
        ("type", "dataset"),
        ("name", info.name.as_str()),
        ("id", &info.id.to_string()),
        ("created", &stamp_text(info.created)),
        ("changed", &changed),
        ("version", &info.version.to_string()),
        ("objects", &info.objects.to_string()),
        ("files", &files),
        ("bytes", &bytes),
        ("chunk size", &sized(info.shape.size().into())),
        ("alignment", &sized(info.shape.alignment().into())),
    ];
    let small = small_chunks(info);
    let fields = fields.iter().copied().filter(|(name, _)| !by_snapshot || !of_servers(name));
    let small = small.as_deref().map(|small| ("small chunks", small));
    lines(out, &fields.chain(small).collect::<Vec<_>>())
}

/// The small chunks, their memory in a cache, and the remedy; none where a purge has nothing to merge.
fn small_chunks(info: &DatasetInfo) -> Option<String> {
    let SmallChunks { chunks, bytes } = info.small;
    let memory = chunks.saturating_mul(info.shape.size().into());
    (chunks > 1).then(|| {
        let (bytes, memory) = (sized(bytes), sized(memory));
        let name = &info.name;
        format!("{chunks} of {bytes} take {memory} in a cache; dlcmd purge dl://{name} merges them")
    })
}

fn show_file(path: &[u8], record: &FileRecord, out: &mut Output<'_>) -> Result<(), Failure> {
    if out.is_json() {
        return out.json("file", &json::File::new(path, record));
    }
    let mode = record.attributes.mode;
    let letters = permissions(mode);
    lines(
        out,
        &[
            ("type", "file"),
            ("path", &crate::text::escaped(path).to_string()),
            ("size", &sized(record.length)),
            ("mode", &format!("{mode:04o} ({})", String::from_utf8_lossy(&letters))),
            ("mtime", &exact_text(record.attributes.mtime)),
            ("uploaded", &stamp_text(record.version.stamp)),
            ("crc32c", &format!("{:08x}", record.crc.value())),
            ("chunk", &record.holder.chunk.to_string()),
            ("offset", &record.offset.to_string()),
        ],
    )
}

fn lines(out: &mut Output<'_>, lines: &[(&str, &str)]) -> Result<(), Failure> {
    for (name, value) in lines {
        out.line(format_args!("{:<11} {value}", format!("{name}:")))?;
    }
    Ok(())
}
