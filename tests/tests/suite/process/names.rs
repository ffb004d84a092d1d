//! Unusual but legal names, and very large folders.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use dl_tests::program::{dl, run, run_with_stdin};
use dl_tests::scene::Scene;
use dl_tests::{folder, rounds};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

/// Keeps S-08.
#[test]
fn every_legal_name_comes_back_with_its_bytes() -> Result<()> {
    let scene = Scene::new()?;
    let source = scene.src();
    let names: [&[u8]; 14] = [
        "grüße/größe.txt".as_bytes(),
        "日本語/写真.jpg".as_bytes(),
        b"with space/a b",
        b"new\nline/in\nname",
        b"tab\there",
        b"\xff\xfe\x80/\xc3",
        b"back\\slash",
        b"-rf",
        b"...",
        b".hidden",
        b"%2e%2e/%00",
        b"\x1b[31mred",
        b"a",
        b"empty",
    ];
    for name in names {
        folder::write(&source, name, name)?;
    }
    fs::write(source.join("empty"), "")?;
    folder::write(&source, [b'n'; 255], "as long as a name can be")?;

    let server = scene.start()?;
    server.put(&source, "dl://names")?;
    server.compare("dl://names", &source)?;
    let raw = dl(&server, ["ls", "-R0", "dl://names"])?.code(0)?.stdout;
    let mut expected: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
    expected.push(vec![b'n'; 255]);
    expected.sort();
    let listed: Vec<_> = raw.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    ensure!(listed == expected, "{listed:?}");
    let text = dl(&server, ["ls", "-R", "dl://names"])?.code(0)?.text();
    for shown in ["new\\x0Aline/in\\x0Aname", "\\xFF\\xFE\\x80/\\xC3", "back\\x5Cslash"] {
        ensure!(text.lines().any(|line| line == shown), "{shown} is not in {text}");
    }
    let json = dl(&server, ["--json", "ls", "-R", "dl://names"])?.code(0)?.text();
    ensure!(json.contains("path_base64"), "{json}");
    Ok(())
}

/// A folder below `root`, too deep for a single path; created on demand. With `/file`, its path
/// below `root` has the maximal length.
fn deepest(root: &Path) -> Result<OwnedFd> {
    let folder = |at: BorrowedFd<'_>, name: &str| -> Result<OwnedFd> {
        match mkdirat(at, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(why) => return Err(why.into()),
        }
        Ok(openat(at, name, OFlags::DIRECTORY.union(OFlags::CLOEXEC), Mode::empty())?)
    };
    let mut at: OwnedFd = fs::File::open(root)?.into();
    for _ in 0..15 {
        at = folder(at.as_fd(), &"d".repeat(255))?;
    }
    folder(at.as_fd(), &"e".repeat(251))
}

fn deepest_file(root: &Path, flags: OFlags) -> Result<fs::File> {
    let flags = flags.union(OFlags::CLOEXEC);
    let file = openat(deepest(root)?, "file", flags, Mode::from_raw_mode(0o644));
    Ok(file.context("open the deepest file")?.into())
}

/// Keeps S-08 and S-13.
#[test]
fn a_path_of_4096_bytes_works_in_every_put_and_get() -> Result<()> {
    let scene = Scene::new()?;
    let server = scene.start()?;
    let (first, source) = (scene.path("first"), scene.src());
    folder::write(&first, "first", "1")?;
    folder::write(&source, "other", "2")?;
    let write = |text: &str| -> Result<()> {
        let flags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::TRUNC);
        Ok(deepest_file(&source, flags)?.write_all(text.as_bytes())?)
    };
    write("deep down")?;
    server.put(&first, "dl://ds")?;
    let put = |flags: &[&str]| -> Result<serde_json::Value> {
        let mut put = server.dlcmd()?;
        put.args(["--json", "put"]).args(flags).arg(&source).arg("dl://ds");
        Ok(serde_json::from_str(&run(&mut put)?.code(0)?.text())?)
    };
    let told = put(&[])?;
    ensure!(told["files"] == 2 && told["unchanged"] == 0, "{told}");
    for flags in [&[][..], &["--checksum"]] {
        let told = put(flags)?;
        ensure!(told["files"] == 0 && told["unchanged"] == 2, "{flags:?}: {told}");
    }
    write("deeper")?;
    let told = put(&["--checksum"])?;
    ensure!(told["files"] == 1 && told["unchanged"] == 1, "{told}");
    // Two sources without a conflict, and two sources with a conflict.
    run(server.dlcmd()?.arg("put").args([&first, &source]).arg("dl://two"))?.code(0)?;
    let twice = run(server.dlcmd()?.arg("put").args([&source, &source]).arg("dl://two"))?;
    ensure!(twice.code == 2, "{twice:?}");

    let path = format!("{}{}/file", format!("{}/", "d".repeat(255)).repeat(15), "e".repeat(251));
    ensure!(path.len() == 4_096, "{} bytes", path.len());
    let refused = run(server.dlcmd()?.arg("put").arg(&first).arg(format!("dl://long/{path}")))?;
    ensure!(refused.code == 2 || refused.code == 4, "{refused:?}");
    ensure!(refused.stderr.contains("4096") || refused.stderr.contains("4,096"), "{refused:?}");
    for _ in 0..2 {
        let mut list = server.dlcmd()?;
        list.current_dir(&source).args(["put", "-", "dl://list"]);
        run_with_stdin(&mut list, format!("other\n{path}\n").as_bytes())?.code(0)?;
    }
    for dataset in ["dl://ds", "dl://list"] {
        let got = scene.path("got");
        for _ in 0..2 {
            run(server.dlcmd()?.arg("get").arg(dataset).arg(&got))?.code(0)?;
            let mut text = String::new();
            deepest_file(&got, OFlags::RDONLY)?.read_to_string(&mut text)?;
            ensure!(text == "deeper", "{dataset}: {text}");
        }
        fs::remove_dir_all(&got)?;
    }
    Ok(())
}

/// Keeps S-08: with a hundred thousand files (torture: a million).
#[test]
fn heavy_a_folder_may_have_any_number_of_files() -> Result<()> {
    let count = rounds(100_000, 1_000_000);
    let scene = Scene::new()?;
    let server = scene.start()?;
    let source = scene.src();
    let mut list = Vec::new();
    fs::create_dir_all(source.join("all"))?;
    for number in 0..count {
        let name = format!("all/{number:07}");
        fs::write(source.join(&name), &name)?;
        list.extend_from_slice(name.as_bytes());
        list.push(b'\n');
    }
    let mut put = server.dlcmd()?;
    put.current_dir(&source).args(["put", "-", "dl://large"]);
    run_with_stdin(&mut put, &list)?.code(0)?;
    ensure!(dl(&server, ["ls", "-R", "dl://large"])?.code(0)?.stdout == list, "ls -R");
    let names = dl(&server, ["ls", "dl://large/all"])?.code(0)?.text();
    ensure!(names.lines().count() == count, "{} names", names.lines().count());
    let used = dl(&server, ["du", "dl://large"])?.code(0)?.text();
    ensure!(used.starts_with(&format!("{}\t{count}\t", count * 11)), "{used}");
    server.compare("dl://large", &source)?;
    dl(&server, ["rm", "-r", "dl://large/all"])?.code(0)?;
    ensure!(dl(&server, ["ls", "dl://large"])?.code(0)?.stdout.is_empty(), "after rm -r");
    Ok(())
}
