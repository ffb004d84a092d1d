//! Wrong addresses, wrong names, damaged objects, servers in conflict: each gets an answer with a
//! remedy.

use std::fs::{self, OpenOptions};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Ended, Process, Server, dl, dlcmd, run, server_command};
use rustix::process::Signal;

/// The time limit for a missing server: five seconds and the start of the program, with a margin.
const PATIENCE: Duration = Duration::from_secs(9);

fn ask(address: &str) -> Result<Ended> {
    let clock = clock();
    let began = clock.monotonic();
    let ended = run(dlcmd()?.args(["--server", address, "ls", "dl://ds"]))?.code(5)?;
    let took = clock.monotonic() - began;
    ensure!(took < PATIENCE, "{address} cost {took:?}");
    ensure!(ended.stderr.contains(address), "{address} is not in: {}", ended.stderr);
    Ok(ended)
}

/// Keeps S-12.
#[test]
fn a_missing_server_costs_five_seconds_and_exit_code_5() -> Result<()> {
    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let ended = ask(&free.to_string())?;
    let told = ended.stderr.lines().last().context("an error on stderr")?;
    ensure!(told.contains("refused") && told.contains("start one with `dlserver`"), "{told}");
    ensure!(told.contains("--server") && told.matches(&free.to_string()).count() == 1, "{told}");
    Ok(())
}

/// Keeps S-12.
#[test]
fn a_silent_listener_costs_five_seconds_and_exit_code_5() -> Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let address = silent.local_addr()?.to_string();
    ask(&address)?;
    Ok(())
}

/// Keeps S-12.
#[test]
fn a_foreign_server_costs_five_seconds_and_exit_code_5() -> Result<()> {
    let other = TcpListener::bind("127.0.0.1:0")?;
    let address = other.local_addr()?.to_string();
    std::thread::spawn(move || {
        for mut stream in other.incoming().flatten() {
            use std::io::Write;
            // The client may have closed the connection.
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        }
    });
    ask(&address)?;
    Ok(())
}

/// Keeps S-12.
#[test]
fn a_missing_dataset_is_answered_with_the_nearest_name() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let server = Server::start(&scene.path().join("data"))?;
    folder::write(scene.path(), "src/a", "a")?;
    run(server.dlcmd()?.arg("put").arg(scene.path().join("src")).arg("dl://imagenet"))?.code(0)?;
    for command in ["ls", "stat", "du"] {
        let missing = dl(&server, [command, "dl://imagnet"])?.code(3)?;
        ensure!(missing.stderr.contains("imagenet?"), "{command}: {}", missing.stderr);
    }
    Ok(())
}

/// Keeps S-12.
#[test]
fn a_folder_in_place_of_a_file_is_reported() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let server = Server::start(&scene.path().join("data"))?;
    folder::write(scene.path(), "src/dir/file", "a")?;
    run(server.dlcmd()?.arg("put").arg(scene.path().join("src")).arg("dl://ds"))?.code(0)?;
    for command in ["cat", "rm"] {
        let refused = dl(&server, [command, "dl://ds/dir"])?.code(1)?;
        ensure!(refused.stderr.contains("folder"), "{command}: {}", refused.stderr);
    }
    dl(&server, ["cat", "dl://ds/dir/file/x"])?.code(3)?;
    dl(&server, ["ls", "dl://ds/nowhere"])?.code(3)?;
    Ok(())
}

/// All objects of the chunk store with this extension.
fn objects(data: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![data.join("chunks")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Flips a bit of an object at the position of `bytes`; false if the object lacks these bytes.
fn flip(object: &Path, bytes: &[u8]) -> Result<bool> {
    let mut content = fs::read(object)?;
    let found = content.windows(bytes.len()).position(|window| window == bytes);
    let Some(at) = found else { return Ok(false) };
    content[at] ^= 1;
    fs::write(object, content)?;
    Ok(true)
}

/// Keeps S-14.
#[test]
fn damaged_bytes_are_named_and_all_other_files_are_served() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let data = scene.path().join("data");
    let source = scene.path().join("src");
    for number in 0..20 {
        folder::write(&source, format!("f{number:02}"), format!("contents of file {number:02}"))?;
    }
    let mut server = Server::start(&data)?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    let mut flipped = Vec::new();
    for object in objects(&data, "c")? {
        if flip(&object, b"contents of file 07")? {
            flipped.push(object.file_stem().context("an object has a name")?.display().to_string());
        }
    }
    ensure!(flipped.len() == 1, "the file is in the objects {flipped:?}");
    for restarted in [false, true] {
        if restarted {
            server.stop()?;
            server = Server::start(&data)?;
        }
        let damaged = dl(&server, ["cat", "dl://ds/f07"])?.code(1)?;
        ensure!(damaged.stdout.is_empty() && damaged.stderr.contains("f07"), "{damaged:?}");
        ensure!(damaged.stderr.contains("dlcmd put --checksum"), "{damaged:?}");
        ensure!(damaged.stderr.contains(&flipped[0]), "{flipped:?}: {damaged:?}");
        let good = dl(&server, ["cat", "dl://ds/f08"])?.code(0)?;
        ensure!(good.text() == "contents of file 08", "{good:?}");
        let got = scene.path().join(format!("got{restarted}"));
        let part = run(server.dlcmd()?.arg("get").arg("dl://ds").arg(&got))?.code(4)?;
        ensure!(part.stderr.contains("f07"), "{}", part.stderr);
        ensure!(fs::read_dir(&got)?.count() == 19, "other files are missing");
    }
    Ok(())
}

/// Keeps S-14.
#[test]
fn a_truncated_chunk_serves_its_files_before_the_cut() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    for number in 0..40 {
        folder::write(&source, format!("f{number:02}"), format!("contents of file {number:02}"))?;
    }
    let server = Server::start(&data)?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    let all = objects(&data, "c")?;
    ensure!(all.len() == 1, "the files are in {all:?}");
    let chunk = OpenOptions::new().write(true).open(&all[0])?;
    chunk.set_len(chunk.metadata()?.len() - 1)?;
    let got = scene.path().join("got");
    let part = run(server.dlcmd()?.arg("get").arg("dl://ds").arg(&got))?.code(4)?;
    let left: Vec<u32> =
        (0..40).filter(|number| !got.join(format!("f{number:02}")).exists()).collect();
    ensure!(left.len() == 1, "{left:?} were not got: {}", part.stderr);
    let name = format!("f{:02}", left[0]);
    ensure!(part.stderr.contains(&name) && part.stderr.contains("damaged"), "{}", part.stderr);
    server.stop()?;
    Ok(())
}

/// Keeps S-14.
#[test]
fn a_damaged_header_is_named_by_recover_and_the_rest_comes_back() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let data = scene.path().join("data");
    let (one, two) = (scene.path().join("one"), scene.path().join("two"));
    folder::write(&one, "a", "in the first chunk")?;
    folder::write(&two, "b", "in the second chunk")?;
    let server = Server::start(&data)?;
    run(server.dlcmd()?.arg("put").arg(&one).arg("dl://ds"))?.code(0)?;
    run(server.dlcmd()?.arg("put").arg(&two).arg("dl://ds"))?.code(0)?;
    server.stop()?;
    let all = objects(&data, "c")?;
    let first = all.iter().find(|object| {
        fs::read(object).is_ok_and(|bytes| bytes.windows(18).any(|w| w == b"in the first chunk"))
    });
    let first = first.context("the first chunk is there")?;
    let mut content = fs::read(first)?;
    content[140] ^= 0xff;
    fs::write(first, content)?;
    fs::remove_dir_all(data.join("meta"))?;
    let server = Server::start(&data)?;
    let damaged = dl(&server, ["recover", "--all"])?.code(4)?;
    let name = first.file_name().context("an object has a name")?.to_string_lossy().into_owned();
    ensure!(damaged.stderr.contains(&name), "{name} is not in {}", damaged.stderr);
    ensure!(dl(&server, ["ls", "-R", "dl://ds"])?.code(0)?.text() == "b\n", "ls");
    let good = dl(&server, ["cat", "dl://ds/b"])?.code(0)?;
    ensure!(good.text() == "in the second chunk", "{good:?}");
    Ok(())
}

/// Keeps S-05 and S-12.
#[test]
fn damaged_metadata_are_refused_with_a_remedy() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    folder::fill(&source, 20, 1_000, &Dice::new(1))?;
    let server = Server::start(&data)?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    server.stop()?;
    let file = data.join("meta/meta.redb");
    let whole = fs::read(&file)?;
    let (half, _) = whole.split_at(whole.len() / 2);
    // The first pages stay valid, so that the file can be opened.
    let mut behind = whole.clone();
    behind.iter_mut().skip(8192).for_each(|byte| *byte = 0xa5);
    for damaged in [Dice::new(2).bytes(100_000), half.to_vec(), behind] {
        fs::write(&file, damaged)?;
        let mut server = server_command()?;
        let refused =
            run(server.args(["--listen", "127.0.0.1:0", "--data"]).arg(&data))?.code(1)?;
        ensure!(refused.stderr.contains("dlcmd recover --all"), "{}", refused.stderr);
        let told = refused.stderr.to_lowercase();
        ensure!(!told.contains("backtrace"), "{told}");
    }
    fs::rename(data.join("meta"), scene.path().join("damaged"))?;
    let server = Server::start(&data)?;
    dl(&server, ["recover", "--all"])?.code(0)?;
    let got = scene.path().join("got");
    run(server.dlcmd()?.arg("get").arg("dl://ds").arg(&got))?.code(0)?;
    folder::compare(&source, &got)
}

/// Keeps S-15.
#[test]
fn a_second_server_on_a_folder_is_refused_with_the_reason() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let data = scene.path().join("data");
    let server = Server::start(&data)?;
    let mut second = server_command()?;
    let second = run(second.args(["--listen", "127.0.0.1:0", "--data"]).arg(&data))?.code(1)?;
    ensure!(second.stderr.contains("another"), "{}", second.stderr);
    dl(&server, ["datasets"])?.code(0)?;
    // The process's end always releases the lock.
    server.kill()?;
    Server::start(&data)?.stop()?;
    Ok(())
}

/// Keeps S-15.
#[test]
fn a_chunk_folder_belongs_to_the_metadata_of_one_server() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, other) = (scene.path().join("data"), scene.path().join("other"));
    let chunks = data.join("chunks");
    folder::write(scene.path(), "src/a", "a")?;
    let server = Server::start(&data)?;
    run(server.dlcmd()?.arg("put").arg(scene.path().join("src")).arg("dl://ds"))?.code(0)?;
    for meta in [format!("embedded:{}", other.join("meta").display()), "memory:".to_owned()] {
        let mut second = server_command()?;
        second.args(["--listen", "127.0.0.1:0", "--meta", &meta, "--data"]).arg(&other);
        let refused = run(second.arg("--store").arg(&chunks))?.code(1)?;
        for told in ["another server", "--meta", &chunks.to_string_lossy()] {
            ensure!(refused.stderr.contains(told), "{told} is not in {}", refused.stderr);
        }
    }
    server.kill()?;
    // Recovery binds the chunk store to other metadata.
    let chunks = chunks.to_string_lossy();
    let server = Server::start_among(&other, "127.0.0.1:0", &["--store", &chunks], &[])?;
    dl(&server, ["recover", "--all"])?.code(0)?;
    ensure!(
        dl(&server, ["cat", "dl://ds/a"])?.code(0)?.text() == "a",
        "the file was not recovered"
    );
    Ok(())
}

/// Keeps S-05.
#[test]
fn metadata_with_another_chunk_store_is_refused_naming_both() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (one, two) = (scene.path().join("one"), scene.path().join("two"));
    folder::write(scene.path(), "src/a", "a")?;
    for data in [&one, &two] {
        let server = Server::start(data)?;
        run(server.dlcmd()?.arg("put").arg(scene.path().join("src")).arg("dl://ds"))?.code(0)?;
        server.stop()?;
    }
    for store in [two.join("chunks"), scene.path().join("empty")] {
        let mut server = server_command()?;
        server.args(["--listen", "127.0.0.1:0", "--data"]).arg(&one).arg("--store").arg(&store);
        let refused = run(&mut server)?.code(1)?;
        for told in ["--store", "--meta", &store.to_string_lossy()] {
            ensure!(refused.stderr.contains(told), "{told} is not in {}", refused.stderr);
        }
    }
    Server::start(&one)?.stop()?;
    Ok(())
}

/// A pipe without a writer in place of a chunk: opening it hangs, as with a lost file server.
#[test]
fn a_server_ends_in_time_though_a_file_call_hangs() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    folder::fill(&source, 3, 1_000, &Dice::new(1))?;
    let server = Server::start(&data)?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    server.stop()?;
    let chunk = objects(&data, "c")?.pop().context("there is a chunk")?;
    fs::remove_file(&chunk)?;
    let made = Command::new("mkfifo").arg(&chunk).status()?;
    ensure!(made.success(), "mkfifo: {made}");
    let grace = Duration::from_secs(2);
    let mut server = Server::start_with(&data, "127.0.0.1:0", &["--grace", "2s"])?;
    let mut reader = server.dlcmd()?;
    let reader = reader.args(["get", "dl://ds"]).arg(scene.path().join("got"));
    let mut reader = Process::start(reader.stdout(Stdio::null()).stderr(Stdio::null()))?;
    std::thread::sleep(Duration::from_secs(1));
    ensure!(reader.ended()?.is_none(), "the reader ended despite the pipe");
    let clock = clock();
    let began = clock.monotonic();
    server.process().signal(Signal::TERM)?;
    server.process().wait(10 * grace)?;
    ensure!(
        clock.monotonic() - began < 5 * grace,
        "the server took {:?} to stop",
        clock.monotonic() - began
    );
    reader.kill()
}
