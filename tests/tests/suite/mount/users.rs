//! Users without rights, other users, and containers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::program::run;
use dl_tests::{folder, skip, soon};

use super::{Scene, fill_mixed, no_mount};

/// The user of tests without rights.
const NOBODY: &str = "65534";

/// Runs a command as a user without rights.
fn as_user(user: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
    command
}

/// Lets all users enter the folder of a scene.
fn open_folder(scene: &Scene) -> Result<()> {
    Ok(fs::set_permissions(scene.folder.path(), fs::Permissions::from_mode(0o755))?)
}

#[test]
fn other_users_enter_only_when_allowed() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(|root| {
        folder::write(root, "open", b"text")?;
        folder::write(root, "closed", b"text")?;
        let closed = fs::Permissions::from_mode(0o600);
        Ok(fs::set_permissions(root.join("closed"), closed)?)
    })?;
    open_folder(&scene)?;
    let read = |name: &str| -> Result<bool> {
        let mut other = as_user(NOBODY);
        Ok(other.arg("cat").arg(scene.mnt().join(name)).output()?.status.success())
    };
    for (options, expected) in [
        ("ro", [false, false]),
        ("allow_other", [true, false]),
        ("allow_other,uid=65534", [true, true]),
        ("allow_other,umask=077", [false, false]),
    ] {
        scene.mount("dl://ds", &["-o", options])?;
        ensure!([read("open")?, read("closed")?] == expected, "{options}");
        scene.umount()?;
    }
    Ok(())
}

#[test]
fn users_read_at_once() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    open_folder(&scene)?;
    scene.mount("dl://ds", &["-o", "allow_other"])?;
    let sums = "find . -type f -perm -o=r -print0 | sort -z | xargs -0 md5sum | md5sum";
    let mut local = Command::new("sh");
    let wanted = run(local.args(["-c", sums]).current_dir(scene.path("src")))?.code(0)?.text();
    let users: Vec<_> = (2001..2009)
        .map(|user: u32| {
            let mut command = as_user(&user.to_string());
            command.args(["sh", "-c", sums]).current_dir(scene.mnt());
            Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
        })
        .collect::<Result<_>>()?;
    scene.kill("server")?;
    for user in users {
        let ended = user.wait_with_output()?;
        ensure!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
        ensure!(ended.stdout == wanted.as_bytes(), "{wanted}: {ended:?}");
    }
    scene.umount()
}

/// Opens the device and the folders to the user `NOBODY`; a machine may keep the device to root.
const PREPARE: &str = "mknod \"$folder/fuse\" c 10 229; chmod 666 \"$folder/fuse\"; \
    mount --bind \"$folder/fuse\" /dev/fuse; rm -r \"$DIESEL_RUNTIME_DIR\"; \
    cp \"$dlcmd\" \"$folder/dlcmd\"; dlcmd=$folder/dlcmd; \
    mkdir -m 700 \"$DIESEL_RUNTIME_DIR\" \"$XDG_CACHE_HOME\"; \
    chown 65534 \"$DIESEL_RUNTIME_DIR\" \"$XDG_CACHE_HOME\" \"$mnt\"; \
    exec setpriv --reuid 65534 --regid 65534 --clear-groups ";

/// Mounts, reads and unmounts.
const USE: &str = "sh -ec '\
    \"$dlcmd\" mount dl://ds \"$mnt\" --task job; md5sum < \"$mnt/large\"; \
    \"$dlcmd\" mounts \"$mnt\" | head -n 1; \"$dlcmd\" umount \"$mnt\"; \
    \"$dlcmd\" agent stop --task job; ls -A \"$mnt\"'";

/// Mounts as the user `NOBODY`, through a further program.
fn mounts_through(program: &str) -> Result<()> {
    let scene = Scene::new(fill_mixed)?;
    open_folder(&scene)?;
    let said = scene.in_namespace(&format!("{PREPARE} {program} {USE}"))?;
    let sum = run(Command::new("md5sum").arg(scene.path("src/large")))?.code(0)?.text();
    let sum = sum.split_whitespace().next().unwrap_or_default();
    let wanted = format!("{sum}  -\ndl://ds at {}: held\n", scene.mnt().display());
    ensure!(said == wanted, "{said}");
    Ok(())
}

fn ends_well(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|ended| ended.status.success())
}

#[test]
fn a_user_without_rights_mounts_with_fusermount3() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    if !ends_well("fusermount3", &["-V"]) {
        return skip("there is no fusermount3");
    }
    mounts_through("")
}

#[test]
fn a_user_namespace_mounts_without_fusermount3() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let unshare =
        ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "unshare", "-Urm", "true"];
    if !ends_well("setpriv", &unshare) {
        return skip("a user without rights can't make a user namespace here");
    }
    // An empty file stands in the place of the helper.
    mounts_through(
        "unshare -Urm sh -ec 'for helper in $(command -v fusermount3); do \
         mount --bind /dev/null \"$(realpath \"$helper\")\"; done; exec \"$@\"' container ",
    )
}

/// Binds the mount elsewhere, as a container does, and reads past the page cache.
const CONTAINER: &str = "mkdir \"$folder/$name\"; mount --bind \"$mnt\" \"$folder/$name\"; \
    umount \"$mnt\"; for round in $(seq 40); do \
    dd if=\"$folder/$name/large\" iflag=direct bs=128k status=none | md5sum; \
    touch \"$folder/$name-reads\"; sleep 0.03; done | sort | uniq -c";

fn read_in_container(scene: &Scene, name: &str) -> Result<()> {
    let said = scene.in_namespace(&format!("name={name}; {CONTAINER}"))?;
    let sum = run(Command::new("md5sum").arg(scene.path("src/large")))?.code(0)?.text();
    let sum = sum.split_whitespace().next().unwrap_or_default();
    ensure!(said.trim() == format!("40 {sum}  -"), "{said}");
    Ok(())
}

/// Keeps S-82.
#[test]
fn a_container_reads_on_over_kills_and_starts_again() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    scene.mount("dl://ds", &[])?;
    thread::scope(|scope| {
        let first = scope.spawn(|| read_in_container(&scene, "first"));
        soon("the container reads", || Ok(scene.path("first-reads").exists()))?;
        let mut kills = 0;
        while !first.is_finished() {
            scene.kill("server")?;
            kills += 1;
            soon("the next server runs", || Ok(scene.process("server")?.is_some()))?;
            thread::sleep(Duration::from_millis(200));
        }
        first.join().ok().context("no panic")??;
        ensure!(kills > 2, "only {kills} kills");
        read_in_container(&scene, "second")
    })?;
    ensure!(is_empty(&scene.path("first"))?, "the container left its bind mount");
    folder::compare(&scene.path("src"), &scene.mnt())?;
    scene.umount()
}

fn is_empty(folder: &Path) -> Result<bool> {
    Ok(fs::read_dir(folder)?.next().is_none())
}
