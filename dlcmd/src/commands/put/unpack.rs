//! `put --unpack`: the members of tar archives become files of the dataset.
//!
//! Must hold: a member is stored whole or not at all, and only below the target. Memory is bounded,
//! but for 16 bytes for each member and folder. A damaged archive ends the command with its name, and
//! the same command goes on from there.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use dl_format::{Attributes, DirPath, FilePath};
use flate2::bufread::MultiGzDecoder;
use libdiesel::StatItem;
use tar::EntryType;
use xxhash_rust::xxh3::xxh3_128;

use super::archive::{BUFFER, GZIP, Left, ToEnd, Watched, compressed_by, is_zero, open};
use super::send::{COMPARED, PutState};
use crate::exit::Failure;
use crate::text::shown;

/// A larger member is streamed, alone.
const WHOLE_BYTES: u64 = 1 << 20;
/// Bytes of members in memory before they are compared with the dataset.
const BLOCK_BYTES: u64 = 16 << 20;
/// Maximum bytes of a member's name in a message.
const NAME_SHOWN: usize = 200;

/// An archive of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    source: OsString,
    /// The folder of its members in the target; empty for the target itself.
    below: Vec<u8>,
}

/// The archives, each with its folder below the target.
pub(super) fn archives(
    sources: Vec<OsString>,
    is_under_archive: bool,
) -> Result<Vec<Named>, Failure> {
    let mut named: Vec<Named> = Vec::new();
    for source in sources {
        let below = match is_under_archive {
            true if source == "-" => {
                return Err(Failure::usage("--under-archive needs archives with names, not `-`"));
            }
            true => stem(Path::new(&source)).to_vec(),
            false => Vec::new(),
        };
        if named
            .iter()
            .any(|other| other.source == source || is_under_archive && other.below == below)
        {
            let twice = shown(Path::new(&source)).to_string();
            return Err(Failure::usage(format!("{twice} is named twice")));
        }
        named.push(Named { source, below });
    }
    Ok(named)
}

/// The name of an archive without its ending.
fn stem(path: &Path) -> &[u8] {
    let name = path.file_name().unwrap_or(OsStr::new("archive")).as_bytes();
    let endings = [".tar.gz", ".tar.zst", ".tgz", ".tar"];
    let stem = endings.iter().find_map(|ending| name.strip_suffix(ending.as_bytes()));
    stem.filter(|stem| !stem.is_empty()).unwrap_or(name)
}

/// Paths, as hashes.
type Paths = HashSet<u128>;

/// Unpacks archives into a dataset.
pub(super) struct Unpacker<'a> {
    shared: &'a PutState<'a>,
    target: DirPath,
    /// Whether the dataset is empty, so that nothing is compared.
    is_empty: bool,
    /// Members so far, and the folders above them.
    members: Paths,
    folders: Paths,
    /// Folders that may be files of the dataset.
    new_folders: Vec<FilePath>,
    waiting: Vec<Member>,
    waiting_bytes: u64,
}

/// A small member.
struct Member {
    path: FilePath,
    attributes: Attributes,
    data: Vec<u8>,
}

impl<'a> Unpacker<'a> {
    pub(super) fn new(shared: &'a PutState<'a>, target: DirPath, is_empty: bool) -> Self {
        let (members, folders, new_folders) = (Paths::new(), Paths::new(), Vec::new());
        let (waiting, waiting_bytes) = (Vec::new(), 0);
        Self { shared, target, is_empty, members, folders, new_folders, waiting, waiting_bytes }
    }

    /// Unpacks all archives, `-` from `stdin`.
    pub(super) fn unpack(
        &mut self,
        archives: &[Named],
        stdin: &mut dyn Read,
    ) -> Result<(), Failure> {
        // A wrong name is noticed before anything is stored.
        let is_pipe = |archive: &&Named| {
            fs::metadata(&archive.source).is_ok_and(|metadata| !metadata.is_file())
        };
        for archive in archives.iter().filter(|one| one.source != "-" && !is_pipe(one)) {
            open(&archive.source)?;
        }
        for archive in archives {
            let name = shown(Path::new(&archive.source)).to_string();
            let unpacked = if archive.source == "-" {
                self.unpack_one(
                    &name,
                    &archive.below,
                    &mut BufReader::with_capacity(BUFFER, &mut *stdin),
                )
            } else {
                let file = open(&archive.source)?;
                self.unpack_one(&name, &archive.below, &mut BufReader::with_capacity(BUFFER, file))
            };
            // Whole members before a failure are stored.
            let finished = self.finish();
            unpacked.and(finished)?;
        }
        Ok(())
    }

    fn unpack_one(
        &mut self,
        name: &str,
        below: &[u8],
        bytes: &mut dyn BufRead,
    ) -> Result<(), Failure> {
        let magic = bytes.fill_buf().map_err(|why| damaged(name, None, &why))?;
        if let Some(program) = compressed_by(magic) {
            return Err(Failure::usage(format!(
                "{name} is compressed by {program}: {program} -dc {name} | dlcmd put --unpack - \
                 dl://..."
            )));
        }
        if magic.starts_with(&GZIP) {
            return self.unpack_tar(name, below, &mut MultiGzDecoder::new(bytes));
        }
        self.unpack_tar(name, below, bytes)
    }

    fn unpack_tar(
        &mut self,
        name: &str,
        below: &[u8],
        bytes: &mut dyn Read,
    ) -> Result<(), Failure> {
        let left = Left::default();
        let mut bytes = ToEnd::new(bytes, &left);
        let mut archive = tar::Archive::new(&mut bytes);
        let mut last = None;
        for entry in archive.entries().map_err(|why| damaged(name, None, &why))? {
            left.lift();
            if self.shared.context.shutdown.is_requested() {
                return Err(Failure::failed("stopped"));
            }
            let mut entry = entry.map_err(|why| damaged(name, last.as_deref(), &why))?;
            let member = entry.path_bytes().into_owned();
            self.take(name, below, &member, &mut entry)
                .map_err(|failure| failure.of(name, last.as_deref(), &member))?;
            last = Some(member);
            // The holes of a skipped member could be endless: its bytes are passed over with the next.
            if entry.header().entry_type() != EntryType::GNUSparse {
                io::copy(&mut entry, &mut io::sink())
                    .map_err(|why| damaged(name, last.as_deref(), &why))?;
                left.limit();
            }
        }
        left.lift();
        if bytes.is_over {
            let cut = io::Error::other("it ends without its end mark, and may be cut");
            return Err(damaged(name, last.as_deref(), &cut));
        }
        // The rest holds the checksum of a compressed archive, and lets the writer of a pipe end.
        match is_zero(&mut bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(damaged(
                name,
                last.as_deref(),
                &io::Error::other(
                    "it goes on behind its end mark, as archives joined by cat do: put each alone",
                ),
            )),
            Err(why) => Err(damaged(name, last.as_deref(), &why)),
        }
    }

    fn take(
        &mut self,
        archive: &str,
        below: &[u8],
        member: &[u8],
        entry: &mut tar::Entry<'_, impl Read>,
    ) -> Result<(), MemberFailure> {
        let kind = entry.header().entry_type();
        let why = match kind {
            EntryType::Regular | EntryType::Continuous => None,
            // Folders come with their files.
            EntryType::Directory | EntryType::XGlobalHeader => return Ok(()),
            EntryType::Symlink => Some("it is a link, and only files are stored"),
            EntryType::Link => {
                Some("it is a second name of another member, and only files are stored")
            }
            EntryType::GNUSparse => Some("it has holes: pack it without --sparse"),
            _ => Some("it is no file"),
        };
        if let Some(why) = why {
            let name = format!("{archive}: {}", shortened(member));
            self.shared.reports.skip(name, why);
            return Ok(());
        }
        let attributes = attributes(entry)?;
        let path = self.place(archive, below, member)?;
        let size = entry.size();
        if size > WHOLE_BYTES {
            self.compare()?;
            return self.stream(path, attributes, size, entry);
        }
        let mut data = Vec::with_capacity(size as usize);
        entry.read_to_end(&mut data).map_err(MemberFailure::Damaged)?;
        if data.len() as u64 != size {
            return Err(MemberFailure::Damaged(io::ErrorKind::UnexpectedEof.into()));
        }
        self.waiting_bytes += size;
        self.waiting.push(Member { path, attributes, data });
        if self.waiting.len().max(self.new_folders.len()) >= COMPARED
            || self.waiting_bytes >= BLOCK_BYTES
        {
            self.compare()?;
        }
        Ok(())
    }

    /// The path of a member in the dataset. Each path comes once.
    fn place(
        &mut self,
        archive: &str,
        below: &[u8],
        member: &[u8],
    ) -> Result<FilePath, MemberFailure> {
        let refused = |why: &str| MemberFailure::Refused(why.to_owned());
        if member.starts_with(b"/") {
            return Err(refused("its path is absolute: pack it relative to a folder (tar -C)"));
        }
        let mut path = self.target.as_bytes().to_vec();
        let parts = member.split(|byte| *byte == b'/');
        if parts.clone().all(|part| matches!(part, b"" | b".")) {
            return Err(refused("its path names the folder of the archive, not a file"));
        }
        for part in [below].into_iter().chain(parts) {
            match part {
                b"" | b"." => {}
                b".." => return Err(refused("its path leads out of the archive")),
                part => {
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend_from_slice(part);
                }
            }
        }
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            let folder = path.get(..at).unwrap_or_default();
            if self.members.contains(&xxh3_128(folder)) {
                return Err(refused("a member before it has the path of a folder above it"));
            }
            if self.folders.insert(xxh3_128(folder)) && !self.is_empty {
                let folder = FilePath::new(folder.to_vec());
                self.new_folders.push(folder.map_err(|why| refused(&why.to_string()))?);
            }
        }
        let hash = xxh3_128(&path);
        if self.folders.contains(&hash) {
            return Err(refused("a member before it is below its path, as below a folder"));
        }
        if !self.members.insert(hash) {
            return Err(MemberFailure::Refused(format!(
                "a member before it, of {archive} or another archive, has the same path; \
                 --under-archive gives each archive a folder of its own"
            )));
        }
        FilePath::new(path).map_err(|why| MemberFailure::Refused(why.to_string()))
    }

    /// Refuses members below a file of the dataset, which they would hide.
    fn check_folders(&mut self) -> Result<(), Failure> {
        let folders = std::mem::take(&mut self.new_folders);
        for (folder, found) in folders.iter().zip(self.found(&folders)?) {
            if matches!(found, StatItem::File(_)) {
                let name = &self.shared.dataset.info().name;
                return Err(Failure::failed(format!(
                    "dl://{name}/{folder} is a file, which members below it would hide; unpack into \
                     another folder, or remove that file (dlcmd rm)"
                )));
            }
        }
        Ok(())
    }

    /// Stores the members in memory that the dataset lacks.
    fn compare(&mut self) -> Result<(), Failure> {
        self.check_folders()?;
        let members = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        let paths: Vec<_> = members.iter().map(|member| member.path.clone()).collect();
        for (member, found) in members.into_iter().zip(self.found(&paths)?) {
            let Member { path, attributes, data } = member;
            if self.is_wanted(&path, attributes, data.len() as u64, &found) {
                self.shared.dataset.put(&path, attributes, &data)?;
                self.shared.progress.add(1, data.len() as u64);
            }
        }
        Ok(())
    }

    /// Stores a large member.
    fn stream(
        &mut self,
        path: FilePath,
        attributes: Attributes,
        size: u64,
        entry: &mut impl Read,
    ) -> Result<(), MemberFailure> {
        let paths = [path];
        let found = self.found(&paths)?;
        let [path] = paths;
        if found.first().is_some_and(|found| !self.is_wanted(&path, attributes, size, found)) {
            return Ok(());
        }
        let shutdown = &self.shared.context.shutdown;
        let mut reader = Watched::new(entry, shutdown);
        match self.shared.dataset.put_reader(&path, attributes, size, &mut reader) {
            Ok(()) => {
                self.shared.progress.add(1, size);
                Ok(())
            }
            Err(error) => Err(match reader.failed {
                Some(why) => MemberFailure::Damaged(why),
                None => MemberFailure::Because(error.into()),
            }),
        }
    }

    fn found(&self, paths: &[FilePath]) -> Result<Vec<StatItem>, Failure> {
        match self.is_empty {
            true => Ok(vec![StatItem::Missing; paths.len()]),
            false => Ok(self.shared.dataset.stat_many(paths)?),
        }
    }

    /// Whether a member is to be stored; counts the others.
    fn is_wanted(
        &self,
        path: &FilePath,
        attributes: Attributes,
        size: u64,
        found: &StatItem,
    ) -> bool {
        match found {
            StatItem::File(record) if (record.length, record.attributes) == (size, attributes) => {
                self.shared.unchanged.fetch_add(1, Ordering::Relaxed);
                self.shared.progress.add(1, size);
                false
            }
            StatItem::File(_) | StatItem::Missing => true,
            StatItem::Folder => {
                let name = &self.shared.dataset.info().name;
                self.shared.reports.fail(
                    "store",
                    format_args!("dl://{name}/{path}"),
                    "a folder stands there and would hide it; unpack into another folder, or remove \
                     that one (dlcmd rm -r)",
                );
                false
            }
        }
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.compare()?;
        self.shared.flush()
    }
}

/// The time and mode of a member.
fn attributes(entry: &mut tar::Entry<'_, impl Read>) -> Result<Attributes, MemberFailure> {
    let mode = entry.header().mode().map_err(MemberFailure::Damaged)?;
    // Times before 1970 are negative numbers of 64 bits in GNU's format.
    let seconds = entry.header().mtime().map_err(MemberFailure::Damaged)?.cast_signed();
    let mut mtime = i128::from(seconds) * 1_000_000_000;
    for extension in entry.pax_extensions().map_err(MemberFailure::Damaged)?.into_iter().flatten() {
        let extension = extension.map_err(MemberFailure::Damaged)?;
        match extension.key_bytes() {
            b"mtime" => {
                let wrong = || MemberFailure::Damaged(io::Error::other("its time is no number"));
                mtime = nanos(extension.value_bytes()).ok_or_else(wrong)?;
            }
            key if key.starts_with(b"GNU.sparse") => {
                let why = "it has holes: pack it without --sparse".to_owned();
                return Err(MemberFailure::Refused(why));
            }
            _ => {}
        }
    }
    let mtime = mtime.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    Ok(Attributes { mode: (mode & 0o7777) as u16, mtime })
}

/// Nanoseconds of a decimal number of seconds.
fn nanos(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?;
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (seconds, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if seconds.is_empty() || seconds.len() > 20 || !is_number(seconds) || !is_number(fraction) {
        return None;
    }
    let fraction = format!("{:0<9}", fraction.get(..9).unwrap_or(fraction));
    let all = seconds.parse::<i128>().ok()? * 1_000_000_000 + fraction.parse::<i128>().ok()?;
    Some(if is_negative { -all } else { all })
}

/// The failure of a member.
enum MemberFailure {
    /// The archive is damaged.
    Damaged(io::Error),
    /// The member has no place in the dataset.
    Refused(String),
    Because(Failure),
}

impl From<Failure> for MemberFailure {
    fn from(failure: Failure) -> Self {
        Self::Because(failure)
    }
}

impl MemberFailure {
    fn of(self, archive: &str, last: Option<&[u8]>, member: &[u8]) -> Failure {
        let name = shortened(member);
        match self {
            Self::Damaged(why) => {
                let why = io::Error::new(why.kind(), format!("its member {name}: {why}"));
                damaged(archive, last, &why)
            }
            Self::Refused(why) => Failure::usage(format!("{archive}: {name}: {why}")),
            Self::Because(failure) => failure,
        }
    }
}

/// The failure of an archive, with its last whole member.
fn damaged(archive: &str, last: Option<&[u8]>, why: &io::Error) -> Failure {
    let behind = match last {
        Some(last) => format!("behind its member {}", shortened(last)),
        None => "at its begin".to_owned(),
    };
    Failure::failed(format!("read the archive {archive} {behind}: {why}"))
}

/// The name of a member in a message.
fn shortened(member: &[u8]) -> String {
    let begin = member.get(..NAME_SHOWN);
    let name = shown(Path::new(OsStr::from_bytes(begin.unwrap_or(member))));
    format!("{name}{}", if begin.is_some() { "..." } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_archives_are_numbers_with_fractions() {
        for (text, nanos_) in [
            ("0", Some(0)),
            ("12.5", Some(12_500_000_000)),
            ("1.0000000019", Some(1_000_000_001)),
            ("-1.25", Some(-1_250_000_000)),
            ("", None),
            (".5", None),
            ("1e9", None),
            ("999999999999999999999", None),
        ] {
            assert_eq!(nanos(text.as_bytes()), nanos_, "{text}");
        }
    }

    #[test]
    fn an_archive_gives_its_folder_its_name() {
        for (path, name) in [
            ("a/train.tar", "train"),
            ("train-000.tar.gz", "train-000"),
            ("x.tgz", "x"),
            (".tar", ".tar"),
            ("plain", "plain"),
        ] {
            assert_eq!(stem(Path::new(path)), name.as_bytes());
        }
    }
}
