//! `dlcmd ls`: the entries of a dataset or folder, one per line in byte order.
//!
//! Must hold: a million lines need no memory of their own. Every name is printed completely, for
//! any bytes.

use std::io::{self, Write};

use clap::Args;
use dl_format::{FilePath, FileRecord};
use libdiesel::ListEntry;

use super::file_at;
use crate::address::Address;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::json;
use crate::output::Output;
use crate::text::{permissions, write_escaped};
use crate::time::mtime_text;

/// List a dataset or folder
///
/// One entry a line, in byte order; folders end in a slash. Control bytes, backslashes and bytes
/// that are not UTF-8 are printed as \xHH.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd ls dl://imagenet
  dlcmd ls -lR dl://imagenet/train | sort -k 2 -n | tail
  dlcmd ls -R0 dl://photos | xargs -0 -n 1 echo")]
pub(crate) struct Arguments {
    /// The dataset, folder or file
    #[arg(value_name = "dl://DS[/DIR]")]
    folder: Address,

    /// Put permissions, size in bytes and modification time (UTC) before each name
    #[arg(short, long)]
    long: bool,

    /// All files below, each by its path from the dataset's root
    #[arg(short = 'R', long)]
    recursive: bool,

    /// Print names as they are, each ended by NUL
    #[arg(short = '0', long)]
    null: bool,
}

/// The format of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    is_long: bool,
    is_recursive: bool,
    is_raw: bool,
}

/// Lists the entries.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let Arguments { folder, long, recursive, null } = arguments;
    let shape = Shape { is_long: long, is_recursive: recursive, is_raw: null };
    let dataset = context.for_metadata(&folder)?;
    if let Some((path, record)) = file_at("ls", &dataset, &folder)? {
        print(shape, &ListEntry::File(path.clone(), Some(record)), out)?;
        return Ok(Exit::Done);
    }
    let names_only = !shape.is_long && !out.is_json();
    for entry in dataset.list(folder.folder(), shape.is_recursive, names_only)? {
        print(shape, &entry?, out)?;
        if context.shutdown.is_requested() {
            return Ok(Exit::Interrupted);
        }
    }
    Ok(Exit::Done)
}

fn print(shape: Shape, entry: &ListEntry, out: &mut Output<'_>) -> Result<(), Failure> {
    if !out.is_json() {
        return out.write(|out| print_text(shape, entry, out));
    }
    match entry {
        ListEntry::File(path, Some(record)) => {
            out.json("file", &json::File::new(path.as_bytes(), record))
        }
        ListEntry::File(path, None) => out.json("file", &json::Name::new(path.as_bytes())),
        ListEntry::Folder(path) => out.json("folder", &json::Name::new(path.as_bytes())),
    }
}

fn print_text(shape: Shape, entry: &ListEntry, out: &mut dyn Write) -> io::Result<()> {
    let (path, record, is_folder) = match entry {
        ListEntry::File(path, record) => (path, record.as_ref(), false),
        ListEntry::Folder(path) => (path, None, true),
    };
    if shape.is_long {
        print_attributes(record, out)?;
    }
    let name = if shape.is_recursive { path.as_bytes() } else { FilePath::name(path) };
    if shape.is_raw {
        out.write_all(name)?;
    } else {
        write_escaped(out, name)?;
    }
    if is_folder {
        out.write_all(b"/")?;
    }
    out.write_all(if shape.is_raw { b"\0" } else { b"\n" })
}

/// Bytes of the columns of `-l`: permissions, size, time, each with a trailing space.
const COLUMNS: usize = 11 + 13 + 21;

fn print_attributes(record: Option<&FileRecord>, out: &mut dyn Write) -> io::Result<()> {
    let Some(record) = record else {
        return write!(out, "{:<10} {:>12} {:<20} ", "-", "-", "-");
    };
    let size = record.length;
    if size >= 1_000_000_000_000 {
        // Too wide for its column.
        out.write_all(&permissions(record.attributes.mode))?;
        write!(out, " {size} ")?;
        out.write_all(&mtime_text(record.attributes.mtime))?;
        return out.write_all(b" ");
    }
    let mut line = [b' '; COLUMNS];
    let (mode, rest) = line.split_at_mut(11);
    let (digits, time) = rest.split_at_mut(13);
    mode[..10].copy_from_slice(&permissions(record.attributes.mode));
    let mut left = size;
    for slot in digits[..12].iter_mut().rev() {
        *slot = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    time[..20].copy_from_slice(&mtime_text(record.attributes.mtime));
    out.write_all(&line)
}

#[cfg(test)]
mod tests {
    use dl_format::Attributes;

    use super::*;
    use crate::testing::record;

    const SHORT: Shape = Shape { is_long: false, is_recursive: false, is_raw: false };

    fn file(path: &[u8], length: u64) -> ListEntry {
        let record = record(length, Attributes { mode: 0o644, mtime: 999_999_999 });
        ListEntry::File(FilePath::new(path.to_vec()).expect("legal"), Some(record))
    }

    fn folder(path: &[u8]) -> ListEntry {
        ListEntry::Folder(FilePath::new(path.to_vec()).expect("legal"))
    }

    fn printed(shape: Shape, entries: &[ListEntry]) -> String {
        let mut out = Vec::new();
        for entry in entries {
            print_text(shape, entry, &mut out).expect("into memory");
        }
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn names_stand_alone_and_folders_end_in_a_slash() {
        let entries = [folder(b"a/b"), file(b"a/c\n", 1)];
        assert_eq!(printed(SHORT, &entries), "b/\nc\\x0A\n");
        let recursive = Shape { is_recursive: true, ..SHORT };
        assert_eq!(printed(recursive, &entries[1..]), "a/c\\x0A\n");
        let raw = Shape { is_raw: true, ..SHORT };
        assert_eq!(printed(raw, &entries), "b/\0c\n\0");
    }

    #[test]
    fn the_long_form_has_permissions_size_and_time_in_columns() {
        let long = Shape { is_long: true, ..SHORT };
        let entries = [file(b"a", 0), file(b"b", 4096), file(b"c", 999_999_999_999), folder(b"d")];
        assert_eq!(
            printed(long, &entries),
            "-rw-r--r--            0 1970-01-01T00:00:00Z a\n\
             -rw-r--r--         4096 1970-01-01T00:00:00Z b\n\
             -rw-r--r-- 999999999999 1970-01-01T00:00:00Z c\n\
             -                     - -                    d/\n"
        );
        let huge = printed(long, &[file(b"e", 1_234_567_890_123)]);
        assert_eq!(huge, "-rw-r--r-- 1234567890123 1970-01-01T00:00:00Z e\n");
    }
}
