//! Whole trees through `dlcmd`, beside tar and ls.
//!
//! Must hold: both sides handle the same warm tree. Both end with durable bytes, or with files in
//! the same tmpfs.

use std::fs::{File, create_dir, remove_dir_all, remove_file};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::measure::{Bar, Bench, in_turns, time};
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
    // The first round only brings the source into the page cache.
    let names = ["dlcmd put, durable", "tar cf, then sync of the archive"];
    let sides = in_turns(settings.runs(), names, |round| {
        let mut put = dlcmd(&server)?;
        put.arg("put").arg(&tree.root).arg(format!("dl://run{round}"));
        // Earlier writes must not count on a side of the ratio.
        rustix::fs::sync();
        let (_, putting) = time(|| finish(&mut put))?;
        rustix::fs::sync();
        let mut tar = shell(TAR, [archive.as_path(), &tree.root]);
        let (_, packing) = time(|| finish(&mut tar))?;
        remove_file(&archive)?;
        finish(dlcmd(&server)?.args(["delete-dataset", &format!("dl://run{round}")]))?;
        Ok([putting, packing])
    })?;
    drop(server);
    remove_dir_all(&data)?;
    let settings = format!("{what}; one dlserver on the same machine");
    Ok(vec![Bench::new(name, settings, "s", sides, bar)])
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
    let sides = in_turns(settings.runs(), ["dlcmd get", "tar xf"], |_| {
        let mut get = dlcmd(&server)?;
        get.args(["get", "dl://small"]).arg(&target);
        let (_, getting) = time(|| finish(&mut get))?;
        remove_dir_all(&target)?;
        create_dir(&target)?;
        let mut tar = Command::new("tar");
        tar.arg("xf").arg(&archive).arg("-C").arg(&target);
        let (_, unpacking) = time(|| finish(&mut tar))?;
        remove_dir_all(&target)?;
        Ok([getting, unpacking])
    })?;
    remove_file(&archive)?;
    let settings = format!("{} files of 4 KiB into a tmpfs, sources warm", tree.files());
    Ok(vec![Bench::new("get", settings, "s", sides, Bar::AtMostTimes(1.0))])
}

/// Members of an archive as files of a dataset, beside the way over the file system.
pub(super) fn unpack(settings: &Settings) -> Result<Vec<Bench>> {
    let tree = settings.small()?;
    let data = settings.on_disk("unpack");
    let server = Server::start(&data)?;
    let (archive, folder) = (settings.on_disk("archive.tar"), settings.on_disk("unpacked"));
    finish(&mut shell(TAR, [archive.as_path(), &tree.root]))?;
    let names = ["dlcmd put --unpack", "tar xf, then dlcmd put of the folder"];
    let sides = in_turns(settings.runs(), names, |round| {
        rustix::fs::sync();
        let mut unpack = dlcmd(&server)?;
        unpack.args(["put", "--unpack"]).arg(&archive).arg(format!("dl://one{round}"));
        let (_, unpacking) = time(|| finish(&mut unpack))?;
        create_dir(&folder)?;
        rustix::fs::sync();
        let mut tar = Command::new("tar");
        tar.arg("xf").arg(&archive).arg("-C").arg(&folder);
        let mut put = dlcmd(&server)?;
        put.arg("put").arg(&folder).arg(format!("dl://two{round}"));
        let (_, both) = time(|| finish(&mut tar).and_then(|()| finish(&mut put)))?;
        remove_dir_all(&folder)?;
        for name in ["one", "two"] {
            finish(dlcmd(&server)?.args(["delete-dataset", &format!("dl://{name}{round}")]))?;
        }
        Ok([unpacking, both])
    })?;
    drop(server);
    remove_file(&archive)?;
    remove_dir_all(&data)?;
    let settings =
        format!("{} members of 4 KiB, the archive warm, files on the disk", tree.files());
    Ok(vec![Bench::new("unpack", settings, "s", sides, Bar::AtMostTimes(1.2))])
}

pub(super) fn ls(settings: &Settings) -> Result<Vec<Bench>> {
    let (server, tree) = with_small(settings, "ls")?;
    let listing = settings.in_memory("listing");
    let names = ["dlcmd ls -lR", "ls -lR of the source tree, warm"];
    let sides = in_turns(settings.runs(), names, |_| {
        let mut ours = dlcmd(&server)?;
        ours.args(["ls", "-lR", "dl://small"]);
        let mut theirs = Command::new("ls");
        theirs.arg("-lR").arg(&tree.root);
        let (_, listing_ours) = time(|| to_file(&mut ours, &listing))?;
        let (_, listing_theirs) = time(|| to_file(&mut theirs, &listing))?;
        Ok([listing_ours, listing_theirs])
    })?;
    let settings = format!("{} files, into a file in a tmpfs", tree.files());
    Ok(vec![Bench::new("ls", settings, "s", sides, Bar::AtMost(0.5))])
}

fn to_file(command: &mut Command, file: &Path) -> Result<()> {
    let status = command.stdout(File::create(file)?).status();
    let status = status.with_context(|| format!("start {command:?}"))?;
    anyhow::ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
