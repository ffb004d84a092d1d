//! Loss of a server during a command, and the command's messages until the server returns.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::program::{Process, Server};
use dl_tests::scene::Scene;
use dl_tests::{folder, soon};
use rustix::process::Signal;

/// The length of a sparse file: more than the client's chunks in flight, so that the put takes a
/// while.
const LARGE: u64 = 256 << 20;
const FILES: usize = 500;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Keeps S-11, S-01 and S-60.
#[test]
fn a_put_reports_a_dead_server_and_waits_for_its_return() -> Result<()> {
    let scene = Scene::filled(FILES, 20_000)?;
    let source = scene.src();
    fs::File::create(source.join("large"))?.set_len(LARGE)?;
    let server = scene.start()?;
    let address = server.address().to_owned();
    let (out, notes) = (scene.path("out"), scene.path("notes"));
    let mut put = server.dlcmd()?;
    put.args(["--json", "put"]).arg(&source).arg("dl://ds").stdin(Stdio::null());
    put.stdout(fs::File::create(&out)?).stderr(fs::File::create(&notes)?);
    let mut put = Process::start(&mut put)?;
    soon("chunks are stored", || Ok(scene.objects()?.len() > 3))?;
    server.kill()?;
    let waits = |text: &str| text.contains("; trying for ") && text.contains(" s more");
    soon("the put waits", || Ok(waits(&fs::read_to_string(&notes)?)))?;
    let said = fs::read_to_string(&notes)?;
    ensure!(said.contains(&format!("{address}: Connection refused")), "{said}");
    ensure!(said.contains("dl://ds"), "{said}");

    let server = Server::start_with(&scene.data(), &address, &[])?;
    let code = put.wait(TIMEOUT)?;
    let said = fs::read_to_string(&notes)?;
    ensure!(code == 0, "put ended with exit code {code}: {said}");
    ensure!(said.lines().count() < 20, "put prints too much: {said}");
    let printed = fs::read_to_string(&out)?;
    let json: serde_json::Value = serde_json::from_str(&printed)?;
    ensure!(json["files"] == FILES + 1 && json["failed"] == 0, "{printed}");
    server.compare("dl://ds", &source)
}

/// Keeps S-11, S-60 and S-61: a hanging server is reported soon and costs each command a minute.
#[test]
fn put_and_get_report_a_hanging_server_and_end_in_a_minute() -> Result<()> {
    let scene = Scene::filled(FILES, 20_000)?;
    let source = scene.src();
    let (many, got) = (scene.path("many"), scene.path("got"));
    folder::fill(&many, 20_000, 100, &Dice::new(2))?;
    fs::File::create(source.join("large"))?.set_len(16 * LARGE)?;
    let mut server = scene.start()?;
    let address = server.address().to_owned();
    server.put(&many, "dl://many")?;
    let (notes, got_notes) = (scene.path("notes"), scene.path("got-notes"));
    let mut put = server.dlcmd()?;
    put.arg("put").arg(&source).arg("dl://ds").stdin(Stdio::null()).stdout(Stdio::null());
    let mut put = Process::start(put.stderr(fs::File::create(&notes)?))?;
    let before = scene.objects()?.len();
    soon("chunks are stored", || Ok(scene.objects()?.len() > before + 3))?;
    let mut get = server.dlcmd()?;
    get.arg("get").arg("dl://many").arg(&got).stdin(Stdio::null()).stdout(Stdio::null());
    let mut get = Process::start(get.stderr(fs::File::create(&got_notes)?))?;
    soon("the get begins", || Ok(got.join("000").is_dir()))?;
    server.process().signal(Signal::STOP)?;
    let (clock, said) = (clock(), || fs::read_to_string(&notes));
    let began = clock.monotonic();
    let silence = format!("{address}: no answer for 5 s; trying for");
    soon("the silence is reported", || Ok(said()?.contains(&silence)))?;
    let told = clock.monotonic() - began;
    ensure!(told < Duration::from_secs(9), "the report came after {told:?}: {}", said()?);
    let code = put.wait(TIMEOUT + Duration::from_secs(20))?;
    let took = clock.monotonic() - began;
    ensure!(took < TIMEOUT + Duration::from_secs(10), "put took {took:?}: {}", said()?);
    ensure!(code == 5, "put ended with exit code {code}: {}", said()?);
    // The get waits a minute as well; its threads wait in parallel with its listing.
    let code = get.wait(Duration::from_secs(15))?;
    ensure!(code == 5, "get ended with {code}: {}", fs::read_to_string(&got_notes)?);
    server.kill()?;
    Ok(())
}
