//! Mounts that switch to a newer version, or show an old version.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use dl_tests::program::run;
use dl_tests::{folder, skip, soon};
use rustix::io::Errno;
use serde_json::Value;

use super::{Scene, no_mount};

/// Longer than the readahead of the kernel, so most of the file is not in the page cache after a read.
const LONG: usize = 3 << 20;

/// A dataset with `changing`, `gone`, and a long file in a folder.
fn first_version(root: &Path) -> Result<()> {
    folder::write(root, "changing", b"one")?;
    folder::write(root, "gone", b"gone")?;
    folder::write(root, "sub/long", vec![1; LONG])
}

/// Puts the next version: all of `first_version` is different.
fn put_next(scene: &Scene, version: u8) -> Result<()> {
    let source = scene.path(&format!("next{version}"));
    folder::write(&source, "changing", vec![version; 1_000 * usize::from(version)])?;
    folder::write(&source, format!("new{version}"), [version])?;
    folder::write(&source, "sub/long", vec![version; LONG])?;
    run(scene.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    if version == 2 {
        run(scene.dlcmd()?.args(["rm", "dl://ds/gone"]))?.code(0)?;
    }
    Ok(())
}

/// Checks that the mount shows the version put by `put_next`, and nothing of the first version.
fn check_shown(root: &Path, version: u8) -> Result<()> {
    let changing = fs::read(root.join("changing"))?;
    ensure!(changing == vec![version; 1_000 * usize::from(version)], "{} bytes", changing.len());
    ensure!(fs::read(root.join(format!("new{version}")))? == [version]);
    ensure!(fs::read(root.join("sub/long"))? == vec![version; LONG], "the long file");
    let names: Vec<_> =
        fs::read_dir(root)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    ensure!(!root.join("gone").exists() && !names.iter().any(|name| name == "gone"), "{names:?}");
    Ok(())
}

/// A byte of a file.
fn byte_at(file: &File, offset: usize) -> io::Result<u8> {
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset as u64)?;
    Ok(byte[0])
}

/// Keeps S-84 and S-85.
#[test]
fn a_refreshed_mount_shows_the_newest_and_open_files_stay() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(first_version)?;
    scene.mount("dl://ds", &[])?;
    let root = scene.mnt();
    let refresh = || run(scene.dlcmd()?.args(["mount", "--refresh"]).arg(&root));
    ensure!(fs::read(root.join("changing"))? == b"one" && root.join("gone").exists());
    ensure!(!root.join("new2").exists(), "the kernel keeps the absence");
    refresh()?.code(0)?;
    let open = File::open(root.join("sub/long"))?;
    let inode = open.metadata()?.ino();
    put_next(&scene, 2)?;
    ensure!(fs::read(root.join("changing"))? == b"one", "a mount stays at its version");
    let before = scene.status()?["version"].clone();
    let told = refresh()?.code(0)?;
    let after = scene.status()?["version"].clone();
    ensure!(before != after, "{before} {told:?}");
    ensure!(told.stderr.contains(after.as_str().context("a version")?), "{told:?}");
    check_shown(&root, 2)?;
    ensure!(
        byte_at(&open, LONG - 1)? == 1 && open.metadata()?.ino() == inode,
        "an open file stays"
    );
    // The next server serves both versions.
    scene.kill("server")?;
    check_shown(&root, 2)?;
    let open_second = File::open(root.join("sub/long"))?;
    put_next(&scene, 3)?;
    refresh()?.code(0)?;
    check_shown(&root, 3)?;
    ensure!(byte_at(&open_second, LONG - 1)? == 2, "the version before is served");
    let stale = byte_at(&open, 0).map_err(|why| why.raw_os_error());
    ensure!(stale == Err(Some(Errno::STALE.raw_os_error())), "two versions are served: {stale:?}");
    drop((open, open_second));
    scene.umount()
}

/// Keeps S-84.
#[test]
fn a_following_mount_shows_versions_and_closes_old_ones() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(first_version)?;
    let mut mount = scene.dlcmd()?;
    run(mount.args(["mount", "--follow=1s", "dl://ds"]).arg(scene.mnt()))?.code(0)?;
    for version in 2..6 {
        put_next(&scene, version)?;
        soon("the mount follows", || Ok(check_shown(&scene.mnt(), version).is_ok()))?;
    }
    let task = scene.status()?["task"].as_str().context("a task")?.to_owned();
    let versions = || -> Result<usize> {
        let mut command = scene.dlcmd()?;
        let status = run(command.args(["--json", "--task", &task, "agent", "status"]))?.code(0)?;
        let status: Value = serde_json::from_str(status.text().trim())?;
        Ok(status["datasets"].as_array().context("datasets")?.len())
    };
    soon("the agent closes old versions", || Ok(versions()? == 1))?;
    check_shown(&scene.mnt(), 5)?;
    scene.umount()
}

#[test]
fn an_old_version_is_mounted_by_its_name() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(first_version)?;
    scene.mount("dl://ds", &[])?;
    let version = scene.status()?["version"].as_str().context("a version")?.to_owned();
    put_next(&scene, 2)?;
    let second = scene.path("second");
    fs::create_dir(&second)?;
    let mut mount = scene.dlcmd()?;
    run(mount.args(["mount", "--at", &version, "dl://ds"]).arg(&second))?.code(0)?;
    ensure!(fs::read(second.join("changing"))? == b"one" && second.join("gone").exists());
    run(scene.dlcmd()?.arg("umount").arg(&second))?.code(0)?;
    let wrong = run(scene.dlcmd()?.args(["mount", "--at", "today", "dl://ds"]).arg(&second))?;
    ensure!(wrong.code(2)?.stderr.contains("--at"));
    scene.umount()
}
