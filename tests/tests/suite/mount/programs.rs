//! Programs that nobody here wrote see the same in a mount as in a local copy.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, ensure};
use dl_tests::skip;

use super::{Scene, fill_mixed, no_mount};

/// Scripts whose output must be the same in both folders.
const SCRIPTS: [(&str, &str); 13] = [
    ("find", "find . -type f -printf '%P %s %m %T@\\n' | sort"),
    ("find folders", "find . -type d -printf '%P\\n' | sort"),
    (
        "ls",
        "ls -laR --time-style=full-iso | grep -v '^total' | grep -v '^d' | awk '{ $2 = \"\"; print }'",
    ),
    ("ls of links and inodes", "ls -1 | wc -l; find . -type f -printf '%n %y\\n' | sort | uniq -c"),
    ("md5sum", "find . -type f -print0 | sort -z | xargs -0 md5sum"),
    ("tar", "tar --sort=name --owner=0 --group=0 --mtime=@0 -cf - . | md5sum"),
    ("grep", "grep -rac 'a' . | sort"),
    ("du", "find . -type f -print0 | du --apparent-size -bc --files0-from=- | tail -1"),
    ("dd", "dd if=large bs=4099 skip=1000 count=57 status=none | md5sum"),
    ("tail", "tail -c 12345 large | md5sum; head -c 5000000 large | md5sum"),
    (
        "python mmap",
        "python3 -c 'import mmap,hashlib,os; m=mmap.mmap(os.open(\"large\",0),0,prot=mmap.PROT_READ); print(hashlib.md5(m[3000000:9000000]).hexdigest(), len(m))'",
    ),
    (
        "python walk",
        "python3 -c 'import os; print(sorted((d, sorted(n), sorted(f)) for d, n, f in os.walk(b\".\")))'",
    ),
    (
        "sendfile",
        "python3 -c 'import os; i=os.open(\"large\",os.O_RDONLY); r,w=os.pipe(); print(os.sendfile(w,i,1000000,60000)); print(hash(os.read(r,60000)) is not None, os.pread(i,10,4194300))'",
    ),
];

/// Keeps S-81.
#[test]
fn programs_read_a_mount_as_a_local_copy() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    scene.mount("dl://ds", &[])?;
    for (name, script) in SCRIPTS {
        let output = |folder| -> Result<String> {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).current_dir(scene.path(folder));
            shell.env("PYTHONDONTWRITEBYTECODE", "1").env("LC_ALL", "C").env("PYTHONHASHSEED", "0");
            shell.process_group(0);
            let ended = shell.output()?;
            ensure!(ended.status.success(), "{name} in {folder}: {ended:?}");
            Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
        };
        let (copy, mount) = (output("src")?, output("mnt")?);
        ensure!(!copy.trim().is_empty(), "{name} says nothing");
        ensure!(copy == mount, "{name}:\n{copy}\nin the mount:\n{mount}");
    }
    let same = |mut command: Command| -> Result<()> {
        let ended = command.output()?;
        ensure!(ended.status.success() && ended.stdout.is_empty(), "{command:?}: {ended:?}");
        Ok(())
    };
    let mut copied = Command::new("cp");
    copied.args(["-a"]).arg(scene.mnt()).arg(scene.path("copied"));
    same(copied)?;
    let mut diff = Command::new("diff");
    diff.arg("-r").arg(scene.path("src")).arg(scene.path("copied"));
    same(diff)?;
    let mut rsync = Command::new("rsync");
    rsync.args(["-rcn", "--delete", "--out-format=%n"]);
    rsync.arg(scene.path("src/")).arg(scene.path("mnt/"));
    same(rsync)?;
    scene.umount()
}
