//! Loss of a server during a command, and the command's messages until the server returns.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_runtime::Deadline;
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Process, Server, run};
use rustix::process::Signal;

/// The length of a sparse file: more than the client's chunks in flight, so that the put takes a
/// while.
const LARGE: u64 = 256 << 20;
const FILES: usize = 500;
const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps S-11, S-01 and S-60.
#[test]
fn a_put_reports_a_dead_server_and_waits_for_its_return() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    folder::fill(&source, FILES, 20_000, &Dice::new(1))?;
    fs::File::create(source.join("large"))?.set_len(LARGE)?;
    let server = Server::start(&data)?;
    let address = server.address().to_owned();
    let (out, notes) = (scene.path().join("out"), scene.path().join("notes"));
    let mut put = server.dlcmd()?;
    put.args(["--json", "put"]).arg(&source).arg("dl://ds").stdin(Stdio::null());
    put.stdout(fs::File::create(&out)?).stderr(fs::File::create(&notes)?);
    let mut put = Process::start(&mut put)?;
    until(|| Ok(objects(&data.join("chunks"))? > 3))?;
    server.kill()?;
    let waits = |text: &str| text.contains("; trying for ") && text.contains(" s more");
    until(|| Ok(waits(&fs::read_to_string(&notes)?)))?;
    let said = fs::read_to_string(&notes)?;
    ensure!(said.contains(&format!("{address}: Connection refused")), "{said}");
    ensure!(said.contains("dl://ds"), "{said}");

    let server = Server::start_with(&data, &address, &[])?;
    let code = put.wait(PATIENCE)?;
    let said = fs::read_to_string(&notes)?;
    ensure!(code == 0, "put ended with exit code {code}: {said}");
    ensure!(said.lines().count() < 20, "put prints too much: {said}");
    let printed = fs::read_to_string(&out)?;
    let json: serde_json::Value = serde_json::from_str(&printed)?;
    ensure!(json["files"] == FILES + 1 && json["failed"] == 0, "{printed}");
    let got = scene.path().join("got");
    run(server.dlcmd()?.arg("get").arg("dl://ds").arg(&got))?.code(0)?;
    let large = fs::read(got.join("large"))?;
    ensure!(large.len() as u64 == LARGE && large.iter().all(|byte| *byte == 0), "large differs");
    for folder in [&source, &got] {
        fs::remove_file(folder.join("large"))?;
    }
    folder::compare(&source, &got)
}

/// Keeps S-11, S-60 and S-61: a hanging server is reported soon and costs each command a minute.
#[test]
fn put_and_get_report_a_hanging_server_and_end_in_a_minute() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    let (many, got) = (scene.path().join("many"), scene.path().join("got"));
    folder::fill(&many, 20_000, 100, &Dice::new(2))?;
    folder::fill(&source, FILES, 20_000, &Dice::new(1))?;
    fs::File::create(source.join("large"))?.set_len(16 * LARGE)?;
    let mut server = Server::start(&data)?;
    let address = server.address().to_owned();
    run(server.dlcmd()?.arg("put").arg(&many).arg("dl://many"))?.code(0)?;
    let (notes, got_notes) = (scene.path().join("notes"), scene.path().join("got-notes"));
    let mut put = server.dlcmd()?;
    put.arg("put").arg(&source).arg("dl://ds").stdin(Stdio::null()).stdout(Stdio::null());
    let mut put = Process::start(put.stderr(fs::File::create(&notes)?))?;
    let before = objects(&data.join("chunks"))?;
    until(|| Ok(objects(&data.join("chunks"))? > before + 3))?;
    let mut get = server.dlcmd()?;
    get.arg("get").arg("dl://many").arg(&got).stdin(Stdio::null()).stdout(Stdio::null());
    let mut get = Process::start(get.stderr(fs::File::create(&got_notes)?))?;
    until(|| Ok(got.join("000").is_dir()))?;
    server.process().signal(Signal::STOP)?;
    let (clock, said) = (clock(), || fs::read_to_string(&notes));
    let began = clock.monotonic();
    until(|| Ok(said()?.contains(&format!("{address}: no answer for 5 s; trying for"))))?;
    let told = clock.monotonic() - began;
    ensure!(told < Duration::from_secs(9), "the report came after {told:?}: {}", said()?);
    let code = put.wait(PATIENCE + Duration::from_secs(20))?;
    let took = clock.monotonic() - began;
    ensure!(took < PATIENCE + Duration::from_secs(10), "put took {took:?}: {}", said()?);
    ensure!(code == 5, "put ended with exit code {code}: {}", said()?);
    // The get waits a minute as well; its threads wait in parallel with its listing.
    let code = get.wait(Duration::from_secs(15))?;
    ensure!(code == 5, "get ended with {code}: {}", fs::read_to_string(&got_notes)?);
    server.kill()?;
    Ok(())
}

/// Waits for a condition.
fn until(mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Deadline::after(&*clock(), PATIENCE);
    while !is_so()? {
        let left = deadline.remaining(&*clock());
        ensure!(!left.is_zero(), "the condition is not met after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The count of chunks.
fn objects(folder: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        count += if entry.file_type()?.is_dir() {
            objects(&entry.path())?
        } else {
            usize::from(entry.file_name().to_string_lossy().ends_with(".c"))
        };
    }
    Ok(count)
}
