//! Local names never reach a terminal with control bytes, in any message.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use dl_tests::program::{Ended, run};

use super::common::Scene;

/// Red text, a backslash and an invalid UTF-8 byte.
const NAME: &[u8] = b"\x1b[31mred\\\xff";
const SHOWN: &str = "\\x1B[31mred\\x5C\\xFF";

fn said(scene: &Scene, arguments: &[&[u8]], code: i32) -> Result<Ended> {
    let mut command = scene.command([])?;
    command.args(arguments.iter().map(|argument| OsStr::from_bytes(argument)));
    let ended = run(&mut command)?.code(code);
    let ended = ended.with_context(|| format!("{command:?}"))?;
    ensure!(!ended.stderr.contains('\x1b'), "{command:?} says {:?}", ended.stderr);
    ensure!(ended.stderr.contains(SHOWN), "{command:?} says {:?}", ended.stderr);
    Ok(ended)
}

#[test]
fn no_message_shows_a_control_byte_of_a_local_name() -> Result<()> {
    let scene = Scene::with(&[("f", "1"), ("d/g", "2")])?;
    let name = OsStr::from_bytes(NAME);
    let at = |name: &[u8], rest: &[u8]| [name, rest].concat();
    // Messages of `put`.
    said(&scene, &[b"put", NAME, b"dl://ds"], 3)?;
    for folder in ["one", "two"] {
        let folder = scene.path(folder);
        fs::create_dir(&folder)?;
        fs::write(folder.join(name), "")?;
    }
    said(&scene, &[b"put", b"one", b"two", b"dl://ds"], 2)?;
    symlink("nowhere", scene.path("src").join(name))?;
    said(&scene, &[b"put", b"src", b"dl://ds"], 0)?;
    // Messages of `get`.
    let place = scene.path("").join(name);
    fs::write(&place, "in the way")?;
    said(&scene, &[b"get", b"dl://ds", NAME], 1)?;
    said(&scene, &[b"get", b"dl://ds", &at(NAME, b"/below")], 1)?;
    said(&scene, &[b"get", b"dl://ds/f", &at(NAME, b"/below")], 1)?;
    said(&scene, &[b"get", b"dl://ds/f", &at(NAME, b"-none/")], 1)?;
    said(&scene, &[b"get", b"dl://ds/f", &at(NAME, b"-none/..")], 2)?;
    fs::remove_file(&place)?;
    symlink("f", &place)?;
    said(&scene, &[b"get", b"dl://ds/f", NAME], 1)?;
    fs::remove_file(&place)?;
    fs::create_dir(&place)?;
    fs::write(place.join("d"), "in the way")?;
    said(&scene, &[b"get", b"dl://ds", NAME], 4)?;
    // Messages of all commands.
    said(&scene, &[b"--key-file", &at(NAME, b"-none"), b"ls", b"dl://ds"], 1)?;
    said(&scene, &[b"--ca", &at(NAME, b"-none"), b"ls", b"dl://ds"], 1)?;
    said(&scene, &[b"user", b"--users", &at(NAME, b"-none/u"), b"list"], 1)?;
    said(&scene, &[b"ls", NAME], 2)?;
    said(&scene, &[NAME], 2)?;
    said(&scene, &[b"ls", &at(b"--", NAME), b"dl://ds"], 2)?;
    ensure!(Path::new(&place).is_dir(), "nothing was replaced");
    Ok(())
}
