//! A mount only reads.

use std::process::Command;

use anyhow::{Result, ensure};
use dl_tests::skip;

use super::{Scene, fill_mixed, no_mount};

/// Every system call that changes a file system, by its effect in a mount. The file `empty` and the
/// folder `sub` exist.
const CALLS: &str = r#"
import ctypes, errno, os, sys
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def c(name, *args):
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)
calls = {
    "open for writing": lambda: os.open("empty", os.O_WRONLY),
    "open for both": lambda: os.open("empty", os.O_RDWR),
    "open with truncation": lambda: os.open("empty", os.O_RDONLY | os.O_TRUNC),
    "open to append": lambda: os.open("empty", os.O_WRONLY | os.O_APPEND),
    "creat": lambda: os.open("new", os.O_CREAT | os.O_WRONLY),
    "create exclusively": lambda: os.open("new", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
    "tmpfile": lambda: os.open(".", os.O_TMPFILE | os.O_RDWR),
    "truncate": lambda: os.truncate("empty", 1),
    "mkdir": lambda: os.mkdir("new"),
    "rmdir": lambda: os.rmdir("sub"),
    "unlink": lambda: os.unlink("empty"),
    "rename": lambda: os.rename("empty", "new"),
    "rename over": lambda: os.rename("empty", "large"),
    "renameat2": lambda: c("renameat2", -100, b"empty", -100, b"large", 2),
    "link": lambda: os.link("empty", "new"),
    "symlink": lambda: os.symlink("empty", "new"),
    "mkfifo": lambda: os.mkfifo("new"),
    "mknod": lambda: os.mknod("new", 0o100644),
    "chmod": lambda: os.chmod("empty", 0o600),
    "chown": lambda: os.chown("empty", 1, 1),
    "lchown": lambda: os.lchown("empty", 1, 1),
    "utime": lambda: os.utime("empty", (1, 1)),
    "setxattr": lambda: os.setxattr("empty", "user.x", b"1"),
    "removexattr": lambda: os.removexattr("empty", "user.x"),
    "fallocate": lambda: os.posix_fallocate(os.open("empty", os.O_WRONLY), 0, 1),
    "shared writable map": lambda: __import__("mmap").mmap(os.open("large", os.O_RDWR), 0),
    "bind of a socket": lambda: __import__("socket").socket(1, 1).bind("new"),
}
wrong = []
for name, call in calls.items():
    try:
        call()
        wrong.append(name + ": done")
    except OSError as why:
        if why.errno != errno.EROFS:
            wrong.append(f"{name}: {why}")
fd = os.open("empty", os.O_RDONLY)
for name, call in {"fchmod": lambda: os.fchmod(fd, 0o600), "fchown": lambda: os.fchown(fd, 1, 1),
                   "futimens": lambda: os.utime(fd, (1, 1)),
                   "fsetxattr": lambda: os.setxattr(fd, "user.x", b"1")}.items():
    try:
        call()
        wrong.append(name + ": done")
    except OSError as why:
        if why.errno != errno.EROFS:
            wrong.append(f"{name}: {why}")
for name, call in {"write": lambda: os.write(fd, b"x"), "ftruncate": lambda: os.ftruncate(fd, 1)}.items():
    try:
        call()
        wrong.append(name + ": done")
    except OSError as why:
        if why.errno not in (errno.EBADF, errno.EINVAL):
            wrong.append(f"{name}: {why}")
os.fsync(fd)
os.access("empty", os.W_OK) and wrong.append("access: may be written")
print("\n".join(wrong))
"#;

/// Keeps S-81.
#[test]
fn no_call_changes_a_mount() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    scene.mount("dl://ds", &[])?;
    let ended = Command::new("python3").args(["-c", CALLS]).arg(scene.mnt()).output()?;
    let wrong = String::from_utf8_lossy(&ended.stdout);
    ensure!(ended.status.success() && wrong.trim().is_empty(), "{wrong}{ended:?}");
    dl_tests::folder::compare(&scene.path("src"), &scene.mnt())?;
    scene.umount()
}
