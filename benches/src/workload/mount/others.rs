//! Other mounts of an object store, on the same files in a bucket.
//!
//! Must hold: each mount begins with empty caches, and keeps names and bytes as long as its options
//! allow. A missing program is skipped, and the output names the program.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;
use dl_fuse::unmount_at;

use super::files::{Files, write_all};
use super::{READERS, Reads, SMALL, paths};
use crate::measure::{Bar, Bench, Side};
use crate::setup::{Process, Settings, bytes, finish};
use crate::workload::recover_s3::bucket::{BUCKET, Bucket};

const FILES: u32 = 1_000;

/// Folder of the plain files in the bucket.
const PLAIN: &str = "plain";

/// Lifetime of cached names, longer than the bench.
const LIFETIME: &str = "3600s";

/// Another mount: its program, its name for people, and its start.
type Other = (&'static str, &'static str, fn(&Site, &Path) -> Result<OtherMount>);

const OTHERS: [Other; 2] =
    [("juicefs", "JuiceFS", start_juicefs), ("rclone", "rclone", start_rclone)];

/// The bucket, and a folder for caches and mounts.
struct Site {
    bucket: Bucket,
    folder: PathBuf,
    files: u32,
}

/// A mount of another program; drop unmounts.
struct OtherMount {
    dir: PathBuf,
    /// Folder of the files in the mount.
    files: PathBuf,
    _process: Process,
}

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let count = settings.scaled(FILES);
    let files = Files::new(settings, "mount-others", count, SMALL)?;
    let root = files.folder.join("bucket");
    let bucket = Bucket::start(&root)?;
    write_all(&root.join(BUCKET).join(PLAIN), &paths(count), &bytes(SMALL))?;
    let site = Site { bucket, folder: files.folder.join("others"), files: count };
    let mut benches = Vec::new();
    for (program, name, start) in OTHERS {
        if !is_installed(program) {
            writeln!(std::io::stderr(), "skipped: no {program} here: `make mounts` installs it")?;
            continue;
        }
        benches.extend(beside(&files, &site, name, start)?);
    }
    Ok(benches)
}

fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The first and the second read of all files, once: another mount takes a minute.
fn beside(
    files: &Files,
    site: &Site,
    name: &str,
    start: fn(&Site, &Path) -> Result<OtherMount>,
) -> Result<Vec<Bench>> {
    let reads = files.reads(READERS);
    let ours = {
        let _mounted = files.place.mount()?;
        twice(&reads, files.place.dir())?
    };
    let folder = site.folder.join(name);
    fs::create_dir_all(&folder)?;
    let mounted = start(site, &folder)?;
    let theirs = twice(&reads, &mounted.files)?;
    let text = format!("{} files of 4 KiB in random order, {READERS} readers", site.files);
    let row = |(which, (ours, theirs))| {
        let side = |what: &str, rate| Side { what: what.to_owned(), samples: vec![rate] };
        let sides = [side("mount, chunks in the agent", ours), side(name, theirs)];
        Bench::new(format!("mount beside {name}, {which} read"), &text, "files/s", sides, Bar::None)
    };
    Ok(["first", "second"].into_iter().zip(ours.into_iter().zip(theirs)).map(row).collect())
}

fn twice(reads: &Reads<'_>, dir: &Path) -> Result<[f64; 2]> {
    Ok([reads.rate(dir)?, reads.rate(dir)?])
}

/// Copies the files into a new JuiceFS, and mounts it again with an empty cache.
fn start_juicefs(site: &Site, folder: &Path) -> Result<OtherMount> {
    let meta = format!("sqlite3://{}", folder.join("meta.db").display());
    let bucket = format!("http://{}/{BUCKET}", site.bucket.address);
    let mut format = Command::new("juicefs");
    format.args(["format", "--storage", "s3", "--bucket", &bucket]);
    format.args(["--access-key", "key", "--secret-key", "secret", &meta, "bench"]);
    finish(format.stderr(Stdio::null()))?;
    let start = |cache: &str| {
        let dir = folder.join("mnt");
        let mut command = Command::new("juicefs");
        command.args(["mount", "--no-usage-report", "--no-syslog", "--open-cache", LIFETIME]);
        command.args(["--attr-cache", LIFETIME, "--entry-cache", LIFETIME]);
        command.args(["--dir-entry-cache", LIFETIME, "--cache-dir"]).arg(folder.join(cache));
        OtherMount::start(command.arg(&meta).arg(&dir), dir, "")
    };
    let written = start("cache-of-writes")?;
    write_all(&written.files, &paths(site.files), &bytes(SMALL))?;
    drop(written);
    start("cache")
}

fn start_rclone(site: &Site, folder: &Path) -> Result<OtherMount> {
    let dir = folder.join("mnt");
    let mut command = Command::new("rclone");
    command.args(["mount", "--read-only", "--vfs-cache-mode", "full", "--s3-provider", "Other"]);
    command.args(["--dir-cache-time", LIFETIME, "--attr-timeout", LIFETIME]);
    command.args(["--s3-access-key-id", "key", "--s3-secret-access-key", "secret"]);
    command.arg("--s3-endpoint").arg(format!("http://{}", site.bucket.address));
    command.arg("--cache-dir").arg(folder.join("cache"));
    // A folder as the root would delay the start: rclone first asks for an object of its name.
    command.arg(format!(":s3:{BUCKET}")).arg(&dir);
    // The S3 client of rclone accepts no certificates of the machine, and needs none here.
    command.env("RCLONE_CONFIG", folder.join("rclone.conf")).env_remove("AWS_CA_BUNDLE");
    OtherMount::start(&mut command, dir, PLAIN)
}

impl OtherMount {
    /// Starts a mount with the files in `folder` of its root.
    fn start(command: &mut Command, dir: PathBuf, folder: &str) -> Result<Self> {
        fs::create_dir_all(&dir)?;
        let process = Process::listening(command, || is_mounted(&dir))?;
        let files = dir.join(folder);
        Ok(Self { dir, files, _process: process })
    }
}

impl Drop for OtherMount {
    fn drop(&mut self) {
        // The end of the bench must not fail.
        let _ = unmount_at(&self.dir, true);
    }
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1).map(Path::new) == Some(dir))
}
