//! Programs that nobody here wrote see the same in a mount as in a local copy.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use dl_tests::skip;

use super::{Scene, fill_mixed, no_mount};

/// Adds a packed clone, a database and a file of blocks with checksums to a folder. A dataset has no
/// empty folders.
const PREPARE: &str = r#"
git init -q -b main work
for round in $(seq 40); do
    seq "$round" 500 > "work/file$((round % 7))"
    git -C work add .
    git -C work commit -q -m "round $round"
done
git clone -q work clone
git -C clone gc -q
rm -r work
python3 -c '
import sqlite3
names = sqlite3.connect("names.db")
names.execute("create table names (number integer primary key, name text)")
rows = ((number, f"{number * 7919 % 10007:05}" * 20) for number in range(20000))
names.executemany("insert into names values (?, ?)", rows)
names.execute("create index by_name on names (name)")
names.commit()'
fio --name=blocks --filename=blocks --size=12m --rw=write --bs=4k --verify=crc32c --do_verify=0 \
    --verify_state_save=0 > /dev/null
find . -type d -empty -delete
"#;

/// Scripts whose output must be the same in both folders.
const SCRIPTS: [(&str, &str); 22] = [
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
        "pages of maps in any order, by four processes",
        "for seed in 1 2 3 4; do python3 -c 'import mmap,os,random,zlib,sys
m = mmap.mmap(os.open(\"blocks\", 0), 0, prot=mmap.PROT_READ)
pages = list(range(0, len(m), 4096)); random.Random(sys.argv[1]).shuffle(pages); sum = 0
for page in pages: sum = zlib.crc32(m[page:page + 4096], sum)
print(sum)' $seed > /dev/shm/sum-$$-$seed & done; wait; cat /dev/shm/sum-$$-?; rm /dev/shm/sum-$$-?",
    ),
    (
        "python walk",
        "python3 -c 'import os; print(sorted((d, sorted(n), sorted(f)) for d, n, f in os.walk(b\".\")))'",
    ),
    (
        "sendfile",
        "python3 -c 'import os; i=os.open(\"large\",os.O_RDONLY); r,w=os.pipe(); print(os.sendfile(w,i,1000000,60000)); print(hash(os.read(r,60000)) is not None, os.pread(i,10,4194300))'",
    ),
    ("git log", "git -C clone log --stat"),
    (
        "git fsck",
        "git -C clone fsck --full --strict && git -C clone status --short --branch && \
         git -C clone count-objects -v | grep -v '^size'",
    ),
    ("git archive", "git -C clone archive HEAD | md5sum"),
    (
        "git clone",
        "git clone -q ./clone /dev/shm/clone-$$; git -C /dev/shm/clone-$$ log -1; rm -r /dev/shm/clone-$$",
    ),
    (
        "sqlite",
        "for mode in mode=ro immutable=1; do python3 -c 'import sqlite3,sys
names = sqlite3.connect(f\"file:names.db?{sys.argv[1]}\", uri=True)
for query in (\"pragma integrity_check\", \"select count(*), sum(number), max(name) from names\",
              \"select number from names where name like \\\"0770%\\\" order by name, number\"):
    print(names.execute(query).fetchall())' $mode; done",
    ),
    ("fio at random", "$fio --rw=randread --ioengine=psync && echo good"),
    ("fio by a map", "$fio --rw=read --ioengine=mmap && echo good"),
    (
        "fio in parallel past the page cache",
        "$fio --rw=randread --ioengine=psync --direct=1 --numjobs=4 && echo good",
    ),
];

/// Reads blocks and compares their checksums and positions.
const FIO: &str = "fio --name=blocks --readonly --filename=blocks --size=12m --bs=4k --verify=crc32c --output=/dev/null";

/// A shell with the same settings everywhere.
fn shell(script: &str, folder: &Path) -> Result<String> {
    let mut shell = Command::new("sh");
    shell.args(["-ec", script]).current_dir(folder).process_group(0);
    shell.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONHASHSEED", "0").env("LC_ALL", "C");
    shell.env("fio", FIO).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_COUNT", "1");
    shell.env("GIT_CONFIG_KEY_0", "safe.directory").env("GIT_CONFIG_VALUE_0", "*");
    for role in ["AUTHOR", "COMMITTER"] {
        shell.env(format!("GIT_{role}_NAME"), "ann").env(format!("GIT_{role}_EMAIL"), "ann@host");
    }
    let ended = shell.output()?;
    ensure!(ended.status.success(), "{script} in {}: {ended:?}", folder.display());
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// Keeps S-81.
#[test]
fn programs_read_a_mount_as_a_local_copy() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(|root| {
        fill_mixed(root)?;
        shell(PREPARE, root).map(drop)
    })?;
    scene.mount("dl://ds", &[])?;
    for (name, script) in SCRIPTS {
        let (copy, mount) = (shell(script, &scene.path("src"))?, shell(script, &scene.mnt())?);
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
