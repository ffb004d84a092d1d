//! The peak memory of the programs.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::Server as Redis;
use dl_tests::cluster::clock;
use dl_tests::http::get;
use dl_tests::program::{Server, peak_of, run};
use dl_tests::{folder, rounds, tell};
use libdiesel::{Attributes, ChunkShape, Client, ConnectOptions, DatasetName, FilePath};

const MOST: u64 = 256 << 20;

pub(super) fn check(what: &str, peak: u64) -> Result<()> {
    tell(format_args!("{what}: at most {} MiB", peak >> 20));
    ensure!(peak > 0 && peak < MOST, "{what} took {} MiB", peak >> 20);
    Ok(())
}

pub(super) fn check_server(what: &str, server: &mut Server) -> Result<()> {
    check(what, server.process().peak_memory().context("the server runs")?)
}

/// Keeps S-10: with a file of a GiB (torture: ten).
#[test]
fn heavy_a_huge_file_takes_less_than_256_mib_at_both_ends() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let length = rounds(1u64, 10) << 30;
    let source = scene.path().join("huge");
    fs::File::create(&source)?.set_len(length)?;
    let mut server = Server::start(&scene.path().join("data"))?;
    check("put", peak_of(server.dlcmd()?.arg("put").arg(&source).arg("dl://huge"))?)?;
    check_server("server after put", &mut server)?;
    let got = scene.path().join("got");
    check("get", peak_of(server.dlcmd()?.arg("get").arg("dl://huge/huge").arg(&got))?)?;
    check_server("server after get", &mut server)?;
    ensure!(fs::metadata(&got)?.len() == length, "got {} bytes", fs::metadata(&got)?.len());
    let same = run(Command::new("cmp").arg(&source).arg(&got))?;
    ensure!(same.code == 0, "{same:?}");
    Ok(())
}

/// Keeps S-10: datasets in sequence and in parallel, then reads of all files. Memory freed by a
/// load must serve the next load.
#[test]
fn heavy_a_mix_of_loads_takes_less_than_256_mib() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let source = scene.path().join("src");
    let count = rounds(20_000, 200_000);
    let content = [7; 8192];
    for number in 0..count {
        if number % 1000 == 0 {
            fs::create_dir_all(source.join(format!("{:04}", number / 1000)))?;
        }
        let length = (number as usize * 7919) % content.len();
        let file = source.join(format!("{:04}/{number:07}", number / 1000));
        fs::write(file, content.get(..length).unwrap_or_default())?;
    }
    let mut server = Server::start(&scene.path().join("data"))?;
    let put = |server: &Server, name: &str| -> Result<Command> {
        let mut command = server.dlcmd()?;
        command.arg("put").arg(&source).arg(format!("dl://{name}"));
        Ok(command)
    };
    for name in ["first", "second", "third"] {
        check("put", peak_of(&mut put(&server, name)?)?)?;
    }
    let names: Vec<_> = (0..rounds(3, 6)).map(|number| format!("at-once-{number}")).collect();
    let puts = names.iter().map(|name| put(&server, name)).collect::<Result<_>>()?;
    at_once("put at once", puts)?;
    check_server("server after puts", &mut server)?;
    let got = scene.path().join("got");
    let get = |name: &String| -> Result<Command> {
        let mut command = server.dlcmd()?;
        command.arg("get").arg(format!("dl://{name}")).arg(got.join(name));
        Ok(command)
    };
    at_once("get at once", names.iter().map(get).collect::<Result<_>>()?)?;
    check("ls", peak_of(server.dlcmd()?.args(["ls", "-lR", "dl://at-once-1"]))?)?;
    check_server("server", &mut server)?;
    names.iter().try_for_each(|name| folder::compare(&source, &got.join(name)))
}

/// Runs commands in parallel and checks the peak memory of each.
fn at_once(what: &str, commands: Vec<Command>) -> Result<()> {
    let peaks: Vec<_> = commands
        .into_iter()
        .map(|mut command| std::thread::spawn(move || peak_of(&mut command)))
        .collect();
    for peak in peaks {
        check(what, peak.join().expect("the thread only measures")?)?;
    }
    Ok(())
}

/// Keeps S-10 and S-58: with a hundred thousand files (torture: a million).
#[test]
fn heavy_many_tiny_files_take_less_than_256_mib() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let source = scene.path().join("src");
    let count = rounds(100_000, 1_000_000);
    for number in 0..count {
        if number % 1000 == 0 {
            fs::create_dir_all(source.join(format!("{:04}", number / 1000)))?;
        }
        let name = format!("{:04}/{number:07}", number / 1000);
        fs::write(source.join(&name), name)?;
    }
    let mut server = Server::start(&scene.path().join("data"))?;
    check("put", peak_of(server.dlcmd()?.arg("put").arg(&source).arg("dl://tiny"))?)?;
    let got = scene.path().join("got");
    check("get", peak_of(server.dlcmd()?.arg("get").arg("dl://tiny").arg(&got))?)?;
    check("ls", peak_of(server.dlcmd()?.args(["ls", "-lR", "dl://tiny"]))?)?;
    check("put again", peak_of(server.dlcmd()?.arg("put").arg(&source).arg("dl://tiny"))?)?;
    check_server("server", &mut server)?;
    folder::compare(&source, &got)?;
    server.stop()?;

    fs::remove_dir_all(scene.path().join("data/meta"))?;
    let mut server = Server::start(&scene.path().join("data"))?;
    check("recover", peak_of(server.dlcmd()?.args(["recover", "--all"]))?)?;
    check("rm", peak_of(server.dlcmd()?.args(["rm", "-r", "dl://tiny"]))?)?;
    check_server("server after recover and rm", &mut server)
}

/// Keeps S-10: with thirty paths of maximal length (torture: three hundred), each with two thousand
/// folders and their rows in Redis.
#[test]
fn heavy_the_deepest_folders_in_a_redis_take_less_than_256_mib() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let redis = runtime.block_on(Redis::start(&[]));
    let flags = ["--meta", &redis.url()];
    let mut server = Server::start_with(&scene.path().join("data"), "127.0.0.1:0", &flags)?;
    let options =
        ConnectOptions { servers: vec![server.address().to_owned()], ..Default::default() };
    let name = DatasetName::new("deep")?;
    let dataset = Client::connect(options)?.create_dataset(&name, ChunkShape::default())?;
    let clock = clock();
    let began = clock.monotonic();
    for file in 0..rounds(30, 300) {
        let path = format!("{file:04}/{}f", "x/".repeat(2_000));
        dataset.put(&FilePath::new(path)?, Attributes::default(), b"")?;
    }
    let _ = dataset.flush()?.check()?;
    tell(format_args!("put: {:?}", clock.monotonic() - began));
    check_server("server after put", &mut server)?;
    for arguments in [["ls", "-R", "dl://deep"], ["rm", "-r", "dl://deep"]] {
        let (began, what) = (clock.monotonic(), arguments.join(" "));
        check(&what, peak_of(server.dlcmd()?.args(arguments))?)?;
        tell(format_args!("{what}: {:?}", clock.monotonic() - began));
        check_server(&format!("server after {what}"), &mut server)?;
    }
    let left = run(server.dlcmd()?.args(["ls", "-R", "dl://deep"]))?.code(0)?;
    ensure!(left.stdout.is_empty(), "{left:?}");
    check_server("server", &mut server)
}

/// Keeps S-16 and S-10: chunks of waiting writers fill no memory and don't block the other writers.
#[test]
fn heavy_thirty_writers_progress_in_less_than_256_mib() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let source = scene.path().join("src");
    fs::create_dir_all(&source)?;
    // More chunks than a writer sends at once.
    for number in 0..300 {
        fs::write(source.join(format!("{number:03}")), [number as u8; 128 << 10])?;
    }
    let flags = ["--http", "127.0.0.1:0"];
    let mut server = Server::start_with(&scene.path().join("data"), "127.0.0.1:0", &flags)?;
    let put = |number: u32| -> Result<Command> {
        let mut command = server.dlcmd()?;
        command.arg("put").arg(&source).arg(format!("dl://{number}"));
        Ok(command)
    };
    let puts = (0..30).map(put).collect::<Result<_>>()?;
    at_once("put at once", puts)?;
    // A request without progress would be given up and repeated.
    let (_, metrics) = get(server.http(), "/metrics")?;
    let puts = |line: &&str| line.starts_with("diesel_requests_total{method=\"PutChunk\"");
    let failed = metrics.lines().filter(puts).find(|line| !line.contains("code=\"OK\""));
    ensure!(failed.is_none(), "writers blocked each other: {failed:?}");
    check_server("server", &mut server)
}

/// Keeps S-16 and S-10: with more readers than the read budget can serve at once.
#[test]
fn heavy_twenty_four_readers_progress_in_less_than_256_mib() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let file = scene.path().join("zeros");
    fs::File::create(&file)?.set_len(24 << 20)?;
    let mut server = Server::start(&scene.path().join("data"))?;
    run(server.dlcmd()?.arg("put").arg(&file).arg("dl://ds"))?.code(0)?;
    let read = |_| -> Result<Command> {
        let mut command = server.dlcmd()?;
        command.args(["cat", "dl://ds/zeros"]);
        Ok(command)
    };
    let reads = (0..24).map(read).collect::<Result<_>>()?;
    let clock = clock();
    let began = clock.monotonic();
    at_once("cat at once", reads)?;
    let took = clock.monotonic().saturating_sub(began);
    tell(format_args!("24 reads of 24 MiB took {took:?}"));
    // A request without progress would be given up after 30 seconds.
    ensure!(took < Duration::from_secs(25), "readers blocked each other: {took:?}");
    check_server("server", &mut server)
}
