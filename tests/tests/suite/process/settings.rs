//! Settings changed by an administrator at run time, in a file and in an etcd of three nodes.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::fault::Rates;
use dl_runtime::{Deadline, SeededRandom};
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::etcd::Etcd;
use dl_tests::program::{Server, dl, dlcmd, run, server_command};
use dl_tests::proxy::{FaultyAnswer, Proxy};
use dl_tests::s3::{self, Kind, S3};
use dl_tests::{folder, http};

const PATIENCE: Duration = Duration::from_secs(30);

/// The latency of a slow bucket.
const LONGEST: Duration = Duration::from_secs(6);

pub(super) fn soon(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Deadline::after(&*clock(), PATIENCE);
    while !is_so()? {
        ensure!(!deadline.remaining(&*clock()).is_zero(), "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The memory limits for reads and writes in MiB, from the metrics.
pub(super) fn bounds(server: &Server) -> Result<(u64, u64)> {
    let (_, text) = http::get(server.http(), "/metrics")?;
    let value = |budget: &str| -> Result<u64> {
        let name = format!("diesel_memory_budget_bytes{{budget=\"{budget}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(name.as_str()));
        Ok(value.with_context(|| format!("find {name} in {text}"))?.parse::<u64>()? >> 20)
    };
    Ok((value("read")?, value("write")?))
}

/// Whether a put is accepted; a refusal must have the right reason.
fn may_write(server: &Server, file: &Path) -> Result<bool> {
    let put = run(server.dlcmd()?.args(["put", "--checksum"]).arg(file).arg("dl://small"))?;
    ensure!(put.code == 0 || put.stderr.contains("read-only"), "{put:?}");
    ensure!(put.code < 2, "{put:?}");
    Ok(put.code == 0)
}

/// Changes a file before each put, so that the put has data.
fn file(scene: &Path, text: &str) -> Result<std::path::PathBuf> {
    let path = scene.join("file");
    fs::write(&path, text)?;
    Ok(path)
}

/// Keeps S-33.
#[test]
fn a_changed_file_makes_a_server_read_only_and_back() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let config = scene.path().join("dlserver.toml");
    fs::write(&config, "grace = \"5s\"\n")?;
    let flags = ["--config", config.to_str().unwrap_or_default()];
    let server = Server::start_with(&scene.path().join("data"), "127.0.0.1:0", &flags)?;
    ensure!(may_write(&server, &file(scene.path(), "one")?)?, "the put is refused from the start");
    fs::write(&config, "[live]\nread_only = true\n")?;
    let mut turn = 0;
    let mut writes = || {
        turn += 1;
        may_write(&server, &file(scene.path(), &format!("turn {turn}"))?)
    };
    soon("read-only", || Ok(!writes()?))?;
    dl(&server, ["ls", "dl://small"])?.code(0)?;
    dl(&server, ["rm", "dl://small/file"])?.code(1)?;
    dl(&server, ["delete-dataset", "dl://small"])?.code(1)?;
    dl(&server, ["recover", "--all"])?.code(0)?;
    for broken in ["[live]\nread_only = maybe\n", ""] {
        fs::write(&config, broken)?;
        std::thread::sleep(Duration::from_secs(6));
        ensure!(!writes()?, "a broken text is in force");
    }
    fs::write(&config, "[live]\nwrite_memory = \"8MiB\"\n")?;
    soon("read-write", writes)?;
    let log = server.stop()?;
    ensure!(log.contains("can't be used"), "{log}");
    Ok(())
}

/// Keeps S-33.
#[test]
fn changed_memory_limits_apply_until_removed() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let config = scene.path().join("dlserver.toml");
    fs::write(&config, "grace = \"5s\"\nread_memory = \"20MiB\"\n")?;
    let config_flag = config.to_string_lossy().into_owned();
    let flags = ["--config", &config_flag, "--http", "127.0.0.1:0"];
    let first = ["--read-memory", "16MiB", "--write-memory", "12MiB"];
    let flags = [&flags[..], &first].concat();
    let server = Server::start_with(&scene.path().join("data"), "127.0.0.1:0", &flags)?;
    ensure!(bounds(&server)? == (16, 12), "at the start: {:?}", bounds(&server)?);
    for (live, now) in [
        ("read_memory = \"32MiB\"\nwrite_memory = \"8MiB\"", (32, 8)),
        ("write_memory = \"24MiB\"", (16, 24)),
        ("", (16, 12)),
    ] {
        fs::write(&config, format!("[live]\n{live}\n"))?;
        soon(live, || Ok(bounds(&server)? == now))?;
        // The limits apply to requests, too.
        ensure!(may_write(&server, &file(scene.path(), live)?)?, "{live}: no put");
        run(server.dlcmd()?.args(["cat", "dl://small/file"]))?.code(0)?;
    }
    server.stop()?;
    Ok(())
}

/// Keeps S-33.
#[test]
fn memory_limits_and_kept_datasets_follow_etcd() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (source, fast) = (scene.path().join("src"), scene.path().join("fast"));
    folder::fill(&source, 30, 20_000, &Dice::new(1))?;
    let etcd = Etcd::start(1)?;
    let set = |text: &str| etcd.control(&["put", "/diesel/config", text]);
    set("# nothing yet")?;
    let config = format!("etcd://{}/diesel/config", etcd.addresses());
    let fast_flag = fast.to_string_lossy().into_owned();
    let flags = ["--config", &config, "--fast-store", &fast_flag, "--http", "127.0.0.1:0"];
    let server = Server::start_with(&scene.path().join("data"), "127.0.0.1:0", &flags)?;
    for dataset in ["dl://kept-1", "dl://other"] {
        run(server.dlcmd()?.arg("put").arg(&source).arg(dataset))?.code(0)?;
    }
    let first = bounds(&server)?;
    let copies = || folder::bytes_under(&fast.join("copies"));
    ensure!(copies()? == 0, "copied before anybody asked");
    let objects = folder::bytes_under(&scene.path().join("data/chunks"))?;
    set("[live]\nread_memory = \"16MiB\"\nwrite_memory = \"8MiB\"\nkeep = [\"kept-*\"]")?;
    soon("the bounds count", || Ok(bounds(&server)? == (16, 8)))?;
    soon("the dataset is copied", || Ok(copies()? > objects / 3))?;
    ensure!(copies()? < objects * 2 / 3, "the other one, too");
    set("[live]\nkeep = []")?;
    soon("the bounds are those of the start", || Ok(bounds(&server)? == first))?;
    server.stop()?;
    Ok(())
}

/// Keeps S-33.
#[test]
fn servers_follow_etcd_and_survive_its_loss() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let mut etcd = Etcd::start(3)?;
    etcd.control(&["put", "/diesel/config", "grace = \"5s\""])?;
    let config = format!("etcd://{}/diesel/config", etcd.addresses());
    let flags = ["--config", config.as_str()];
    let server = Server::start_with(&scene.path().join("data"), "127.0.0.1:0", &flags)?;
    let mut turn = 0;
    let mut writes = || {
        turn += 1;
        may_write(&server, &file(scene.path(), &format!("turn {turn}"))?)
    };
    ensure!(writes()?, "the put is refused from the start");
    let set = |etcd: &Etcd, text| etcd.control(&["put", "/diesel/config", text]);
    set(&etcd, "[live]\nread_only = true")?;
    soon("read-only", || Ok(!writes()?))?;
    // The node with the watch; the other nodes have the new value.
    etcd.kill(0)?;
    etcd.wait()?;
    set(&etcd, "[live]\nread_only = false")?;
    soon("a node is dead and the news come", &mut writes)?;
    etcd.control(&["del", "/diesel/config"])?;
    set(&etcd, "[live]\nread_only = true")?;
    soon("read-only again", || Ok(!writes()?))?;
    etcd.kill(1)?;
    etcd.kill(2)?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(!writes()?, "without etcd the last settings don't hold");
    dl(&server, ["ls", "dl://small"])?.code(0)?;
    for node in 0..3 {
        etcd.run(node)?;
    }
    etcd.wait()?;
    set(&etcd, "# nothing")?;
    soon("etcd is back", &mut writes)?;
    server.stop()?;
    Ok(())
}

/// Keeps S-33.
#[test]
fn users_in_etcd_come_and_go() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let users = scene.path().join("users");
    let etcd = Etcd::start(1)?;
    let user = |arguments: &[&str]| -> Result<String> {
        let mut command = dlcmd()?;
        command.arg("user").arg("--users").arg(&users).args(arguments);
        Ok(run(&mut command)?.code(0)?.text().trim().to_owned())
    };
    let add = |name: &str| user(&["add", name, "--role", "admin:*"]);
    let publish = || etcd.control(&["put", "/diesel/users", &fs::read_to_string(&users)?]);
    let ann = add("ann")?;
    publish()?;
    let place = format!("etcd://{}/diesel/users", etcd.addresses());
    let flags = ["--users", place.as_str()];
    let server = Server::start_with(&scene.path().join("data"), "127.0.0.1:0", &flags)?;
    let may = |name: &str, key: &str| -> Result<bool> {
        let mut command = server.dlcmd()?;
        command.env("DIESEL_USER", name).env("DIESEL_KEY", key);
        let asked = run(command.arg("datasets"))?;
        let is_refused = asked.stderr.contains("the user or the key is wrong");
        ensure!(asked.code == 0 || is_refused, "{asked:?}");
        Ok(asked.code == 0)
    };
    ensure!(may("ann", &ann)?, "a user is not known");
    let bob = add("bob")?;
    ensure!(!may("bob", &bob)?, "an unpublished user has access");
    publish()?;
    soon("a user comes", || may("bob", &bob))?;
    user(&["remove", "bob"])?;
    publish()?;
    soon("a user goes", || Ok(!may("bob", &bob)?))?;
    ensure!(may("ann", &ann)?, "the other one is gone, too");
    server.stop()?;
    Ok(())
}

/// Keeps S-33.
#[test]
fn kept_datasets_are_copied_before_their_first_read() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (config, source) = (scene.path().join("dlserver.toml"), scene.path().join("src"));
    let fast = scene.path().join("fast");
    fs::write(&config, "# nothing yet\n")?;
    folder::fill(&source, 300, 20_000, &Dice::new(1))?;
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let flags = ["--config".to_owned(), path(&config), "--fast-store".to_owned(), path(&fast)];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start_with(&scene.path().join("data"), "127.0.0.1:0", &flags)?;
    for dataset in ["dl://kept-1", "dl://other"] {
        run(server.dlcmd()?.arg("put").arg(&source).arg(dataset))?.code(0)?;
    }
    let copies = || folder::bytes_under(&fast.join("copies"));
    ensure!(copies()? == 0, "copied before anybody asked");
    let objects = folder::bytes_under(&scene.path().join("data/chunks"))?;
    fs::write(&config, "[live]\nkeep = [\"kept-*\"]\n")?;
    soon("the dataset is copied", || Ok(copies()? > objects / 3))?;
    ensure!(copies()? < objects * 2 / 3, "the other one, too");
    server.stop()?;
    Ok(())
}

/// Keeps S-14 and S-65: without its fast store a server is slow, but starts.
#[test]
fn an_unavailable_fast_store_is_used_as_soon_as_possible() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (disk, source) = (scene.path().join("disk"), scene.path().join("src"));
    fs::write(&disk, "no folder yet")?;
    folder::fill(&source, 30, 20_000, &Dice::new(1))?;
    let fast = disk.join("fast");
    let flags = ["--fast-store", fast.to_str().context("a temporary folder has a name")?];
    let server = Server::start_with(&scene.path().join("data"), "127.0.0.1:0", &flags)?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    let mut round = 0;
    let mut read = || {
        round += 1;
        let back = scene.path().join(format!("back-{round}"));
        run(server.dlcmd()?.args(["get", "dl://ds"]).arg(&back))?.code(0)?;
        ensure!(folder::read(&source)? == folder::read(&back)?, "other bytes came back");
        anyhow::Ok(())
    };
    read()?;
    fs::remove_file(&disk)?;
    soon("read objects are copied", || {
        read()?;
        Ok(folder::bytes_under(&fast.join("copies"))? > 0)
    })?;
    server.stop()?;
    Ok(())
}

#[test]
fn a_silent_configuration_source_ends_the_start() -> Result<()> {
    let scene = tempfile::tempdir()?;
    for (place, told) in [
        ("/does/not/exist", "No such file"),
        ("etcd://127.0.0.1:1/diesel/config", "127.0.0.1:1"),
        ("etcd://user:secret@127.0.0.1/diesel", "HOST:2379"),
    ] {
        let mut command = server_command()?;
        command.args(["--config", place, "--data"]).arg(scene.path().join("data"));
        let ended = run(&mut command)?.code(2)?;
        ensure!(ended.stderr.contains(told) && !ended.stderr.contains("secret"), "{ended:?}");
    }
    Ok(())
}

/// Keeps S-33 and S-76: read-only servers stop removals, including removals begun by a start.
#[test]
fn a_deletion_pauses_while_the_servers_are_read_only() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, config) = (scene.path().join("data"), scene.path().join("dlserver.toml"));
    fs::write(&config, "# nothing yet\n")?;
    let bucket = S3::start(Kind::S3sFs)?;
    let proxy = Proxy::start(bucket.address(), Arc::new(SeededRandom::new(7)))?;
    let (url, variables) = (bucket.fresh(), s3::settings(proxy.address()));
    let config_flag = config.to_string_lossy().into_owned();
    let flags = ["--store", &url, "--config", &config_flag];
    let start = || Server::start_among(&data, "127.0.0.1:0", &flags, &variables);
    let server = start()?;
    for number in 0..120 {
        let source = file(scene.path(), &format!("file {number}"))?;
        let address = format!("dl://doomed/{number}");
        run(server.dlcmd()?.arg("put").arg(source).arg(address))?.code(0)?;
    }
    let objects = || -> Result<usize> {
        let files = folder::read(bucket.folder())?;
        let is_ours = |path: &str| path.ends_with(".c");
        Ok(files.keys().filter(|path| is_ours(&String::from_utf8_lossy(path))).count())
    };
    let all = objects()?;
    ensure!(all >= 120, "{all} objects");
    // Requests in flight to the bucket complete.
    let settled = || std::thread::sleep(LONGEST * 2);
    let slow = Rates {
        before: 0.0,
        answer_lost: 0.0,
        delay: 1.0,
        longest_delay: LONGEST,
        error: FaultyAnswer::Internal,
    };
    proxy.faults().set_rates("DELETE", Some(slow));
    let mut delete = server.dlcmd()?;
    delete.args(["delete-dataset", "dl://doomed"]);
    let deleted = std::thread::scope(|scope| {
        let deleting = scope.spawn(|| run(&mut delete));
        soon("the deletion has begun", || Ok(objects()? < all))?;
        fs::write(&config, "[live]\nread_only = true\n")?;
        deleting.join().map_err(|_| anyhow::anyhow!("the thread panicked"))?
    })?;
    let is_told = deleted.text().contains("the rest is being removed");
    ensure!(deleted.code == 0 && is_told, "{deleted:?}");
    settled();
    let left = objects()?;
    ensure!(left > 0 && left < all, "{left} of {all} objects are left");
    server.stop()?;
    let server = start()?;
    settled();
    ensure!(objects()? == left, "a start removes objects of read-only servers");
    server.stop()?;
    // In the middle of a continued deletion, too.
    fs::write(&config, "# nothing\n")?;
    let server = start()?;
    soon("the deletion continues", || Ok(objects()? < left))?;
    fs::write(&config, "[live]\nread_only = true\n")?;
    settled();
    let last = objects()?;
    ensure!(last > 0 && last < left, "{last} of {left} objects are left");
    proxy.faults().set_rates("DELETE", None);
    fs::write(&config, "# nothing\n")?;
    soon("the others go by themselves", || Ok(objects()? == 0))?;
    server.stop()?;
    Ok(())
}
