//! Contract of `get` and `cat`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_tests::folder;
use dl_tests::program::{Process, run};
use dl_tests::skip;
use rustix::fs::{XattrFlags, setxattr};
use rustix::process::Signal;

use super::common::Scene;

#[test]
fn put_then_get_makes_diff_silent() -> Result<()> {
    let scene = Scene::with(&[("a", "1"), ("d/b", ""), ("d/e/f", "three")])?;
    scene.dl(["get", "dl://ds", "got"])?.code(0)?;
    let mut diff = Command::new("diff");
    diff.arg("-r").arg(scene.path("src")).arg(scene.path("got"));
    let diff = run(&mut diff)?.code(0)?;
    ensure!(diff.stdout.is_empty(), "{}", diff.text());
    folder::compare(&scene.path("src"), &scene.path("got"))
}

#[test]
fn get_of_a_folder_writes_its_contents_into_the_target() -> Result<()> {
    let scene = Scene::with(&[("a", "1"), ("d/b", "2"), ("d/e/f", "3")])?;
    scene.dl(["get", "dl://ds/d", "got"])?.code(0)?;
    folder::compare(&scene.path("src/d"), &scene.path("got"))
}

#[test]
fn get_of_a_file_writes_a_file_or_into_a_folder() -> Result<()> {
    let scene = Scene::with(&[("d/b", "2")])?;
    scene.dl(["get", "dl://ds/d/b", "file"])?.code(0)?;
    ensure!(fs::read(scene.path("file"))? == b"2", "as the target");
    fs::create_dir(scene.path("folder"))?;
    scene.dl(["get", "dl://ds/d/b", "folder"])?.code(0)?;
    ensure!(fs::read(scene.path("folder/b"))? == b"2", "in the target");
    Ok(())
}

#[test]
fn get_keeps_times_and_permissions_without_special_bits() -> Result<()> {
    let scene = Scene::new()?;
    scene.write("a", "1")?;
    fs::set_permissions(scene.path("src/a"), fs::Permissions::from_mode(0o7751))?;
    scene.dl(["put", "src", "dl://ds"])?.code(0)?;
    scene.dl(["get", "dl://ds", "got"])?.code(0)?;
    let (put, got) = (fs::metadata(scene.path("src/a"))?, fs::metadata(scene.path("got/a"))?);
    ensure!(got.mode() & 0o7777 == 0o751, "{:o}", got.mode());
    ensure!((put.mtime(), put.mtime_nsec()) == (got.mtime(), got.mtime_nsec()), "times");
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
fn get_replaces_only_files_with_differences() -> Result<()> {
    let scene = Scene::with(&[("a", "1"), ("b", "2")])?;
    scene.dl(["get", "dl://ds", "got"])?.code(0)?;
    let untouched = fs::metadata(scene.path("got/a"))?.ino();
    fs::write(scene.path("got/b"), "changed here")?;
    fs::write(scene.path("got/own"), "of this machine")?;
    scene.dl(["get", "dl://ds", "got"])?.code(0)?;
    ensure!(fs::read(scene.path("got/b"))? == b"2", "replaced");
    ensure!(fs::metadata(scene.path("got/a"))?.ino() == untouched, "a was written again");
    ensure!(fs::read(scene.path("got/own"))? == b"of this machine", "own files stay");
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
fn get_replaces_no_pipe_or_link_and_names_it() -> Result<()> {
    let scene = Scene::with(&[("f", "new")])?;
    fs::create_dir(scene.path("folder"))?;
    fs::write(scene.path("real"), "as it was")?;
    for place in ["pipe", "folder/f"] {
        ensure!(Command::new("mkfifo").arg(scene.path(place)).status()?.success(), "mkfifo");
    }
    symlink("real", scene.path("link"))?;
    symlink("nowhere", scene.path("dangling"))?;
    symlink("/dev/null", scene.path("device"))?;
    for (target, named) in [
        ("pipe", "pipe is a named pipe"),
        ("folder", "folder/f is a named pipe"),
        ("link", "link is a link"),
        ("dangling", "dangling is a link"),
        ("device", "device is a link"),
        ("/dev/null", "/dev/null is a device"),
    ] {
        let before = fs::symlink_metadata(scene.path(target))?;
        let refused = scene.dl(["get", "dl://ds/f", target])?.code(1)?;
        ensure!(refused.stderr.contains(named), "{}", refused.stderr);
        let after = fs::symlink_metadata(scene.path(target))?;
        ensure!((before.ino(), before.mode()) == (after.ino(), after.mode()), "{target}");
    }
    ensure!(fs::read(scene.path("real"))? == b"as it was", "written through a link");
    let whole = scene.dl(["get", "dl://ds", "folder"])?.code(1)?;
    ensure!(
        whole.stderr.contains("folder/f") && whole.stderr.contains("a named pipe"),
        "{whole:?}"
    );
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
fn get_of_a_missing_path_ends_with_3_and_creates_nothing() -> Result<()> {
    let scene = Scene::with(&[("a", "1")])?;
    scene.dl(["get", "dl://ds/none", "got"])?.code(3)?;
    scene.dl(["get", "dl://none", "got"])?.code(3)?;
    ensure!(!scene.path("got").exists(), "the target was made");
    Ok(())
}

#[test]
fn get_with_sync_gives_the_same_files() -> Result<()> {
    let scene = Scene::with(&[("a", "1"), ("d/b", "2")])?;
    scene.dl(["get", "--sync", "dl://ds", "got"])?.code(0)?;
    folder::compare(&scene.path("src"), &scene.path("got"))
}

#[test]
fn cat_writes_the_bytes_and_nothing_else() -> Result<()> {
    let scene = Scene::with(&[("a", "no newline"), ("b", "other")])?;
    let bytes = scene.dl(["cat", "dl://ds/a"])?.code(0)?;
    ensure!(bytes.stdout == b"no newline" && bytes.stderr.is_empty(), "{bytes:?}");
    scene.dl(["cat", "dl://ds/none"])?.code(3)?;
    Ok(())
}

#[test]
fn get_of_a_dataset_deleted_meanwhile_ends_with_one_line() -> Result<()> {
    let scene = Scene::new()?;
    for number in 0..6_000 {
        folder::write(&scene.path("src"), format!("{:02}/{number}", number / 100), [7; 2_000])?;
    }
    scene.dl(["put", "src", "dl://ds"])?.code(0)?;
    let mut get = scene.command(["get", "--threads", "1", "dl://ds", "got"])?;
    let told = scene.path("told");
    get.stdout(Stdio::null()).stderr(fs::File::create(&told)?);
    let mut get = Process::start(&mut get)?;
    while !scene.path("got/00").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    get.signal(Signal::STOP)?;
    scene.dl(["delete-dataset", "dl://ds"])?.code(0)?;
    get.signal(Signal::CONT)?;
    let code = get.wait(Duration::from_secs(60))?;
    let told = fs::read_to_string(told)?;
    ensure!(code == 3, "ended with {code}: {told}");
    ensure!(told.contains("it was deleted") && told.lines().count() < 5, "{told}");
    Ok(())
}
