//! Failed, interrupted and impossible starts of a server.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::program::{Process, Server, dlcmd, run, server_command};
use dl_tests::scene::Scene;
use dl_tests::{s3, skip, soon};
use rustix::process::Signal;

const ROLLED: &str = "the last stop was not clean";

/// Keeps S-24.
#[test]
fn a_failed_start_leaves_the_metadata_unchanged() -> Result<()> {
    let scene = Scene::filled(20, 1_000)?;
    let server = scene.start()?;
    server.put(scene.src(), "dl://ds")?;
    server.stop()?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let refused = scene.fails(1, &["--listen", &address])?;
    ensure!(refused.contains(&address), "{refused}");
    let server = scene.start()?;
    server.compare("dl://ds", &scene.src())?;
    let log = server.stop()?;
    ensure!(!log.contains(ROLLED), "{log}");
    // Cross-check: a start after a kill does log this text.
    scene.start()?.kill()?;
    let log = scene.start()?.stop()?;
    ensure!(log.contains(ROLLED), "{log}");
    Ok(())
}

/// Keeps S-24 and S-11: at any moment of the start.
#[test]
fn sigterm_ends_a_starting_server() -> Result<()> {
    let scene = Scene::filled(200, 100_000)?;
    let server = scene.start()?;
    server.put(scene.src(), "dl://ds")?;
    // A long roll-forward: one object under very many names.
    let chunk = scene.objects()?.pop().context("a chunk was put")?;
    let name = chunk.file_name().context("an object has a name")?.to_string_lossy().into_owned();
    for number in 0..20_000u32 {
        fs::hard_link(&chunk, chunk.with_file_name(format!("{number:06}{}", &name[6..])))?;
    }
    server.kill()?;
    let log = scene.path("log");
    let mut too_late = 0;
    // On a busy machine a server may finish the roll-forward before the signal arrives.
    for wait in [0, 0, 0, 5, 20, 50, 100, 200] {
        let mut command = server_command()?;
        command.args(["--listen", "127.0.0.1:0", "--data"]).arg(scene.data());
        command.stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        let mut starting = Process::start(&mut command)?;
        soon("the roll-forward begins", || Ok(fs::read_to_string(&log)?.contains(ROLLED)))?;
        std::thread::sleep(Duration::from_millis(wait));
        starting.signal(Signal::TERM)?;
        let code = starting.wait(Duration::from_secs(5));
        let code =
            code.with_context(|| format!("{wait} ms after the begin of the roll-forward"))?;
        let said = fs::read_to_string(&log)?;
        ensure!(code == 0, "the server ended with exit code {code}: {said}");
        too_late += u32::from(wait == 0 && said.contains("serving"));
        ensure!(too_late < 3, "the signal waits for the end of the roll-forward: {said}");
        if said.contains("serving") {
            // The next start has to roll forward again.
            scene.start()?.kill()?;
        }
    }
    for entry in fs::read_dir(chunk.parent().context("an object has a folder")?)? {
        let path = entry?.path();
        if path != chunk && fs::metadata(&path)?.ino() == fs::metadata(&chunk)?.ino() {
            fs::remove_file(path)?;
        }
    }
    // The last start completes the interrupted roll-forward.
    let server = scene.start()?;
    server.compare("dl://ds", &scene.src())
}

/// Keeps S-24: during a wait for a silent store.
#[test]
fn sigterm_ends_a_server_during_a_wait_for_its_store() -> Result<()> {
    let scene = Scene::new()?;
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let meta = format!("redis://{}/0", silent.local_addr()?);
    for flags in [["--meta", meta.as_str()], ["--store", "s3://bucket/prefix"]] {
        let mut command = server_command()?;
        command.args(["--listen", "127.0.0.1:0", "--data"]).arg(scene.data());
        command.envs(s3::settings(silent.local_addr()?)).args(flags);
        let mut starting = Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
        let (_asked, _) = silent.accept()?;
        starting.signal(Signal::TERM)?;
        let code = starting.wait(Duration::from_secs(5));
        ensure!(code.with_context(|| flags.join(" "))? == 0, "{flags:?}");
    }
    Ok(())
}

/// Keeps S-12.
#[test]
fn impossible_settings_end_with_2_and_create_nothing() -> Result<()> {
    let scene = Scene::new()?;
    fs::write(scene.path("text"), "no users and no certificate\n")?;
    for (flags, told) in [
        (&["--store", "ftp://x/y"][..], "ftp://x/y"),
        (&["--store", "ftp://x/y"], "file:///DIR"),
        (&["--fast-store", "hdfs://x"], "file:///DIR"),
        (&["--meta", "redsi://host:1/0"], "embedded:DIR"),
        (&["--store", "s3://"], "s3://BUCKET/PREFIX"),
        (&["--store", "file://rel/x"], "file:///DIR"),
        (&["--store", ""], "file:///DIR"),
        (&["--fast-store", "gs://"], "s3://BUCKET/PREFIX"),
        (&["--meta", "embedded:"], "embedded:DIR"),
        (&["--meta", "memory:x"], "memory:"),
        (&["--meta", "redis://"], "HOST:PORT"),
        (&["--meta", "redis://h:1/x"], "number of a database"),
        (&["--meta", "redis://:secret@h:1,i:2"], "redis-cluster://"),
        (&["--users", "nofile"], "nofile"),
        (&["--users", "text"], "text"),
        (&["--tls-cert", "nofile", "--tls-key", "nofile"], "nofile"),
        (&["--log", "info,=what=is=it"], "log"),
    ] {
        let mut server = server_command()?;
        server.args(flags).args(["--listen", "127.0.0.1:0"]).current_dir(scene.path(""));
        let refused = run(&mut server)?.code(2).with_context(|| format!("{flags:?}"))?;
        ensure!(refused.stderr.contains(told), "{flags:?}: {}", refused.stderr);
        ensure!(!refused.stderr.contains("secret"), "{flags:?}: {}", refused.stderr);
        let made = fs::read_dir(scene.path(""))?.count();
        ensure!(made == 1, "{flags:?} made something");
    }
    Ok(())
}

#[test]
fn an_unavailable_port_is_reported_with_a_remedy() -> Result<()> {
    let scene = Scene::new()?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let ended = |listen: &str, other: bool| -> Result<String> {
        let mut server = server_command()?;
        server.args(["--listen", listen, "--without-keys", "--data", "data"]);
        if other && rustix::process::geteuid().is_root() {
            // Root without capabilities.
            let mut as_other = std::process::Command::new("setpriv");
            as_other.args(["--bounding-set", "-all", "--inh-caps", "-all"]);
            as_other.arg(server.get_program()).args(server.get_args());
            server = as_other;
        }
        Ok(run(server.current_dir(scene.path("")))?.code(1)?.stderr)
    };
    let said = ended(&address, false)?;
    ensure!(said.contains("another server"), "{said}");
    let said = ended("192.0.2.1:7420", false)?;
    ensure!(said.contains("no address of this machine") && !said.contains("another"), "{said}");
    let said = ended("127.0.0.1:80", true)?;
    if !said.contains("denied") {
        return skip(format_args!("every user may listen on port 80 here: {said}"));
    }
    ensure!(said.contains("1024") && !said.contains("another server"), "{said}");
    Ok(())
}

/// Keeps S-11: with a closed stderr, as after the end of the terminal.
#[test]
fn a_server_whose_log_nobody_reads_serves_and_ends_on_sigterm() -> Result<()> {
    let scene = Scene::new()?;
    let said = scene.path("said");
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let mut command = server_command()?;
    command.args(["--listen", "127.0.0.1:0", "--log", "debug", "--data"]);
    command.arg(scene.data());
    command.stdout(fs::File::create(&said)?).stderr(writer);
    let mut server = Process::start(&mut command)?;
    soon("the server listens", || Ok(fs::read_to_string(&said)?.ends_with('\n')))?;
    let said = fs::read_to_string(&said)?;
    let address = said.trim_end().strip_prefix("listening on ").context("an address")?;
    run(dlcmd()?.args(["--server", address, "datasets"]))?.code(0)?;
    server.signal(Signal::TERM)?;
    ensure!(server.wait(Duration::from_secs(20))? == 0, "the server ended with an error");
    Ok(())
}

/// Keeps S-30 and S-67: without a key, the files give no access either.
#[test]
fn files_of_a_server_are_private_to_its_user() -> Result<()> {
    let scene = Scene::filled(3, 1_000)?;
    let above = scene.path("above");
    let (data, fast, opened) = (above.join("data"), scene.path("fast"), above.join("opened"));
    let flags = ["--fast-store", fast.to_str().context("a temporary folder has a name")?];
    let server = Server::start_with(&data, "127.0.0.1:0", &flags)?;
    server.put(scene.src(), "dl://ds")?;
    server.stop()?;
    let mode =
        |path: &Path| Ok::<_, std::io::Error>(fs::metadata(path)?.permissions().mode() & 0o777);
    for made in [&above, &data, &fast, &data.join("meta"), &data.join("chunks")] {
        ensure!(mode(made)? == 0o700, "{}: {:o}", made.display(), mode(made)?);
    }
    for entry in fs::read_dir(data.join("meta"))? {
        let file = entry?.path();
        ensure!(mode(&file)? == 0o600, "{}: {:o}", file.display(), mode(&file)?);
    }
    // An existing folder keeps its permissions.
    fs::create_dir_all(opened.join("chunks"))?;
    fs::set_permissions(opened.join("chunks"), fs::Permissions::from_mode(0o750))?;
    Server::start(&opened)?.stop()?;
    ensure!(mode(&opened.join("chunks"))? == 0o750, "the permissions were changed");
    Ok(())
}
