//! `get --tar`: files of a dataset as a tar archive.
//!
//! Must hold: the same files give the same bytes of the archive, in the order of their paths. A failed
//! archive has no end mark, and no name where a file was wanted. Memory holds two batches.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::sync_channel;
use std::thread;

use bytes::Bytes;
use dl_format::{Attributes, FilePath};
use libdiesel::{Dataset, ListEntry, ReadItem};
use tar::{EntryType, Header};

use super::fetch::{Batch, Wanted};
use super::{GetPlan, WHOLE_BYTES, batches, file_target};
use crate::commands::file_at;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::local::own_umask;
use crate::output::Output;
use crate::text::{counted, shown, sized};

/// Entries of a listing that become batches together.
const PAGE: usize = 8_192;

/// Longest name and largest size of a header without extension.
const NAME_MAX: usize = 100;
const SIZE_MAX: u64 = (1 << 33) - 1;

/// Files in an archive, and their bytes.
#[derive(Debug, Default, serde::Serialize)]
struct Summary {
    files: u64,
    bytes: u64,
}

/// Writes the archive to stdout for `-`, else to a file.
pub(super) fn run(
    plan: &GetPlan,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let dataset = context.dataset(&plan.source)?;
    if plan.target.as_os_str() == "-" {
        let mut ended = Ok(Summary::default());
        out.write(|out| {
            let mut kept = Kept { out, failed: None };
            ended = write_all(plan, &dataset, context, &mut kept);
            kept.failed.map_or(Ok(()), Err)
        })?;
        ended?;
        return Ok(Exit::Done);
    }
    let name = plan.target.file_name().map(|name| FilePath::new(name.as_bytes().to_vec()));
    let Some(Ok(name)) = name else {
        return Err(Failure::usage(format!("--tar {} names no file", shown(&plan.target))));
    };
    let umask = own_umask();
    let (folder, at) = file_target(&plan.target, &name, umask)?;
    let failed = |why: io::Error| Failure::local(format!("write {}", shown(&plan.target)), why);
    let place = folder.folder_of(&at).map_err(failed)?;
    let mut file = folder.begin(&place, 0o666 & !umask).map_err(failed)?;
    let mut kept = Kept { out: file.file(), failed: None };
    let written = write_all(plan, &dataset, context, &mut kept);
    if let Some(why) = kept.failed {
        return Err(failed(why));
    }
    let Summary { files, bytes } = written?;
    let attributes = Attributes { mode: 0o666 & !umask, ..Attributes::at(context.clock.now()) };
    file.finish(at.name(), attributes).map_err(failed)?;
    if plan.sync {
        folder.sync().map_err(failed)?;
    }
    if out.is_json() {
        out.json("get", &Summary { files, bytes })?;
    } else {
        out.line(format_args!("{} got, {}", counted(files, "file"), sized(bytes)))?;
    }
    Ok(Exit::Done)
}

/// Writes the archive, with its end mark if all files are there.
fn write_all(
    plan: &GetPlan,
    dataset: &Dataset,
    context: &Context,
    out: &mut dyn Write,
) -> Result<Summary, Failure> {
    let (give, taken) = sync_channel(1);
    let stopped = || Failure::failed("stopped");
    let fetch = move || {
        list(plan, dataset, &mut |batch| {
            if context.shutdown.is_requested() {
                return Err(stopped());
            }
            give.send(fetched(dataset, batch)?).map_err(|_| stopped())
        })
    };
    thread::scope(|scope| {
        let fetching = scope.spawn(fetch);
        let mut archive = Archive { dataset, context, out, summary: Summary::default() };
        let written = taken.into_iter().try_for_each(|files| archive.add(files));
        let fetched = fetching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written?;
        fetched?;
        archive.end()
    })
}

/// The files to get, in the order of their paths, in batches.
fn list(
    plan: &GetPlan,
    dataset: &Dataset,
    give: &mut dyn FnMut(Batch) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if let Some((path, record)) = file_at("get", dataset, &plan.source)? {
        let name = FilePath::new(path.name().to_vec());
        let at = name.map_err(|why| Failure::failed(format!("get {path}: {why}")))?;
        return give(Batch::from(Wanted { at, path: path.clone(), record }));
    }
    let folder = plan.source.folder();
    let prefix = folder.prefix().len();
    let mut listing = dataset.list(&folder, true, false)?;
    loop {
        let mut page = Vec::new();
        for entry in listing.by_ref().take(PAGE) {
            let ListEntry::File(path, Some(record)) = entry? else { continue };
            let at = FilePath::new(path.clone().into_bytes().slice(prefix..));
            let at = at.map_err(|why| Failure::failed(format!("get {path}: {why}")))?;
            page.push(Wanted { at, path, record });
        }
        if page.is_empty() {
            return Ok(());
        }
        batches(page).into_iter().try_for_each(&mut *give)?;
    }
}

/// A file with its bytes; none for a file that is streamed.
type Fetched = (Wanted, Option<Bytes>);

/// Fetches the small files of a batch.
fn fetched(dataset: &Dataset, batch: Batch) -> Result<Vec<Fetched>, Failure> {
    let mut files: Vec<Fetched> = batch.files.into_iter().map(|file| (file, None)).collect();
    let mut small: Vec<usize> = Vec::new();
    for (number, (file, bytes)) in files.iter_mut().enumerate() {
        match file.record.length {
            0 => *bytes = Some(Bytes::new()),
            length if length <= WHOLE_BYTES => small.push(number),
            _ => {}
        }
    }
    // Neighbours in a chunk are read together.
    small.sort_unstable_by_key(|number| {
        files.get(*number).map(|(file, _)| (file.record.holder.chunk, file.record.offset))
    });
    let item = |number: &usize| files.get(*number).map(|(file, _)| item_of(file));
    let items = small.iter().filter_map(item).collect();
    let mut ended = Ok(());
    dataset.read_files(items, &mut |index, read| {
        let file = small.get(index).and_then(|number| files.get_mut(*number));
        let (Some((file, bytes)), true) = (file, ended.is_ok()) else { return };
        match read {
            Ok(read) => *bytes = Some(Bytes::copy_from_slice(read)),
            Err(error) => ended = Err(of_file(error, &file.path)),
        }
    });
    ended.map(|()| files)
}

fn item_of(file: &Wanted) -> ReadItem {
    (file.path.clone(), file.record).into()
}

fn of_file(error: libdiesel::Error, path: &FilePath) -> Failure {
    Failure::from(error).while_doing(format_args!("get {path}"))
}

/// An archive in progress.
struct Archive<'a> {
    dataset: &'a Dataset,
    context: &'a Context,
    out: &'a mut dyn Write,
    summary: Summary,
}

impl Archive<'_> {
    fn add(&mut self, files: Vec<Fetched>) -> Result<(), Failure> {
        for (file, bytes) in files {
            if self.context.shutdown.is_requested() {
                return Err(Failure::failed("stopped"));
            }
            let length = file.record.length;
            self.begin(&file).map_err(failed)?;
            match bytes {
                Some(bytes) => self.out.write_all(&bytes).map_err(failed)?,
                None => {
                    let read = self.dataset.read_to(item_of(&file), &mut self.out);
                    read.map_err(|error| of_file(error, &file.path))?;
                }
            }
            self.pad(length).map_err(failed)?;
            self.summary.files += 1;
            self.summary.bytes += length;
        }
        Ok(())
    }

    /// Writes the headers of a file.
    fn begin(&mut self, file: &Wanted) -> io::Result<()> {
        let (name, Attributes { mode, mtime }) = (file.at.as_bytes(), file.record.attributes);
        let (seconds, nanos) = (mtime.div_euclid(1_000_000_000), mtime.rem_euclid(1_000_000_000));
        let mut records = Vec::new();
        if name.len() > NAME_MAX {
            add_record(&mut records, "path", name);
        }
        if file.record.length > SIZE_MAX {
            add_record(&mut records, "size", file.record.length.to_string().as_bytes());
        }
        if nanos != 0 || !(0..=SIZE_MAX as i64).contains(&seconds) {
            add_record(&mut records, "mtime", time(mtime).as_bytes());
        }
        if !records.is_empty() {
            let mut header = header(b"PaxHeader", records.len() as u64, 0o644, 0);
            header.set_entry_type(EntryType::XHeader);
            header.set_cksum();
            self.out.write_all(header.as_bytes())?;
            self.out.write_all(&records)?;
            self.pad(records.len() as u64)?;
        }
        let time = u64::try_from(seconds).unwrap_or(0).min(SIZE_MAX);
        let mut header = header(name, file.record.length.min(SIZE_MAX), mode.into(), time);
        header.set_cksum();
        self.out.write_all(header.as_bytes())
    }

    /// Fills the last block.
    fn pad(&mut self, length: u64) -> io::Result<()> {
        const BLOCK: u64 = 512;
        let left = length.next_multiple_of(BLOCK) - length;
        self.out.write_all(&[0; BLOCK as usize][..left as usize])
    }

    /// Writes the end mark.
    fn end(self) -> Result<Summary, Failure> {
        self.out.write_all(&[0; 1024]).and_then(|()| self.out.flush()).map_err(failed)?;
        Ok(self.summary)
    }
}

/// A header of a file, without its checksum.
fn header(name: &[u8], size: u64, mode: u32, mtime: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(mtime);
    header.set_uid(0);
    header.set_gid(0);
    for (to, from) in header.as_old_mut().name.iter_mut().zip(name) {
        *to = *from;
    }
    header
}

/// Adds a record of an extended header: its length with the length's own digits, name and value.
fn add_record(records: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} {key}=").as_bytes());
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// A time in seconds, with as many digits as it needs.
fn time(nanos: i64) -> String {
    let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let text = format!("{sign}{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn failed(why: io::Error) -> Failure {
    Failure::local("write the archive", why)
}

/// An output that keeps its failure.
struct Kept<'a, W: ?Sized> {
    out: &'a mut W,
    failed: Option<io::Error>,
}

impl<W: Write + ?Sized> Write for Kept<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes).inspect_err(|why| {
            if why.kind() != io::ErrorKind::Interrupted {
                self.failed = Some(io::Error::new(why.kind(), why.to_string()));
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_their_own_length() {
        for (value, record) in [
            ("", "8 path=\n".to_owned()),
            ("a", "9 path=a\n".to_owned()),
            ("aa", "11 path=aa\n".to_owned()),
            ("a".repeat(91).as_str(), format!("101 path={}\n", "a".repeat(91))),
        ] {
            let mut records = Vec::new();
            add_record(&mut records, "path", value.as_bytes());
            assert_eq!(
                (records.len(), String::from_utf8(records).unwrap()),
                (record.len(), record)
            );
        }
    }

    #[test]
    fn times_have_the_digits_they_need() {
        for (nanos, text) in
            [(0, "0"), (1_500_000_000, "1.5"), (-1, "-0.000000001"), (-2_000_000_000, "-2")]
        {
            assert_eq!(time(nanos), text);
        }
    }
}
