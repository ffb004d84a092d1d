//! `dlcmd purge` and `dlcmd verify` on data of several days, with a kill of the server.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use dl_format::{ChunkIdMaker, DatasetId, Deletions};
use dl_meta::{Embedded, EmbeddedOptions, MetaStore};
use dl_runtime::ManualClock;
use dl_server::{Parts, prepare};
use dl_tests::cluster::{Running, clock, parts};
use dl_tests::dice::Dice;
use dl_tests::program::{Process, Server, dl, run};
use dl_tests::wire::{Files, Wire, chunk};
use dl_tests::{rounds, tell};

const AGE: Duration = Duration::from_secs(48 * 3_600);

/// Fills a server's folder two days ago, old enough for a purge: chunks of `per_chunk` files, every
/// second file deleted. Returns the remaining files.
async fn fill(data: &Path, chunks: usize, per_chunk: usize, length: usize) -> Result<Files> {
    let store = dl_store::open(&format!("file://{}", data.join("chunks").display())).await?;
    let (meta, stop) =
        Embedded::open(&data.join("meta"), EmbeddedOptions::default(), clock()).await?;
    let meta: Arc<dyn MetaStore> = Arc::new(meta);
    let then = clock().now().checked_sub(AGE).unwrap_or(SystemTime::UNIX_EPOCH);
    let parts = parts(store, Arc::clone(&meta));
    let parts = Parts { clock: Arc::new(ManualClock::new(then)), ..parts };
    prepare(&parts, stop).await?;
    let server = Running::start(parts).await?;
    let client = Wire::connect(server.address()).await?;
    let dataset = client.create("ds").await?;
    let (mut ids, mut files) = (ChunkIdMaker::new([9; 9]), Files::new());
    for number in 0..chunks {
        let file = |n: usize| {
            let path = format!("train/{:03}/{:07}.JPEG", number % 100, number * per_chunk + n);
            let bytes = (0..length).map(|at| (n * 7 + number + at / 3) as u8).collect();
            (path.into_bytes(), bytes)
        };
        let of_chunk: Files = (0..per_chunk).map(file).collect();
        let views = of_chunk.iter().map(|(path, bytes)| (path.as_slice(), bytes.as_slice()));
        client.put(dataset, &chunk(ids.next(then), dataset, views)?).await?;
        files.extend(of_chunk);
    }
    let mut deletions = Deletions::default();
    for (number, (path, record)) in client.list(dataset).await?.into_iter().enumerate() {
        if number % 2 == 0 {
            deletions.insert(&record.version);
            files.remove(path.as_bytes());
        }
    }
    for deletions in deletions.split() {
        client.delete(dataset, ids.next(then), &deletions).await?;
    }
    server.stop().await?;
    meta.close().await?;
    Ok(files)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = run(Command::new("cp").arg("-r").arg(from).arg(to))?;
    ensure!(copied.code == 0, "{copied:?}");
    Ok(())
}

async fn compare(server: &Server, files: &Files) -> Result<()> {
    let client = Wire::connect(server.address().parse()?).await?;
    let dataset: DatasetId = client.dataset("ds").await?.context("the dataset exists")?;
    ensure!(client.files(dataset).await? == *files, "other files");
    Ok(())
}

/// The bytes of all files below a folder.
fn bytes_below(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { bytes_below(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

/// Starts a purge.
fn purge(server: &Server) -> Result<Process> {
    let mut purge = server.dlcmd()?;
    purge.args(["purge", "--grace", "0s", "dl://ds"]);
    Process::start(purge.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Keeps S-27 and S-01: Rule 4.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_continues_after_a_kill_of_its_server() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (old, dice) = (scene.path().join("old"), Dice::new(1));
    let files = fill(&old, 60, 50, 20_000).await?;
    let live: usize = files.values().map(Vec::len).sum();
    let before = bytes_below(&old.join("chunks"))?;
    for round in 0..rounds(6, 60) {
        let data = scene.path().join("data");
        copy(&old, &data)?;
        for kill in 0..3 {
            let server = Server::start(&data)?;
            let mut purge = purge(&server)?;
            std::thread::sleep(Duration::from_millis(dice.below(400) as u64));
            server.kill()?;
            purge.kill()?;
            let server = Server::start(&data)?;
            compare(&server, &files).await.with_context(|| format!("round {round}, {kill}"))?;
            server.kill()?;
        }
        let server = Server::start(&data)?;
        for _ in 0..3 {
            dl(&server, ["purge", "--grace", "0s", "dl://ds"])?.code(0)?;
        }
        compare(&server, &files).await.context("purged")?;
        let after = bytes_below(&data.join("chunks"))?;
        // Copies made by a killed purge are too young to be removed.
        ensure!(after < before, "{before} bytes became {after}, of which {live} are alive");
        dl(&server, ["verify", "--checksums", "dl://ds"])?.code(0)?;
        server.stop()?;
        fs::remove_dir_all(data.join("meta"))?;
        let server = Server::start(&data)?;
        dl(&server, ["recover", "--all"])?.code(0)?;
        compare(&server, &files).await.context("recovered")?;
        server.stop()?;
        fs::remove_dir_all(&data)?;
    }
    Ok(())
}

/// Keeps S-27 and S-29: output and exit codes of both commands.
#[tokio::test(flavor = "multi_thread")]
async fn purge_and_verify_report_actions_and_findings() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let data = scene.path().join("data");
    let files = fill(&data, 10, 40, 20_000).await?;
    let live: usize = files.values().map(Vec::len).sum();
    let server = Server::start(&data)?;
    let first = dl(&server, ["--json", "purge", "dl://ds"])?.code(0)?;
    let told: serde_json::Value = serde_json::from_str(&first.text())?;
    ensure!(told["type"] == "purged" && told["rewritten"] == 10, "{told}");
    ensure!(told["waiting"] == 10 && told["removed"] == 0, "{told}");
    ensure!(told["waiting_seconds"] == 70 * 60, "{told}");
    ensure!(first.stderr.contains("wait, 70 min at most; run purge again"), "{}", first.stderr);
    let text = dl(&server, ["purge", "--all", "--grace", "0s"])?.code(0)?.text();
    ensure!(text.starts_with("ds: 0 chunks rewritten into 0, 10 objects removed"), "{text}");
    let after = bytes_below(&data.join("chunks"))?;
    ensure!(after * 10 < live as u64 * 11, "{after} bytes for {live}");
    compare(&server, &files).await?;

    let clean = dl(&server, ["verify", "--checksums", "dl://ds"])?.code(0)?.text();
    ensure!(
        clean.contains("200 files compared, ") && clean.contains(" read, 0 findings"),
        "{clean}"
    );
    let object = largest(&data.join("chunks"))?;
    let bytes = fs::read(&object)?;
    fs::remove_file(&object)?;
    let lost = dl(&server, ["--json", "verify", "dl://ds"])?.code(4)?.text();
    let found = lost.lines().filter(|line| line.contains(r#""type":"finding""#)).count();
    ensure!(found > 10 && lost.contains("is lost"), "{lost}");
    ensure!(lost.lines().last().is_some_and(|line| line.contains("verified")), "{lost}");
    fs::write(&object, bytes)?;
    dl(&server, ["verify", "--checksums", "dl://ds"])?.code(0)?;
    dl(&server, ["verify", "dl://other"])?.code(3)?;
    dl(&server, ["purge", "dl://other"])?.code(3)?;
    dl(&server, ["purge", "--grace", "soon", "dl://ds"])?.code(2)?;
    server.stop()?;
    Ok(())
}

/// The largest file below a folder.
fn largest(folder: &Path) -> Result<std::path::PathBuf> {
    let mut folders = vec![folder.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                files.push((metadata.len(), entry.path()));
            }
        }
    }
    Ok(files.into_iter().max().context("no file at all")?.1)
}

/// Keeps S-10: with a hundred thousand tiny files (torture: 1.3 million).
#[tokio::test(flavor = "multi_thread")]
async fn heavy_purging_very_many_tiny_files_takes_less_than_256_mib() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let data = scene.path().join("data");
    let files = fill(&data, rounds(25, 325), 4_000, 20).await?;
    let (mut server, clock) = (Server::start(&data)?, clock());
    for arguments in [
        &["purge", "dl://ds"][..],
        &["purge", "--grace", "0s", "dl://ds"],
        &["purge", "--grace", "0s", "dl://ds"],
        &["verify", "--checksums", "dl://ds"],
    ] {
        let began = clock.monotonic();
        dl(&server, arguments)?.code(0)?;
        tell(format_args!("{arguments:?} took {:?}", clock.monotonic() - began));
    }
    let peak = server.process().peak_memory().context("the server runs")?;
    tell(format_args!("server: at most {} MiB", peak >> 20));
    ensure!(peak < 256 << 20, "the server took {} MiB", peak >> 20);
    let listed = dl(&server, ["ls", "-R", "dl://ds"])?.code(0)?.text();
    ensure!(listed.lines().count() == files.len(), "{} files", listed.lines().count());
    server.stop()?;
    Ok(())
}
