//! Connections and progress of a running dlcmd.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Process, Server, dlcmd, run};
use rustix::process::Signal;

use super::common::Scene;

/// The bytes sent to the server on each connection.
type Sent = Arc<Mutex<Vec<Arc<AtomicU64>>>>;

fn all(sent: &Sent) -> MutexGuard<'_, Vec<Arc<AtomicU64>>> {
    sent.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forwards connections to `server` and counts their bytes.
fn counted(server: &Server) -> Result<(String, Sent)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (address, upstream) = (listener.local_addr()?.to_string(), server.address().to_owned());
    let sent = Sent::default();
    let seen = Arc::clone(&sent);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(&upstream) else { return };
            let count = Arc::<AtomicU64>::default();
            all(&seen).push(Arc::clone(&count));
            let (Ok(client2), Ok(server2)) = (client.try_clone(), server.try_clone()) else {
                return;
            };
            std::thread::spawn(move || pass(client, server, &count));
            std::thread::spawn(move || pass(server2, client2, &AtomicU64::new(0)));
        }
    });
    Ok((address, sent))
}

fn pass(mut from: TcpStream, mut to: TcpStream, count: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = io::Read::read(&mut from, &mut buffer) {
        count.fetch_add(read as u64, Ordering::Relaxed);
        if io::Write::write_all(&mut to, &buffer[..read]).is_err() {
            break;
        }
    }
    // The other side may have closed the connection first.
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn a_client_uses_several_connections() -> Result<()> {
    let scene = Scene::new()?;
    folder::fill(&scene.path("src"), 400, 200_000, &Dice::new(7))?;
    let (address, sent) = counted(&scene.server)?;
    for arguments in [["put", "src", "dl://ds"], ["get", "dl://ds", "got"]] {
        let mut command = dlcmd()?;
        command.args(["--server", &address]).args(arguments).current_dir(scene.path(""));
        run(&mut command)?.code(0)?;
        let sent = std::mem::take(&mut *all(&sent));
        let sent: Vec<_> = sent.iter().map(|sent| sent.load(Ordering::Relaxed)).collect();
        let most = sent.iter().max().copied().unwrap_or(0);
        // Each connection has its share of the work.
        let busy = sent.iter().filter(|sent| **sent > most / 4).count();
        ensure!(busy >= 2, "{}: {sent:?} bytes on each connection", arguments[0]);
    }
    folder::compare(&scene.path("src"), &scene.path("got"))
}

/// The output of `command` on a terminal of `columns` columns, including overdrawn text.
fn on_a_terminal(columns: usize, command: &str, folder: &Path) -> Result<String> {
    let command = format!("stty cols {columns} rows 40; exec {command}");
    let mut script = Command::new("script");
    script.args(["-qefc", &command, "/dev/null"]).current_dir(folder);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DIESEL_") {
            script.env_remove(name);
        }
    }
    let script = script.env("TERM", "xterm").stdin(Stdio::null()).output();
    let output = script.context("run script, of Debian's bsdutils")?;
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{}: {shown}", output.status);
    Ok(shown)
}

#[test]
fn put_on_a_terminal_shows_progress_rates_and_time_left() -> Result<()> {
    let scene = Scene::new()?;
    // Storing these files takes far longer than counting them.
    let (count, file) = (dl_tests::rounds(10_000, 20_000), "some bytes of a file".repeat(1_500));
    for number in 0..count {
        scene.write(&format!("{}/{number}", number / 1_000), &file)?;
    }
    let put = dlcmd()?;
    let program = put.get_program().to_string_lossy().into_owned();
    let address = scene.server.address();
    let command = format!("{program} --server {address} put --threads 1 src dl://ds");
    let shown = on_a_terminal(120, &command, &scene.path(""))?;
    let drawn: Vec<_> = shown.split(['\r', '\n']).filter(|line| line.contains("left")).collect();
    let drawn_all = || shown.replace('\x1b', "\\e");
    let line = drawn.last().with_context(drawn_all)?;
    for told in ["iB/", "B/s", "files/s", "left"] {
        ensure!(line.contains(told), "{told} is not in {line}: {}", drawn_all());
    }
    // Before the first measurement, no numbers are shown.
    for line in shown.split(['\r', '\n']) {
        ensure!(!line.contains(" 0 B/s"), "{line}: {}", drawn_all());
        ensure!(!line.contains(" 0s left") || line.contains("files/s"), "{line}: {}", drawn_all());
    }
    ensure!(shown.contains(&format!("{count} files put")), "{}", drawn_all());
    // Without a terminal nothing is drawn.
    let quiet = scene.dl(["put", "--checksum", "src", "dl://ds"])?.code(0)?;
    ensure!(quiet.stderr.is_empty(), "{}", quiet.stderr);
    Ok(())
}

/// The visible part of a terminal line.
fn visible(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    let end = |part: &str| part.find(|letter: char| letter.is_ascii_alphabetic());
    parts.fold(first, |text, part| text + end(part).map_or("", |at| &part[at + 1..]))
}

#[test]
fn progress_with_links_never_wraps_or_passes_its_total() -> Result<()> {
    let scene = Scene::new()?;
    for number in 0..dl_tests::rounds(3_000, 10_000) {
        scene.write(&format!("files/{number}"), &"some bytes of a file".repeat(1_500))?;
        std::os::unix::fs::symlink(
            format!("files/{number}"),
            scene.path(&format!("src/{number}")),
        )?;
    }
    let program = dlcmd()?.get_program().to_string_lossy().into_owned();
    let address = scene.server.address();
    for columns in [50, 30] {
        let command =
            format!("{program} --server {address} put --threads 1 src dl://columns{columns}");
        let shown = on_a_terminal(columns, &command, &scene.path(""))?;
        let lines = shown.split(['\r', '\n']).map(visible);
        let drawn: Vec<_> = lines.filter(|line| line.contains("iB/")).collect();
        let moved = drawn.iter().filter_map(|line| line.split(" file").next());
        let counts: std::collections::HashSet<_> = moved.collect();
        ensure!(columns < 50 || counts.len() > 2, "files do not move: {drawn:?}");
        for line in &drawn {
            ensure!(line.chars().count() <= columns, "{columns} columns: {line}");
            let bytes = |text: &str| text.parse::<f64>().ok();
            let words: Vec<_> = line.split([' ', '/']).filter(|word| !word.is_empty()).collect();
            for part in words.windows(4).filter(|part| part[1].ends_with("iB")) {
                let (Some(done), Some(all)) = (bytes(part[0]), bytes(part[2])) else { continue };
                ensure!(part[1] != part[3] || done <= all, "past the end: {line}");
            }
        }
    }
    Ok(())
}

/// Starts a put, waits for its first bytes, runs `before`, and sends Ctrl-C.
fn interrupted(scene: &Scene, before: impl FnOnce() -> Result<()>) -> Result<serde_json::Value> {
    let (out, errors) = (scene.path("out"), scene.path("errors"));
    let mut put = scene.command(["--json", "put", "src", "dl://ds"])?;
    put.stdout(std::fs::File::create(&out)?).stderr(std::fs::File::create(&errors)?);
    let mut put = Process::start(&mut put)?;
    let mut tries = 0;
    while folder::bytes_under(&scene.path("data/chunks"))? < 1 << 20 {
        std::thread::sleep(Duration::from_millis(10));
        tries += 1;
        ensure!(tries < 3_000, "the put sends nothing");
    }
    before()?;
    std::thread::sleep(Duration::from_millis(300));
    put.signal(Signal::INT)?;
    let code = put.wait(Duration::from_secs(10))?;
    let (said, errors) = (std::fs::read_to_string(&out)?, std::fs::read_to_string(&errors)?);
    ensure!(code == 130, "put ended with exit code {code}: {said}{errors}");
    ensure!(errors.contains("the same command goes on"), "{errors}");
    let last = said.lines().last().with_context(|| format!("no last line: {errors}"))?;
    Ok(serde_json::from_str(last)?)
}

#[test]
fn an_interrupted_put_prints_its_last_line_in_a_huge_file() -> Result<()> {
    let scene = Scene::new()?;
    scene.write("small", "1")?;
    std::fs::File::create(scene.path("src/zeros"))?.set_len(40 << 30)?;
    let line = interrupted(&scene, || Ok(()))?;
    ensure!(line["type"] == "put" && line["files"].as_u64() <= Some(1), "{line}");
    Ok(())
}

#[test]
fn an_interrupted_put_prints_its_last_line_if_servers_hang() -> Result<()> {
    let mut scene = Scene::new()?;
    // Sparse files, too many to be stored before the interrupt.
    for number in 0..4_000 {
        scene.write(&format!("{number:04}"), "")?;
        std::fs::File::create(scene.path(&format!("src/{number:04}")))?.set_len(3 << 20)?;
    }
    let id = scene.server.process().id();
    let pid = rustix::process::Pid::from_raw(id.try_into()?).context("a process has an id")?;
    let line = interrupted(&scene, || Ok(rustix::process::kill_process(pid, Signal::STOP)?))?;
    ensure!(line["type"] == "put" && line["failed"] == 0, "{line}");
    rustix::process::kill_process(pid, Signal::CONT)?;
    Ok(())
}
