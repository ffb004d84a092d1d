//! The commands around a mount: exit codes, texts, and what they leave.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dl_tests::program::run;
use dl_tests::{folder, skip, soon};

use super::{Scene, fill_mixed, no_mount};

#[test]
fn a_mount_that_can_not_be_says_why_and_leaves_nothing() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    fs::create_dir(scene.path("full"))?;
    fs::write(scene.path("full/file"), "x")?;
    let (mnt, full, missing) = (scene.mnt(), scene.path("full"), scene.path("missing"));
    for (code, address, dir, options, text) in [
        (3, "dl://other", &mnt, "ro", "other"),
        (3, "dl://ds/nothing", &mnt, "ro", "there is no such folder"),
        (3, "dl://ds/empty", &mnt, "ro", "there is no such folder"),
        (4, "dl://ds", &full, "ro", "the folder is not empty; -o nonempty"),
        (1, "dl://ds", &missing, "ro", "No such file or directory"),
        (2, "dl://ds", &mnt, "speed=9", "there is no such option"),
        (2, "dl://ds", &mnt, "rw", "a mount only reads"),
        (5, "dl://ds", &mnt, "server=127.0.0.1:9", "refused"),
    ] {
        let mut command = dl_tests::program::dlcmd()?;
        if code != 5 {
            command.args(["--server", &scene.address]);
        }
        command
            .env("DIESEL_RUNTIME_DIR", scene.path("run"))
            .env("XDG_CACHE_HOME", scene.path("cache"));
        command.args(["mount", address]).arg(dir).args(["-o", options]);
        let ended = run(&mut command)?.code(code)?;
        ensure!(ended.stderr.contains(text), "{address}: {ended:?}");
        ensure!(ended.stderr.lines().count() == 1, "{address}: {ended:?}");
    }
    let listed = run(scene.dlcmd()?.args(["--json", "mounts"]))?.code(0)?;
    ensure!(!listed.text().contains(&*mnt.to_string_lossy()), "{listed:?}");
    let ended = run(scene.dlcmd()?.arg("umount").arg(&mnt))?.code(3)?;
    ensure!(ended.stderr.contains("no dataset is mounted there"), "{ended:?}");
    soon("no process of a mount is left", || Ok(processes_of(&scene)?.is_empty()))
}

/// The processes of mounts below the folder of a scene.
fn processes_of(scene: &Scene) -> Result<Vec<String>> {
    let mnt = scene.mnt().to_string_lossy().into_owned();
    let processes = fs::read_dir("/proc")?.filter_map(|process| {
        let line = fs::read_to_string(process.ok()?.path().join("cmdline")).ok()?;
        (line.contains(&mnt) && line.contains("--role")).then_some(line)
    });
    Ok(processes.collect())
}

/// Keeps S-82.
#[test]
fn a_mount_is_listed_and_ends_with_all_of_its_processes() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    scene.mount("dl://ds", &[])?;
    let status = scene.status()?;
    ensure!(status["dataset"] == "dl://ds" && status["state"] == "held", "{status}");
    ensure!(processes_of(&scene)?.len() == 2, "{:?}", processes_of(&scene)?);
    let again = scene.dlcmd()?.args(["mount", "dl://ds"]).arg(scene.mnt()).output()?;
    let text = String::from_utf8_lossy(&again.stderr).into_owned();
    ensure!(
        again.status.success() && text.contains("mounted at") && text.contains("already"),
        "{text}"
    );
    let mut other = scene.dlcmd()?;
    let other = run(other.args(["mount", "dl://ds/sub"]).arg(scene.mnt()))?.code(1)?;
    ensure!(other.stderr.contains("dl://ds is mounted there; dlcmd umount"), "{other:?}");
    let open = File::open(scene.mnt().join("large"))?;
    let busy = run(scene.dlcmd()?.arg("umount").arg(scene.mnt()))?.code(1)?;
    let name = fs::read_to_string("/proc/self/comm")?;
    let named = format!("in use by {} ({})", name.trim(), std::process::id());
    ensure!(busy.stderr.contains(&named), "{named} in {busy:?}");
    drop(open);
    scene.umount()?;
    ensure!(processes_of(&scene)?.is_empty(), "{:?}", processes_of(&scene)?);
    let left = fs::read_dir(scene.path("run"))?.map(|entry| Ok(entry?.file_name().into_string()));
    let left = left.collect::<Result<Vec<_>>>()?;
    ensure!(!left.iter().flatten().any(|name| name.starts_with("mount-")), "{left:?}");
    // A value may be the name of the command.
    let mut same = scene.dlcmd()?;
    run(same.args(["--task", "mount", "mount", "dl://ds"]).arg(scene.mnt()))?.code(0)?;
    scene.umount()?;
    run(scene.dlcmd()?.args(["--task", "mount", "agent", "stop"]))?.code(0)?;
    // umount(8) and SIGTERM end a mount, too.
    scene.mount("dl://ds", &[])?;
    run(Command::new("umount").arg(scene.mnt()))?.code(0)?;
    soon("umount(8) ends the processes", || Ok(processes_of(&scene)?.is_empty()))?;
    scene.mount("dl://ds", &[])?;
    let holder = scene.process("holder")?.map(|pid| pid.as_raw_nonzero().get()).unwrap_or(0);
    run(Command::new("kill").arg(holder.to_string()))?.code(0)?;
    soon("SIGTERM ends the processes", || Ok(processes_of(&scene)?.is_empty()))?;
    let listed = run(scene.dlcmd()?.args(["--json", "mounts"]))?.code(0)?;
    ensure!(!listed.text().contains(&*scene.mnt().to_string_lossy()), "{listed:?}");
    Ok(())
}

/// Mounts as a CSI driver does, and gives the connection to a holder without rights on the place.
const OUTSIDE: &str = r#"
import ctypes, os, sys
dir, arguments = sys.argv[1], sys.argv[2:]
fd = os.open("/dev/fuse", os.O_RDWR)
os.set_inheritable(fd, True)
options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"dl://ds", dir.encode(), b"fuse.diesel", 7, options.encode()) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(arguments[0], arguments + [f"/dev/fd/{fd}"])
"#;

#[test]
fn a_connection_made_by_another_process_is_served() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    let dlcmd = scene.dlcmd()?;
    let mut outside = Command::new("python3");
    outside.args(["-c", OUTSIDE]).arg(scene.mnt()).arg(dlcmd.get_program()).args(dlcmd.get_args());
    outside.args(["--task", "job", "mount", "dl://ds"]);
    for (name, value) in dlcmd.get_envs() {
        value.map(|value| outside.env(name, value));
    }
    run(&mut outside)?.code(0)?;
    folder::compare(&scene.path("src"), &scene.mnt())?;
    run(Command::new("umount").arg(scene.mnt()))?.code(0)?;
    soon("the processes end", || {
        let processes = fs::read_dir("/proc")?
            .filter_map(|process| fs::read_to_string(process.ok()?.path().join("cmdline")).ok());
        let address = scene.address.clone();
        Ok(!processes.into_iter().any(|line| line.contains("--role") && line.contains(&address)))
    })
}

#[test]
fn mount_and_fstab_mount_a_dataset() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    // The folder of the helpers of mount(8), which this test must not change.
    let script = "mount -t tmpfs tmpfs /usr/sbin; ln -s \"$dlcmd\" /usr/sbin/mount.diesel; \
        echo \"dl://ds $mnt diesel ro,_netdev,noauto,task=job,umask=027 0 0\" > \"$folder/fstab\"; \
        mount -t diesel dl://ds \"$mnt\" -o ro,task=job; cat \"$mnt/empty\"; ls \"$mnt\" | wc -l; \
        kill -HUP $(pgrep -f -- \"$mnt.*--role hold\"); sleep 2; cat \"$mnt/empty\"; \
        umount \"$mnt\"; mount -T \"$folder/fstab\" \"$mnt\"; stat -c %a \"$mnt/empty\"; \
        umount \"$mnt\"; ! mount -t diesel dl://ds \"$mnt\" -o speed=9 2> /dev/null";
    let said = scene.in_namespace(script)?;
    let entries = fs::read_dir(scene.path("src"))?.count();
    ensure!(said == format!("{entries}\n640\n"), "{said}");
    Ok(())
}

#[test]
fn an_unmount_names_the_namespace_that_keeps_the_mount() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    scene.mount("dl://ds", &[])?;
    let holder = scene.process("holder")?.context("a holder runs")?;
    let keep = ["--mount", "--propagation", "private", "sleep", "60"];
    let mut keeper = Command::new("unshare").args(keep).spawn()?;
    let keeps = format!("sleep ({})", keeper.id());
    soon("the mount is in a second namespace", || {
        Ok(fs::read_to_string(format!("/proc/{}/comm", keeper.id()))? == "sleep\n")
    })?;
    let said = run(scene.dlcmd()?.arg("umount").arg(scene.mnt()))?.code(0)?;
    keeper.kill()?;
    keeper.wait()?;
    ensure!(said.stderr.contains(&keeps), "{said:?}");
    soon("the holder ends with the namespace", || {
        Ok(rustix::process::test_kill_process(holder).is_err())
    })
}

#[test]
fn noexec_holds_and_another_place_of_a_mount_ends_at_once() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(|root| {
        folder::write(root, "program", b"#!/bin/sh\n")?;
        Ok(fs::set_permissions(root.join("program"), fs::Permissions::from_mode(0o755))?)
    })?;
    scene.mount("dl://ds", &[])?;
    ensure!(Command::new(scene.mnt().join("program")).status()?.success());
    let second = scene.path("second");
    fs::create_dir(&second)?;
    run(Command::new("mount").arg("--bind").arg(scene.mnt()).arg(&second))?.code(0)?;
    let began = dl_runtime::since_boot();
    run(scene.dlcmd()?.arg("umount").arg(&second))?.code(0)?;
    let took = dl_runtime::since_boot().saturating_sub(began);
    ensure!(took < std::time::Duration::from_secs(5), "{took:?}");
    ensure!(scene.mnt().join("program").exists(), "the mount goes on");
    scene.umount()?;
    scene.mount("dl://ds", &["-o", "noexec"])?;
    let refused = Command::new(scene.mnt().join("program")).status().map_err(|why| why.kind());
    ensure!(refused.err() == Some(std::io::ErrorKind::PermissionDenied));
    scene.umount()
}
