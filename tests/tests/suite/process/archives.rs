//! Archives: `put --unpack` and `get --tar`, beside the real tar.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use dl_tests::program::{Process, Server, run};
use dl_tests::{folder, rounds, soon};

/// Makes an archive by Python's tarfile: `one(name, data, type, link, mtime, mode)` adds a member.
fn archive(at: &Path, format: &str, members: &str) -> Result<()> {
    let script = format!(
        "import io, os, random, sys, tarfile\n\
         random.seed(7)\n\
         t = tarfile.open(sys.argv[1], 'w', format=tarfile.{format})\n\
         def one(name, data=b'', type=tarfile.REGTYPE, link='', mtime=1e9, mode=0o644):\n\
         \x20   i = tarfile.TarInfo(os.fsdecode(name)); i.size, i.mtime, i.mode = len(data), mtime, mode\n\
         \x20   i.type, i.linkname = type, link\n\
         \x20   t.addfile(i, io.BytesIO(data))\n\
         {members}\nt.close()\n"
    );
    run(Command::new("python3").args(["-c", &script]).arg(at))?.code(0)?;
    Ok(())
}

/// Names, times, modes and lengths below a folder, as lines.
fn lines(below: &Path) -> Result<String> {
    let mut find = Command::new("find");
    find.arg(".").args(["-type", "f", "-printf", "%P %T@ %m %s\\n"]).current_dir(below);
    let mut lines: Vec<Vec<u8>> =
        run(&mut find)?.code(0)?.stdout.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    lines.sort();
    Ok(String::from_utf8_lossy(&lines.concat()).into_owned())
}

fn unpacked(archive: &Path, to: PathBuf) -> Result<PathBuf> {
    fs::create_dir(&to)?;
    run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&to))?.code(0)?;
    Ok(to)
}

#[test]
fn an_archive_comes_out_of_a_dataset_as_it_went_in() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let server = Server::start(&at("data"))?;
    let members = rounds(2_000, 100_000);
    for (format, mtime) in [("PAX_FORMAT", "1.5e9 + n / 8"), ("GNU_FORMAT", "1e9 + n")] {
        let script = format!(
            "for n in range({members}):\n\
             \x20 deep = '/'.join(random.choice(['x', 'y' * 60, 'z' * 110]) for _ in range(n % 4))\n\
             \x20 one(f'./a{{n % 7}}/{{deep}}/f{{n}}'.encode() + random.choice([b'', b'\\xff\\xfe', b' \\t#']), \
             os.urandom(random.randint(0, 3000)), mtime={mtime}, mode=random.choice([0o644, 0o755, 0o600]))\n\
             one('large', os.urandom(9 << 20))\none('empty')\none('old', b'x', mtime=1)\n"
        );
        let (tar, name) = (at(&format!("{format}.tar")), format!("dl://{}", format.to_lowercase()));
        archive(&tar, format, &script)?;
        run(server.dlcmd()?.args(["put", "--unpack"]).arg(&tar).arg(&name))?.code(0)?;
        let (first, second) = (at(&format!("{format}-1.tar")), at(&format!("{format}-2.tar")));
        run(server.dlcmd()?.arg("get").arg(&name).arg("--tar").arg(&first))?.code(0)?;
        let piped = run(server.dlcmd()?.arg("get").arg(&name).args(["--tar", "-"]))?.code(0)?;
        fs::write(&second, &piped.stdout)?;
        ensure!(fs::read(&first)? == fs::read(&second)?, "the same files give the same archive");
        let one = unpacked(&tar, at(&format!("{format}-before")))?;
        let other = unpacked(&first, at(&format!("{format}-after")))?;
        folder::compare(&one, &other)?;
        ensure!(lines(&one)? == lines(&other)?, "times, modes and lengths");
        let again = run(server.dlcmd()?.args(["put", "--unpack"]).arg(&tar).arg(&name))?.code(0)?;
        ensure!(again.text().starts_with("0 files put") && again.text().contains("unchanged"));
    }
    Ok(())
}

#[test]
fn archives_come_compressed_by_pipes_and_below_their_names() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let server = Server::start(&at("data"))?;
    archive(&at("one.tar"), "GNU_FORMAT", "for n in range(40): one(f'd/{n}', b'%d' % n)")?;
    archive(&at("two.tar"), "GNU_FORMAT", "one('d/7', b'other')")?;
    run(Command::new("gzip").arg("-k").arg(at("one.tar")))?.code(0)?;
    let put = |sources: &[PathBuf], more: &[&str], to: &str| -> Result<Command> {
        let mut command = server.dlcmd()?;
        command.args(["put", "--unpack"]).args(more).args(sources).arg(to);
        Ok(command)
    };
    run(&mut put(&[at("one.tar.gz")], &[], "dl://a/below")?)?.code(0)?;
    let cat = run(server.dlcmd()?.args(["cat", "dl://a/below/d/39"]))?.code(0)?;
    ensure!(cat.text() == "39", "{cat:?}");
    let both = [at("one.tar.gz"), at("two.tar")];
    let refused = run(&mut put(&both, &[], "dl://c")?)?.code(2)?;
    ensure!(refused.stderr.contains("d/7: a member before it"), "{refused:?}");
    run(&mut put(&both, &["--under-archive"], "dl://d")?)?.code(0)?;
    let cat = run(server.dlcmd()?.args(["cat", "dl://d/two/d/7"]))?.code(0)?;
    ensure!(cat.text() == "other", "{cat:?}");
    let listed = "cat one.tar | dlcmd put --unpack - dl://b > /dev/null; dlcmd get dl://d/one --tar - | tar -t | wc -l; dlcmd get dl://d --tar - | head -c 9 > /dev/null";
    let mut shell = Command::new("sh");
    shell
        .current_dir(folder.path())
        .arg("-ec")
        .arg(listed.replace("dlcmd", "\"$0\" --server \"$1\""));
    let dlcmd = server.dlcmd()?;
    let count = run(shell.arg(dlcmd.get_program()).arg(server.address()))?.code(0)?;
    ensure!(count.text().trim() == "40" && count.stderr.is_empty(), "{count:?}");
    let cat = run(server.dlcmd()?.args(["cat", "dl://b/d/39"]))?.code(0)?;
    ensure!(cat.text() == "39", "{cat:?}");
    for (more, sources) in [
        (&["--under-archive"][..], vec![PathBuf::from("-")]),
        (&["--follow"], vec![at("one.tar")]),
        (&[], vec![at("one.tar"), at("one.tar")]),
    ] {
        run(&mut put(&sources, more, "dl://e")?)?.code(2)?;
    }
    let wanted = run(server.dlcmd()?.args(["get", "dl://a", "x", "--tar", "y"]))?.code(2)?;
    ensure!(wanted.stderr.contains("--tar"), "{wanted:?}");
    Ok(())
}

/// The command that unpacks an archive into a dataset.
fn unpack(server: &Server, archive: &Path, name: &str) -> Result<Command> {
    let mut command = server.dlcmd()?;
    command.args(["put", "--unpack"]).arg(archive).arg(format!("dl://{name}"));
    Ok(command)
}

/// Hostile and odd archives: members, exit code, and a part of the error.
const HOSTILE: [(&str, i32, &str); 13] = [
    ("one('good', b'x')\none('/etc/passwd', b'x')", 2, "its path is absolute"),
    ("one('good', b'x')\none('a/../../b', b'x')", 2, "leads out of the archive"),
    ("one('good', b'x')\none('..', b'x')", 2, "leads out of the archive"),
    ("one('good', b'x')\none('.', b'x')", 2, "names the folder of the archive"),
    ("one('good', b'x')\none('good/below', b'x')", 2, "path of a folder above it"),
    ("one('good', b'x')\none('f/x', b'x')\none('f', b'x')", 2, "as below a folder"),
    ("one('good', b'x')\none('./good', b'y')", 2, "has the same path"),
    ("one('good', b'x')\none('l', type=tarfile.SYMTYPE, link='/etc/passwd')", 0, "it is a link"),
    ("one('good', b'x')\none('l', type=tarfile.LNKTYPE, link='good')", 0, "second name"),
    ("one('good', b'x')\none('p', type=tarfile.FIFOTYPE)", 0, "it is no file"),
    ("one('good', b'x')\none('d', type=tarfile.CHRTYPE)", 0, "it is no file"),
    ("one('good', b'x')\none('folder/', type=tarfile.DIRTYPE)", 0, ""),
    ("one('good', b'x')\none('x', b'', type=b'Z')", 0, "it is no file"),
];

/// Keeps S-88.
#[test]
fn hostile_and_damaged_archives_store_nothing_half() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let server = Server::start(&at("data"))?;
    let put = |tar: &Path, name: &str| unpack(&server, tar, name);
    for (number, (members, code, text)) in HOSTILE.iter().enumerate() {
        let (tar, name) = (at("hostile.tar"), format!("h{number}"));
        archive(&tar, "PAX_FORMAT", members)?;
        let told =
            run(&mut put(&tar, &name)?)?.code(*code).with_context(|| (*members).to_owned())?;
        ensure!(told.stderr.contains(text), "{members}: {told:?}");
        let files = run(server.dlcmd()?.args(["ls", "-R", &format!("dl://{name}")]))?.code(0)?;
        ensure!(files.text().contains("good") && !files.text().contains("passwd"), "{files:?}");
    }

    let tar = at("whole.tar");
    archive(
        &tar,
        "PAX_FORMAT",
        "for n in range(60): one(f'{n:02}', os.urandom(40000 + n))\none('zz', os.urandom(6 << 20))",
    )?;
    let (bytes, clean) = (fs::read(&tar)?, unpacked(&tar, at("clean"))?);
    for (number, cut) in
        [0, 1, 511, 600, 40_000, 41_000, 41_472, 900_001, 5_000_000, bytes.len() - 10_240]
            .into_iter()
            .enumerate()
    {
        fs::write(at("cut.tar"), bytes.get(..cut).unwrap_or_default())?;
        let name = format!("cut{number}");
        let told = run(&mut put(&at("cut.tar"), &name)?)?.code(1)?;
        ensure!(told.stderr.contains("cut.tar"), "{cut}: {told:?}");
        let got = at(&name);
        run(server.dlcmd()?.arg("get").arg(format!("dl://{name}")).arg(&got))?.code(0)?;
        for (path, file) in folder::read(&got)? {
            let whole = folder::read(&clean)?;
            ensure!(whole.get(&path) == Some(&file), "{cut}: {path:?} is half");
        }
        run(&mut put(&tar, &name)?)?.code(0)?;
    }
    // A damaged header, and a size beyond any file.
    for (offset, byte) in [(148, b'9'), (124, 0x80)] {
        let mut damaged = bytes.clone();
        *damaged.get_mut(offset).context("the archive has a header")? = byte;
        fs::write(at("bad.tar"), damaged)?;
        let told = run(&mut put(&at("bad.tar"), "bad")?)?.code(1)?;
        ensure!(told.stderr.contains("bad.tar at its begin"), "{told:?}");
    }
    run(&mut put(&at("no.tar"), "bad")?)?.code(3)?;
    // Files of the dataset are not hidden, and hide nothing.
    run(server.dlcmd()?.arg("put").arg(&tar).arg("dl://there/a"))?.code(0)?;
    archive(&at("hides.tar"), "PAX_FORMAT", "one('a/below', b'x')")?;
    let told = run(&mut put(&at("hides.tar"), "there")?)?.code(1)?;
    ensure!(told.stderr.contains("dl://there/a is a file"), "{told:?}");
    Ok(())
}

/// Keeps S-88.
#[test]
fn unusual_archives_are_stored_right_or_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let server = Server::start(&at("data"))?;
    let put = |tar: &Path, name: &str| unpack(&server, tar, name);
    for (format, time) in [("GNU_FORMAT", "-7"), ("PAX_FORMAT", "-5.5")] {
        archive(&at("old.tar"), format, &format!("one('moon', b'x', mtime={time})"))?;
        run(&mut put(&at("old.tar"), "old")?)?.code(0)?;
        let stat = run(server.dlcmd()?.args(["stat", "dl://old/moon"]))?.code(0)?;
        ensure!(stat.text().contains("1969-12-31T23:59:5"), "{stat:?}");
    }
    let (first, second) = (at("first.tar"), at("second.tar"));
    archive(&first, "PAX_FORMAT", "one('good', b'x')")?;
    archive(&second, "PAX_FORMAT", "one('other', b'x')")?;
    let joined = at("joined.tar");
    fs::write(&joined, [fs::read(&first)?, fs::read(&second)?].concat())?;
    let told = run(&mut put(&joined, "joined")?)?.code(1)?;
    ensure!(told.stderr.contains("behind its end mark"), "{told:?}");
    let mut missing = server.dlcmd()?;
    missing.args(["put", "--unpack"]).arg(&first).arg(at("no.tar")).arg("dl://missing");
    run(&mut missing)?.code(3)?;
    run(server.dlcmd()?.args(["ls", "dl://missing/good"]))?.code(3)?;
    for format in ["GNU_FORMAT", "PAX_FORMAT"] {
        archive(&at("long.tar"), format, "one('good', b'x')\none('n' * (40 << 20), b'x')")?;
        let told = run(&mut put(&at("long.tar"), "long")?)?.code(1)?;
        ensure!(told.stderr.contains("exceed 1 MiB") && told.stderr.len() < 2_000, "{told:?}");
        archive(&at("long.tar"), format, "one('good', b'x')\none('n' * 70_000, b'x')")?;
        let told = run(&mut put(&at("long.tar"), "long")?)?.code(2)?;
        ensure!(told.stderr.contains("nnn...") && told.stderr.len() < 2_000, "{told:?}");
    }
    for (program, magic) in [
        ("zstd", &b"\x28\xb5\x2f\xfd"[..]),
        ("xz", b"\xfd7zXZ\0"),
        ("bzip2", b"BZh91AY&SY"),
        ("lz4", b"\x04\x22\x4d\x18"),
    ] {
        fs::write(at("packed"), [magic, &[0; 600]].concat())?;
        let told = run(&mut put(&at("packed"), "packed")?)?.code(2)?;
        ensure!(told.stderr.contains(&format!("{program} -dc ")), "{told:?}");
    }
    // A failed get leaves no end mark, so no whole archive, and no file.
    run(&mut put(&first, "cut")?)?.code(0)?;
    for object in folder::paths(&at("data/chunks"))? {
        if object.extension().is_some_and(|ending| ending == "c") {
            fs::remove_file(object)?;
        }
    }
    let got = run(server.dlcmd()?.args(["get", "dl://cut", "--tar", "-"]))?;
    ensure!(got.code != 0 && !got.stdout.ends_with(&[0; 1024]), "{got:?}");
    let got = run(server.dlcmd()?.args(["get", "dl://cut", "--tar"]).arg(at("out.tar")))?;
    ensure!(got.code != 0 && !at("out.tar").exists(), "{got:?}");
    Ok(())
}

/// Keeps S-88.
#[test]
fn an_interrupted_unpack_goes_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let server = Server::start(&at("data"))?;
    let tar = at("many.tar");
    archive(&tar, "PAX_FORMAT", "for n in range(12000): one(f'{n % 9}/{n}', b'%d' % n * 900)")?;
    let bytes = fs::read(&tar)?;
    // A pipe that stops in the middle: the first half is on its way when the process is killed.
    let mut command = server.dlcmd()?;
    command
        .args(["put", "--unpack", "-", "dl://many"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut process = Process::start(&mut command)?;
    let (mut to, _from) = process.pipes().context("both are piped")?;
    to.write_all(bytes.get(..bytes.len() / 2).unwrap_or_default())?;
    soon("some members are stored", || {
        let count = run(server.dlcmd()?.args(["--json", "du", "dl://many"]))?;
        Ok(count.code == 0 && !count.text().contains("\"files\":0"))
    })?;
    process.kill()?;
    drop(to);
    let again =
        run(server.dlcmd()?.args(["put", "--unpack"]).arg(&tar).arg("dl://many"))?.code(0)?;
    ensure!(again.text().contains("unchanged"), "{again:?}");
    let got = at("got");
    run(server.dlcmd()?.args(["get", "dl://many"]).arg(&got))?.code(0)?;
    folder::compare(&unpacked(&tar, at("clean"))?, &got)
}
