//! Settings changed by an administrator at run time, in a file and in an etcd of three nodes.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::SeededRandom;
use dl_runtime::fault::Rates;
use dl_tests::etcd::Etcd;
use dl_tests::http::sample;
use dl_tests::program::{Server, dl, dlcmd, run};
use dl_tests::proxy::{FaultyAnswer, Proxy};
use dl_tests::s3::{self, Kind, S3};
use dl_tests::scene::Scene;
use dl_tests::{folder, soon};

/// The latency of a slow bucket.
const LONGEST: Duration = Duration::from_secs(6);

/// The memory limits for reads and writes in MiB, from the metrics.
pub(super) fn bounds(server: &Server) -> Result<(u64, u64)> {
    let value = |budget: &str| -> Result<u64> {
        let name = format!("diesel_memory_budget_bytes{{budget=\"{budget}\"}}");
        Ok(sample(server.http(), &name)? as u64 >> 20)
    };
    Ok((value("read")?, value("write")?))
}

/// Whether a put of a file with a new text is accepted; a refusal must have the right reason.
fn may_write(scene: &Scene, server: &Server, text: impl ToString) -> Result<bool> {
    folder::write(&scene.path(""), "file", text.to_string())?;
    let put = run(server.dlcmd()?.arg("put").arg(scene.path("file")).arg("dl://small"))?;
    ensure!(put.code == 0 || put.stderr.contains("read-only"), "{put:?}");
    ensure!(put.code < 2, "{put:?}");
    Ok(put.code == 0)
}

/// Keeps S-33.
#[test]
fn a_changed_file_makes_a_server_read_only_and_back() -> Result<()> {
    let scene = Scene::new()?;
    let config = scene.path("dlserver.toml");
    fs::write(&config, "grace = \"5s\"\n")?;
    let flags = ["--config", config.to_str().unwrap_or_default()];
    let server = scene.start_with(&flags)?;
    ensure!(may_write(&scene, &server, "one")?, "the put is refused from the start");
    fs::write(&config, "[live]\nread_only = true\n")?;
    let mut turns = 1_000..;
    let mut writes = || may_write(&scene, &server, turns.next().unwrap_or_default());
    soon("read-only", || Ok(!writes()?))?;
    dl(&server, ["ls", "dl://small"])?.code(0)?;
    dl(&server, ["rm", "dl://small/file"])?.code(1)?;
    dl(&server, ["delete-dataset", "dl://small"])?.code(1)?;
    dl(&server, ["recover", "--all"])?.code(0)?;
    for broken in [
        "[live]\nread_only = maybe\n",
        "",
        "\nmeta = \"redis://:TOPSECRET@h:1\n",
        "\n\nmata = \"redis://:TOPSECRET@h:1\"\n",
    ] {
        fs::write(&config, broken)?;
        std::thread::sleep(Duration::from_secs(6));
        ensure!(!writes()?, "a broken text is in force");
    }
    fs::write(&config, "[live]\nwrite_memory = \"8MiB\"\n")?;
    soon("read-write", writes)?;
    let log = server.stop()?;
    for told in ["can't be used", "line 2, column", "line 3, column 1"] {
        ensure!(log.contains(told) && !log.contains("TOPSECRET"), "{log}");
    }
    Ok(())
}

/// Keeps S-33.
#[test]
fn changed_memory_limits_apply_until_removed() -> Result<()> {
    let scene = Scene::new()?;
    let config = scene.path("dlserver.toml");
    fs::write(&config, "grace = \"5s\"\nread_memory = \"20MiB\"\n")?;
    let config_flag = config.to_string_lossy();
    let first = ["--read-memory", "16MiB", "--write-memory", "12MiB", "--config", &config_flag];
    let server = scene.start_with(&first)?;
    ensure!(bounds(&server)? == (16, 12), "at the start: {:?}", bounds(&server)?);
    for (live, now) in [
        ("read_memory = \"32MiB\"\nwrite_memory = \"8MiB\"", (32, 8)),
        ("write_memory = \"24MiB\"", (16, 24)),
        ("", (16, 12)),
    ] {
        fs::write(&config, format!("[live]\n{live}\n"))?;
        soon(live, || Ok(bounds(&server)? == now))?;
        // The limits apply to requests, too.
        ensure!(may_write(&scene, &server, live)?, "{live}: no put");
        run(server.dlcmd()?.args(["cat", "dl://small/file"]))?.code(0)?;
    }
    Ok(())
}

/// Keeps S-33.
#[test]
fn memory_limits_and_kept_datasets_follow_etcd() -> Result<()> {
    let scene = Scene::filled(30, 20_000)?;
    let fast = scene.path("fast");
    let etcd = Etcd::start(1)?;
    let set = |text: &str| etcd.control(&["put", "/diesel/config", text]);
    set("# nothing yet")?;
    let config = format!("etcd://{}/diesel/config", etcd.addresses());
    let fast_flag = fast.to_string_lossy().into_owned();
    let flags = ["--config", &config, "--fast-store", &fast_flag];
    let server = scene.start_with(&flags)?;
    for dataset in ["dl://kept-1", "dl://other"] {
        server.put(scene.src(), dataset)?;
    }
    let first = bounds(&server)?;
    let copies = || folder::bytes_under(&fast.join("copies"));
    ensure!(copies()? == 0, "copied before anybody asked");
    let objects = scene.stored()?;
    set("[live]\nread_memory = \"16MiB\"\nwrite_memory = \"8MiB\"\nkeep = [\"kept-*\"]")?;
    soon("the bounds count", || Ok(bounds(&server)? == (16, 8)))?;
    soon("the dataset is copied", || Ok(copies()? > objects / 3))?;
    ensure!(copies()? < objects * 2 / 3, "the other one, too");
    set("[live]\nkeep = []")?;
    soon("the bounds are those of the start", || Ok(bounds(&server)? == first))?;
    Ok(())
}

/// Keeps S-33.
#[test]
fn servers_follow_etcd_and_survive_its_loss() -> Result<()> {
    let scene = Scene::new()?;
    let mut etcd = Etcd::start(3)?;
    etcd.control(&["put", "/diesel/config", "grace = \"5s\""])?;
    let config = format!("etcd://{}/diesel/config", etcd.addresses());
    let flags = ["--config", config.as_str()];
    let server = scene.start_with(&flags)?;
    let mut turns = 1_000..;
    let mut writes = || may_write(&scene, &server, turns.next().unwrap_or_default());
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
    Ok(())
}

/// Keeps S-33.
#[test]
fn users_in_etcd_come_and_go() -> Result<()> {
    let scene = Scene::new()?;
    let users = scene.path("users");
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
    let server = scene.start_with(&flags)?;
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
    Ok(())
}

/// Keeps S-14 and S-65: without its fast store a server is slow, but starts.
#[test]
fn an_unavailable_fast_store_is_used_as_soon_as_possible() -> Result<()> {
    let scene = Scene::filled(30, 20_000)?;
    let disk = scene.path("disk");
    fs::write(&disk, "no folder yet")?;
    let fast = disk.join("fast");
    let flags = ["--fast-store", fast.to_str().context("a temporary folder has a name")?];
    let server = scene.start_with(&flags)?;
    server.put(scene.src(), "dl://ds")?;
    server.compare("dl://ds", &scene.src())?;
    fs::remove_file(&disk)?;
    soon("read objects are copied", || {
        server.compare("dl://ds", &scene.src())?;
        Ok(folder::bytes_under(&fast.join("copies"))? > 0)
    })
}

#[test]
fn a_silent_configuration_source_ends_the_start() -> Result<()> {
    let scene = Scene::new()?;
    for (place, told) in [
        ("/does/not/exist", "No such file"),
        ("etcd://127.0.0.1:1/diesel/config", "127.0.0.1:1"),
        ("etcd://user:secret@127.0.0.1/diesel", "HOST:2379"),
    ] {
        let refused = scene.fails(2, &["--config", place])?;
        ensure!(refused.contains(told) && !refused.contains("secret"), "{refused}");
    }
    Ok(())
}

/// Keeps S-33 and S-76: read-only servers stop removals, including removals begun by a start.
#[test]
fn a_deletion_pauses_while_the_servers_are_read_only() -> Result<()> {
    let scene = Scene::new()?;
    let config = scene.path("dlserver.toml");
    fs::write(&config, "# nothing yet\n")?;
    let bucket = S3::start(Kind::S3sFs)?;
    let proxy = Proxy::start(bucket.address(), Arc::new(SeededRandom::new(7)))?;
    let (url, variables) = (bucket.fresh(), s3::settings(proxy.address()));
    let config_flag = config.to_string_lossy().into_owned();
    let flags = ["--store", &url, "--config", &config_flag];
    let start = || scene.start_among(&flags, &variables);
    let server = start()?;
    for number in 0..120 {
        folder::write(&scene.src(), "file", number.to_string())?;
        server.put(scene.src(), format!("dl://doomed/{number}"))?;
    }
    let objects = || -> Result<usize> {
        let paths = folder::paths(bucket.folder())?;
        Ok(paths.iter().filter(|path| path.to_string_lossy().ends_with(".c")).count())
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
    let _server = start()?;
    soon("the deletion continues", || Ok(objects()? < left))?;
    fs::write(&config, "[live]\nread_only = true\n")?;
    settled();
    let last = objects()?;
    ensure!(last > 0 && last < left, "{last} of {left} objects are left");
    proxy.faults().set_rates("DELETE", None);
    fs::write(&config, "# nothing\n")?;
    soon("the others go by themselves", || Ok(objects()? == 0))?;
    Ok(())
}
