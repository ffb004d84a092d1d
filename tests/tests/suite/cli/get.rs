//! Contract of `get` and `cat`.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_tests::program::{Process, run};
use dl_tests::{folder, skip};
use rustix::fs::{XattrFlags, setxattr};

use super::common::Scene;

#[test]
fn get_writes_a_dataset_a_folder_or_a_file() -> Result<()> {
    let scene = Scene::with(&[("a", "1"), ("d/b", ""), ("d/e/f", "three")])?;
    for missing in ["dl://ds/none", "dl://none"] {
        scene.dl(["get", missing, "got"])?.code(3)?;
        ensure!(!scene.path("got").exists(), "the target was made");
    }
    for (flag, address, source) in [
        ("--quiet", "dl://ds", "src"),
        ("--sync", "dl://ds", "src"),
        ("--quiet", "dl://ds/d", "src/d"),
    ] {
        scene.dl(["get", flag, address, "got"])?.code(0)?;
        folder::compare(&scene.path(source), &scene.path("got"))?;
        fs::remove_dir_all(scene.path("got"))?;
    }
    scene.dl(["get", "dl://ds/d/e/f", "file"])?.code(0)?;
    ensure!(fs::read(scene.path("file"))? == b"three", "as the target");
    Ok(())
}

#[test]
fn get_waits_for_a_file_that_is_still_to_be_put() -> Result<()> {
    let scene = Scene::with(&[("f", "new")])?;
    let late = scene.dl(["get", "dl://ds/none", "got", "--wait", "1s"])?.code(3)?;
    ensure!(late.stderr.contains("it is not there"), "{}", late.stderr);
    scene.dl(["get", "dl://ds/f", "got", "--wait", "soon"])?.code(2)?;
    scene.dl(["--task", "job", "get", "dl://ds/f", "got", "--wait", "1s"])?.code(2)?;
    ensure!(!scene.path("got").exists(), "the target was made");
    for source in ["dl://ds/later/f", "dl://new/f"] {
        let target = scene.path("got");
        let mut waiting = scene.command(["get", source, "--wait", "60s"])?;
        waiting.arg(&target);
        let mut waiting = Process::start(&mut waiting)?;
        std::thread::sleep(Duration::from_millis(300));
        ensure!(waiting.ended()?.is_none() && !target.exists(), "it does not wait");
        let folder = source.strip_suffix("/f").unwrap_or(source);
        scene.dl(["put", "src", folder])?.code(0)?;
        ensure!(waiting.wait(Duration::from_secs(20))? == 0, "{source} was not read");
        ensure!(fs::read(&target)? == b"new", "other bytes");
        fs::remove_file(target)?;
    }
    Ok(())
}

#[test]
fn get_replaces_no_pipe_link_or_device() -> Result<()> {
    let scene = Scene::with(&[("f", "new")])?;
    ensure!(Command::new("mkfifo").arg(scene.path("pipe")).status()?.success(), "mkfifo");
    symlink("nowhere", scene.path("link"))?;
    for (target, kind) in [("pipe", "a named pipe"), ("link", "a link"), ("/dev/null", "a device")]
    {
        let before = fs::symlink_metadata(scene.path(target))?;
        let refused = scene.dl(["get", "dl://ds/f", target])?.code(1)?;
        ensure!(refused.stderr.contains(&format!("{target} is {kind}")), "{}", refused.stderr);
        let after = fs::symlink_metadata(scene.path(target))?;
        ensure!((before.ino(), before.mode()) == (after.ino(), after.mode()), "{target}");
    }
    Ok(())
}

/// A default ACL in Linux's binary form: version 2, then tag, permissions and an empty id per
/// entry.
fn only_for_the_owner() -> Vec<u8> {
    let [owner, group, others] = [(0x01u16, 7u16), (0x04, 0), (0x20, 0)];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, permissions) in [owner, group, others] {
        acl.extend(tag.to_le_bytes());
        acl.extend(permissions.to_le_bytes());
        acl.extend(u32::MAX.to_le_bytes());
    }
    acl
}

/// Below such a folder the kernel ignores the umask for new files.
#[test]
fn get_keeps_permissions_below_a_folder_with_a_default_acl() -> Result<()> {
    let scene = Scene::with(&[("a", "1"), ("d/b", "2")])?;
    fs::create_dir(scene.path("got"))?;
    let (name, acl) = ("system.posix_acl_default", only_for_the_owner());
    if let Err(why) = setxattr(scene.path("got"), name, &acl, XattrFlags::empty()) {
        return skip(format_args!("no default ACL can be set here: {why}"));
    }
    let mut before = None;
    for _ in 0..2 {
        scene.dl(["get", "dl://ds", "got"])?.code(0)?;
        let mut inodes = Vec::new();
        for file in ["a", "d/b"] {
            let put = fs::metadata(scene.path("src").join(file))?;
            let got = fs::metadata(scene.path("got").join(file))?;
            ensure!(got.mode() & 0o777 == put.mode() & 0o777, "{file}: {:o}", got.mode());
            inodes.push(got.ino());
        }
        ensure!(before.replace(inodes.clone()).is_none_or(|before| before == inodes), "again");
    }
    Ok(())
}

#[test]
fn get_follows_no_link_out_of_the_target() -> Result<()> {
    let scene = Scene::with(&[("d/b", "2"), ("link", "3")])?;
    fs::create_dir_all(scene.path("got"))?;
    fs::create_dir_all(scene.path("elsewhere"))?;
    fs::write(scene.path("victim"), "as it was")?;
    symlink(scene.path("elsewhere"), scene.path("got/d"))?;
    symlink(scene.path("victim"), scene.path("got/link"))?;
    let got = scene.dl(["get", "dl://ds", "got"])?;
    ensure!(got.code == 4 && got.stderr.contains("got/link"), "{got:?}");
    ensure!(fs::read_dir(scene.path("elsewhere"))?.count() == 0, "written through a folder link");
    ensure!(fs::read(scene.path("victim"))? == b"as it was", "written through a file link");
    Ok(())
}

#[test]
fn get_through_a_link_writes_into_the_linked_folder() -> Result<()> {
    let scene = Scene::with(&[("f", "new")])?;
    fs::create_dir(scene.path("folder"))?;
    symlink("folder", scene.path("link"))?;
    scene.dl(["get", "dl://ds/f", "link"])?.code(0)?;
    ensure!(fs::read(scene.path("folder/f"))? == b"new", "in the folder");
    ensure!(fs::symlink_metadata(scene.path("link"))?.is_symlink(), "the link stays");
    Ok(())
}

#[test]
fn a_file_whose_address_ends_in_a_slash_is_said_to_be_a_file() -> Result<()> {
    let scene = Scene::with(&[("f", "1"), ("d/g", "2")])?;
    for arguments in [
        ["cat", "dl://ds/f/"].as_slice(),
        &["get", "dl://ds/f/", "got"],
        &["ls", "dl://ds/f/"],
        &["stat", "dl://ds/f/"],
        &["du", "dl://ds/f/"],
    ] {
        let refused = run(scene.command([])?.args(arguments))?.code(3)?;
        let says = "dl://ds/f/: it is a file; leave out the slash at the end";
        ensure!(refused.stderr.contains(says), "{}", refused.stderr);
    }
    let folder = scene.dl(["cat", "dl://ds/d/"])?.code(1)?;
    ensure!(folder.stderr.contains("it is a folder"), "{}", folder.stderr);
    Ok(())
}

#[test]
fn cat_writes_the_bytes_and_nothing_else() -> Result<()> {
    let scene = Scene::with(&[("a", "no newline"), ("b", "other")])?;
    let bytes = scene.dl(["cat", "dl://ds/a"])?.code(0)?;
    ensure!(bytes.stdout == b"no newline" && bytes.stderr.is_empty(), "{bytes:?}");
    scene.dl(["cat", "dl://ds/none"])?.code(3)?;
    Ok(())
}
