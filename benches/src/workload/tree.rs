//! Whole trees through `dlcmd`, beside tar and ls.
//!
//! Must hold: both sides handle the same warm tree. Both end with durable bytes, or with files in
//! the same tmpfs.

use std::fs::{File, create_dir, remove_dir_all, remove_file};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::measure::{Bar, Bench, Side, Stopwatch};
use crate::setup::{Server, Settings, Tree, dlcmd, finish, shell};

pub(super) fn put_small(settings: &Settings) -> Result<Vec<Bench>> {
    let tree = settings.small()?;
    let what = format!("{} files of 4 KiB, warm", tree.files());
    put(settings, &tree, "put-small", what, Bar::AtMostTimes(1.0))
}

pub(super) fn put_mixed(settings: &Settings) -> Result<Vec<Bench>> {
    let tree = settings.mixed()?;
    let what = format!("{} files of 20 to 500 KiB, warm", tree.files());
    put(settings, &tree, "put-mixed", what, Bar::AtMostTimes(1.2))
}

/// tar of a tree, with durable bytes.
const TAR: &str = "tar cf \"$1\" -C \"$2\" . && sync \"$1\"";

fn put(settings: &Settings, tree: &Tree, name: &str, what: String, bar: Bar) -> Result<Vec<Bench>> {
    let data = settings.on_disk(name);
    let server = Server::start(&data)?;
    let archive = settings.on_disk("archive.tar");
    let mut ours = Side::new("dlcmd put, durable");
    let mut theirs = Side::new("tar cf, then sync of the archive");
    let stopwatch = Stopwatch::new();
    // The first round only brings the source into the page cache.
    for round in 0..=settings.runs() {
        let mut put = dlcmd(&server)?;
        put.arg("put").arg(&tree.root).arg(format!("dl://run{round}"));
        // Earlier writes must not count on a side of the ratio.
        rustix::fs::sync();
        let (_, putting) = stopwatch.time(|| finish(&mut put))?;
        rustix::fs::sync();
        let mut tar = shell(TAR, [archive.as_path(), &tree.root]);
        let (_, packing) = stopwatch.time(|| finish(&mut tar))?;
        remove_file(&archive)?;
        if round > 0 {
            ours.samples.push(putting);
            theirs.samples.push(packing);
        }
        finish(dlcmd(&server)?.args(["delete-dataset", &format!("dl://run{round}")]))?;
    }
    drop(server);
    remove_dir_all(&data)?;
    let settings = format!("{what}; one dlserver on the same machine");
    Ok(vec![Bench { name: name.to_owned(), settings, unit: "s", ours, theirs, bar }])
}

/// Starts a server with the small tree in dataset `small`.
pub(super) fn with_small(settings: &Settings, name: &str) -> Result<(Server, Tree)> {
    let tree = settings.small()?;
    let server = Server::start(&settings.on_disk(name))?;
    finish(dlcmd(&server)?.arg("put").arg(&tree.root).arg("dl://small"))?;
    Ok((server, tree))
}

pub(super) fn get(settings: &Settings) -> Result<Vec<Bench>> {
    let (server, tree) = with_small(settings, "get")?;
    let archive = settings.on_disk("archive.tar");
    finish(&mut shell(TAR, [archive.as_path(), &tree.root]))?;
    let target = settings.in_memory("got");
    let mut ours = Side::new("dlcmd get");
    let mut theirs = Side::new("tar xf");
    let stopwatch = Stopwatch::new();
    for round in 0..=settings.runs() {
        let mut get = dlcmd(&server)?;
        get.args(["get", "dl://small"]).arg(&target);
        let (_, getting) = stopwatch.time(|| finish(&mut get))?;
        remove_dir_all(&target)?;
        create_dir(&target)?;
        let mut tar = Command::new("tar");
        tar.arg("xf").arg(&archive).arg("-C").arg(&target);
        let (_, unpacking) = stopwatch.time(|| finish(&mut tar))?;
        remove_dir_all(&target)?;
        if round > 0 {
            ours.samples.push(getting);
            theirs.samples.push(unpacking);
        }
    }
    remove_file(&archive)?;
    let settings = format!("{} files of 4 KiB into a tmpfs, sources warm", tree.files());
    let (name, bar) = ("get".to_owned(), Bar::AtMostTimes(1.0));
    Ok(vec![Bench { name, settings, unit: "s", ours, theirs, bar }])
}

pub(super) fn ls(settings: &Settings) -> Result<Vec<Bench>> {
    let (server, tree) = with_small(settings, "ls")?;
    let mut ours = Side::new("dlcmd ls -lR");
    let mut theirs = Side::new("ls -lR of the source tree, warm");
    let stopwatch = Stopwatch::new();
    let listing = settings.in_memory("listing");
    for round in 0..=settings.runs() {
        let mut listed = dlcmd(&server)?;
        listed.args(["ls", "-lR", "dl://small"]);
        let (_, listing_ours) = stopwatch.time(|| to_file(&mut listed, &listing))?;
        let mut listed = Command::new("ls");
        listed.arg("-lR").arg(&tree.root);
        let (_, listing_theirs) = stopwatch.time(|| to_file(&mut listed, &listing))?;
        if round > 0 {
            ours.samples.push(listing_ours);
            theirs.samples.push(listing_theirs);
        }
    }
    let settings = format!("{} files, into a file in a tmpfs", tree.files());
    let (name, bar) = ("ls".to_owned(), Bar::AtMost(0.5));
    Ok(vec![Bench { name, settings, unit: "s", ours, theirs, bar }])
}

fn to_file(command: &mut Command, file: &Path) -> Result<()> {
    let status = command.stdout(File::create(file)?).status();
    let status = status.with_context(|| format!("start {command:?}"))?;
    anyhow::ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
