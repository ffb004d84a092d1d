//! Wrong addresses, wrong names, damaged objects, servers in conflict: each gets an answer with a
//! remedy.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Ended, Process, dl, dlcmd, run};
use dl_tests::scene::{Scene, check_well};
use rustix::process::Signal;

/// The time limit for a missing server: five seconds and the start of the program, with a margin.
const TIMEOUT: Duration = Duration::from_secs(9);

fn ask(address: &str) -> Result<Ended> {
    let clock = clock();
    let began = clock.monotonic();
    let ended = run(dlcmd()?.args(["--server", address, "ls", "dl://ds"]))?.code(5)?;
    let took = clock.monotonic() - began;
    ensure!(took < TIMEOUT, "{address} cost {took:?}");
    ensure!(ended.stderr.contains(address), "{address} is not in: {}", ended.stderr);
    Ok(ended)
}

/// Keeps S-12: for a closed port, a silent listener and a foreign server.
#[test]
fn a_missing_server_costs_five_seconds_and_exit_code_5() -> Result<()> {
    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let ended = ask(&free)?;
    let told = ended.stderr.lines().last().context("an error on stderr")?;
    ensure!(told.contains("refused") && told.contains("start one with `dlserver`"), "{told}");
    ensure!(told.contains("--server") && told.matches(&free).count() == 1, "{told}");
    let silent = TcpListener::bind("127.0.0.1:0")?;
    ask(&silent.local_addr()?.to_string())?;
    let other = TcpListener::bind("127.0.0.1:0")?;
    let address = other.local_addr()?.to_string();
    std::thread::spawn(move || {
        for mut stream in other.incoming().flatten() {
            // The client may have closed the connection.
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        }
    });
    ask(&address)?;
    Ok(())
}

/// Keeps S-12.
#[test]
fn a_missing_dataset_and_a_folder_for_a_file_are_reported() -> Result<()> {
    let scene = Scene::new()?;
    folder::write(&scene.src(), "dir/file", "a")?;
    let server = scene.start()?;
    server.put(scene.src(), "dl://imagenet")?;
    for (command, address, code, told) in [
        ("ls", "dl://imagnet", 3, "imagenet?"),
        ("stat", "dl://imagnet", 3, "imagenet?"),
        ("du", "dl://imagnet", 3, "imagenet?"),
        ("cat", "dl://imagenet/dir", 1, "folder"),
        ("rm", "dl://imagenet/dir", 1, "folder"),
        ("cat", "dl://imagenet/dir/file/x", 3, ""),
        ("ls", "dl://imagenet/nowhere", 3, ""),
    ] {
        let refused = dl(&server, [command, address])?.code(code)?;
        ensure!(refused.stderr.contains(told), "{command} {address}: {}", refused.stderr);
    }
    Ok(())
}

/// Keeps S-14: for a changed byte, and for a chunk without its last byte.
#[test]
fn a_damaged_file_is_named_and_all_other_files_are_served() -> Result<()> {
    for is_cut in [false, true] {
        let scene = Scene::new()?;
        for number in 0..20 {
            folder::write(&scene.src(), format!("f{number:02}"), format!("file {number:02}"))?;
        }
        let mut server = scene.start()?;
        server.put(scene.src(), "dl://ds")?;
        let objects = scene.objects()?;
        let [object] = objects.as_slice() else { bail!("the files are in {objects:?}") };
        let id = object.file_stem().context("an object has a name")?.to_string_lossy();
        let mut bytes = fs::read(object)?;
        match bytes.windows(7).position(|window| window == b"file 07") {
            Some(at) if !is_cut => bytes[at] ^= 1,
            _ => bytes.truncate(bytes.len() - 1),
        }
        fs::write(object, bytes)?;
        for round in 0..2 {
            let got = scene.path(&format!("got{round}"));
            let part = run(server.dlcmd()?.args(["get", "dl://ds"]).arg(&got))?.code(4)?;
            let mut left: Vec<_> = (0..20).map(|number| format!("f{number:02}")).collect();
            left.retain(|name| !got.join(name).exists());
            ensure!(left.len() == 1 && part.stderr.contains(&left[0]), "{left:?}: {part:?}");
            let damaged = dl(&server, ["cat", &format!("dl://ds/{}", left[0])])?.code(1)?;
            for told in [&left[0], "dlcmd put --checksum", &id] {
                ensure!(damaged.stderr.contains(told), "{told} is not in {damaged:?}");
            }
            ensure!(damaged.stdout.is_empty(), "{damaged:?}");
            server.stop()?;
            server = scene.start()?;
        }
    }
    Ok(())
}

/// Keeps S-05 and S-12.
#[test]
fn damaged_metadata_are_refused_with_a_remedy() -> Result<()> {
    let scene = Scene::filled(20, 1_000)?;
    let server = scene.start()?;
    server.put(scene.src(), "dl://ds")?;
    server.stop()?;
    let file = scene.path("data/meta/meta.redb");
    let whole = fs::read(&file)?;
    let (half, _) = whole.split_at(whole.len() / 2);
    // The first pages stay valid, so that the file can be opened.
    let mut behind = whole.clone();
    behind.iter_mut().skip(8192).for_each(|byte| *byte = 0xa5);
    for damaged in [Dice::new(2).bytes(100_000), half.to_vec(), behind] {
        fs::write(&file, damaged)?;
        let told = scene.fails(1, &[])?;
        ensure!(told.contains("dlcmd recover --all") && !told.contains("backtrace"), "{told}");
    }
    scene.lose_metadata()?;
    let server = scene.start()?;
    dl(&server, ["recover", "--all"])?.code(0)?;
    server.compare("dl://ds", &scene.src())
}

/// Keeps S-15.
#[test]
fn a_folder_belongs_to_one_server_and_to_its_metadata() -> Result<()> {
    let (scene, server) = Scene::with_a_file()?;
    let (other, chunks) = (Scene::new()?, scene.path("data/chunks").display().to_string());
    let second = scene.fails(1, &[])?;
    ensure!(second.contains("another"), "{second}");
    let embedded = format!("embedded:{}", other.path("data/meta").display());
    for meta in [&embedded, "memory:"] {
        let refused = other.fails(1, &["--meta", meta, "--store", &chunks])?;
        for told in ["another server", "--meta", &chunks] {
            ensure!(refused.contains(told), "{told} is not in {refused}");
        }
    }
    check_well(&server)?;
    // The process's end always releases the lock.
    server.kill()?;
    scene.start()?.kill()?;
    // Recovery binds the chunk store to other metadata.
    let server = other.start_with(&["--store", &chunks])?;
    dl(&server, ["recover", "--all"])?.code(0)?;
    check_well(&server)
}

/// Keeps S-05 (Rule 6): with another chunk store, an empty store, and a store without identity.
#[test]
fn metadata_with_another_chunk_store_is_refused_naming_both() -> Result<()> {
    let ((one, first), (other, second)) = (Scene::with_a_file()?, Scene::with_a_file()?);
    first.stop()?;
    second.stop()?;
    let (store, identity) = (other.path("data/chunks"), other.path("data/chunks/identity"));
    for (store, is_without) in [(&store, false), (&one.path("empty"), false), (&store, true)] {
        if is_without {
            fs::remove_file(&identity)?;
        }
        let store = store.to_string_lossy();
        let refused = one.fails(1, &["--store", &store])?;
        for told in ["--store", "--meta", &store] {
            ensure!(refused.contains(told), "{told} is not in {refused}");
        }
    }
    ensure!(!identity.exists(), "the metadata were bound to this store");
    for scene in [&one, &other] {
        check_well(&scene.start()?)?;
    }
    Ok(())
}

/// A pipe without a writer in place of a chunk: opening it hangs, as with a lost file server.
#[test]
fn a_server_ends_in_time_though_a_file_call_hangs() -> Result<()> {
    let scene = Scene::filled(3, 1_000)?;
    let server = scene.start()?;
    server.put(scene.src(), "dl://ds")?;
    server.stop()?;
    let chunk = scene.objects()?.pop().context("there is a chunk")?;
    fs::remove_file(&chunk)?;
    let made = Command::new("mkfifo").arg(&chunk).status()?;
    ensure!(made.success(), "mkfifo: {made}");
    let grace = Duration::from_secs(2);
    let mut server = scene.start_with(&["--grace", "2s"])?;
    let mut reader = server.dlcmd()?;
    let reader = reader.args(["get", "dl://ds"]).arg(scene.path("got"));
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
