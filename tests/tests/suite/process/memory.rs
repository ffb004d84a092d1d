//! The peak memory of the programs.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use dl_meta::redis_testing::Server as Redis;
use dl_tests::http::get;
use dl_tests::program::{Server, peak_of, run};
use dl_tests::scene::Scene;
use dl_tests::{folder, rounds, tell};
use libdiesel::{Attributes, ChunkShape, Client, ConnectOptions, DatasetName, FilePath};

/// Runs a command and checks its peak memory.
pub(super) fn check(what: &str, command: &mut Command) -> Result<()> {
    let peak = peak_of(command)?;
    tell(format_args!("{what}: at most {} MiB", peak >> 20));
    ensure!(peak > 0 && peak < 256 << 20, "{what} took {} MiB", peak >> 20);
    Ok(())
}

/// Runs commands in parallel and checks the peak memory of each.
fn at_once(what: &str, commands: impl Iterator<Item = Result<Command>>) -> Result<()> {
    std::thread::scope(|scope| {
        let begin = |command: Result<Command>| scope.spawn(move || check(what, &mut command?));
        let begun: Vec<_> = commands.map(begin).collect();
        begun.into_iter().try_for_each(|one| one.join().expect("the thread only measures"))
    })
}

/// A dlcmd command that ends with a path of this machine.
fn command(server: &Server, words: &[&str], path: &Path) -> Result<Command> {
    let mut command = server.dlcmd()?;
    command.args(words).arg(path);
    Ok(command)
}

fn put(server: &Server, source: &Path, dataset: &str) -> Result<Command> {
    let mut put = command(server, &["put"], source)?;
    put.arg(dataset);
    Ok(put)
}

/// Keeps S-10: with a file of a GiB (torture: ten).
#[test]
fn heavy_a_huge_file_takes_less_than_256_mib_at_both_ends() -> Result<()> {
    let scene = Scene::new()?;
    let length = rounds(1u64, 10) << 30;
    let (source, got) = (scene.path("huge"), scene.path("got"));
    fs::File::create(&source)?.set_len(length)?;
    let server = scene.start()?;
    check("put", &mut put(&server, &source, "dl://huge")?)?;
    server.check_memory("server after put")?;
    check("get", &mut command(&server, &["get", "dl://huge/huge"], &got)?)?;
    server.check_memory("server after get")?;
    run(Command::new("cmp").arg(&source).arg(&got))?.code(0)?;
    Ok(())
}

/// Keeps S-10: datasets in sequence and in parallel, then reads of all files. Memory freed by a
/// load must serve the next load.
#[test]
fn heavy_a_mix_of_loads_takes_less_than_256_mib() -> Result<()> {
    let scene = Scene::new()?;
    let source = scene.src();
    folder::fill_with(&source, rounds(20_000, 200_000), |n| vec![7; n * 7_919 % 8_192])?;
    let server = scene.start()?;
    for dataset in ["dl://first", "dl://second", "dl://third"] {
        check("put", &mut put(&server, &source, dataset)?)?;
    }
    let names: Vec<_> = (0..rounds(3, 6)).map(|number| format!("dl://{number}")).collect();
    at_once("put at once", names.iter().map(|name| put(&server, &source, name)))?;
    server.check_memory("server after puts")?;
    let got = |name: &String| scene.path("got").join(name.replace("dl://", ""));
    let get = |name: &String| command(&server, &["get", name], &got(name));
    at_once("get at once", names.iter().map(get))?;
    check("ls", server.dlcmd()?.args(["ls", "-lR", "dl://1"]))?;
    server.check_memory("server")?;
    names.iter().try_for_each(|name| folder::compare(&source, &got(name)))
}

/// Keeps S-10 and S-58: with a hundred thousand files (torture: a million).
#[test]
fn heavy_many_tiny_files_take_less_than_256_mib() -> Result<()> {
    let scene = Scene::new()?;
    let (source, got) = (scene.src(), scene.path("got"));
    folder::fill_with(&source, rounds(100_000, 1_000_000), |n| n.to_string().into_bytes())?;
    let server = scene.start()?;
    check("put", &mut put(&server, &source, "dl://tiny")?)?;
    check("get", &mut command(&server, &["get", "dl://tiny"], &got)?)?;
    check("ls", server.dlcmd()?.args(["ls", "-lR", "dl://tiny"]))?;
    check("put again", &mut put(&server, &source, "dl://tiny")?)?;
    server.check_memory("server")?;
    folder::compare(&source, &got)?;
    server.stop()?;

    scene.lose_metadata()?;
    let server = scene.start()?;
    check("recover", server.dlcmd()?.args(["recover", "--all"]))?;
    check("rm", server.dlcmd()?.args(["rm", "-r", "dl://tiny"]))?;
    server.check_memory("server after recover and rm")
}

/// Keeps S-10: with thirty paths of maximal length (torture: three hundred), each with two thousand
/// folders and their rows in Redis.
#[test]
fn heavy_the_deepest_folders_in_a_redis_take_less_than_256_mib() -> Result<()> {
    let scene = Scene::new()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let redis = runtime.block_on(Redis::start(&[]));
    let flags = ["--meta", &redis.url()];
    let server = scene.start_with(&flags)?;
    let options =
        ConnectOptions { servers: vec![server.address().to_owned()], ..Default::default() };
    let name = DatasetName::new("deep")?;
    let dataset = Client::connect(options)?.create_dataset(&name, ChunkShape::default())?;
    for file in 0..rounds(30, 300) {
        let path = format!("{file:04}/{}f", "x/".repeat(2_000));
        dataset.put(&FilePath::new(path)?, Attributes::default(), b"")?;
    }
    let _ = dataset.flush()?.check()?;
    server.check_memory("server after put")?;
    for arguments in [["ls", "-R", "dl://deep"], ["rm", "-r", "dl://deep"]] {
        let what = arguments.join(" ");
        check(&what, server.dlcmd()?.args(arguments))?;
        server.check_memory(&format!("server after {what}"))?;
    }
    let left = run(server.dlcmd()?.args(["ls", "-R", "dl://deep"]))?.code(0)?;
    ensure!(left.stdout.is_empty(), "{left:?}");
    server.check_memory("server")
}

/// Keeps S-16 and S-10: chunks of waiting writers fill no memory and don't block the other writers.
#[test]
fn heavy_thirty_writers_progress_in_less_than_256_mib() -> Result<()> {
    let scene = Scene::new()?;
    let source = scene.src();
    fs::create_dir_all(&source)?;
    // More chunks than a writer sends at once.
    for number in 0..300 {
        fs::write(source.join(format!("{number:03}")), [number as u8; 128 << 10])?;
    }
    let server = scene.start()?;
    at_once("put at once", (0..30).map(|n| put(&server, &source, &format!("dl://{n}"))))?;
    // A request without progress would be given up and repeated.
    let (_, metrics) = get(server.http(), "/metrics")?;
    let puts = |line: &&str| line.starts_with("diesel_requests_total{method=\"PutChunk\"");
    let failed = metrics.lines().filter(puts).find(|line| !line.contains("code=\"OK\""));
    ensure!(failed.is_none(), "writers blocked each other: {failed:?}");
    server.check_memory("server")
}
