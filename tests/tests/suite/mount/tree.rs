//! Folders of many names, and a folder of a dataset as the root.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};
use dl_tests::{folder, rounds, skip};

use super::{Scene, fill_mixed, no_mount};

/// Reads a folder from positions in any order, also after the server was killed.
const SEEKS: &str = r#"
import ctypes, os, random, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = ctypes.c_void_p
class Entry(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("len", ctypes.c_ushort),
                ("type", ctypes.c_ubyte), ("name", ctypes.c_char * 256)]
libc.readdir.restype = ctypes.POINTER(Entry)
libc.telldir.restype = ctypes.c_long
d = ctypes.c_void_p(libc.opendir(sys.argv[1].encode()))
at, names = [], []
while True:
    position = libc.telldir(d)
    entry = libc.readdir(d)
    if not entry:
        break
    at.append(position); names.append(entry.contents.name)
assert len(set(names)) == len(names) == int(sys.argv[2]) + 2, len(names)
random.seed(1)
for turn in range(300):
    if turn == 150:
        os.kill(int(sys.argv[3]), 9)
    place = random.randrange(len(names))
    libc.seekdir(d, ctypes.c_long(at[place]))
    for number in range(place, min(place + 300, len(names))):
        name = libc.readdir(d).contents.name
        assert name == names[number], (number, name, names[number])
print(len(names))
"#;

#[test]
fn heavy_a_folder_of_many_names_is_listed_from_any_position() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let count = rounds(100_000, 1_000_000);
    let files = (1..count).map(|file| format!("many/f{file}"));
    let scene = Scene::of_files(files.chain(["many/sub/file".to_owned()]), b"x")?;
    scene.mount("dl://ds", &[])?;
    let server = scene.process("server")?.map_or(0, |pid| pid.as_raw_nonzero().get());
    let ended = Command::new("python3")
        .args(["-c", SEEKS])
        .arg(scene.mnt().join("many"))
        .args([count.to_string(), server.to_string()])
        .output()?;
    ensure!(ended.status.success(), "{ended:?}");
    let listed = fs::read_dir(scene.mnt().join("many"))?.count();
    ensure!(listed == count, "{listed} of {count} names");
    scene.umount()
}

#[test]
fn a_folder_of_a_dataset_is_a_root() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    scene.mount("dl://ds/sub/deep", &[])?;
    folder::compare(&scene.path("src/sub/deep"), &scene.mnt())?;
    let above = fs::canonicalize(scene.mnt().join("er/.."))?;
    ensure!(above == scene.mnt(), "{}", above.display());
    scene.umount()
}
