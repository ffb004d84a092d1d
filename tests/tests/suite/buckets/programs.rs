//! dlserver with its chunks in a bucket, and dlcmd, over a faulty network.
//!
//! Must hold: acknowledged files are read back byte for byte despite network faults, and a lost
//! bucket is reported.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::fault::Rates;
use dl_runtime::{Deadline, SeededRandom};
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::http::sample;
use dl_tests::program::{Server, run, server_command};
use dl_tests::proxy::{FaultyAnswer, Proxy};
use dl_tests::s3::{Kind, S3, settings};

/// Keeps S-01 and S-06.
#[test]
fn a_put_through_a_bad_network_is_complete() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    folder::fill(&source, 400, 200_000, &Dice::new(7))?;
    let bucket = S3::start(Kind::S3sFs)?;
    let proxy = Proxy::start(bucket.address(), Arc::new(SeededRandom::new(7)))?;
    let (url, variables) = (bucket.fresh(), settings(proxy.address()));
    let start = || Server::start_among(&data, "127.0.0.1:0", &["--store", &url], &variables);
    let mut server = start()?;
    let ways =
        [FaultyAnswer::SlowDown, FaultyAnswer::Internal, FaultyAnswer::Dropped, FaultyAnswer::Cut];
    for (round, error) in ways.into_iter().enumerate() {
        let rates = Rates {
            before: 0.05,
            answer_lost: 0.1,
            delay: 0.1,
            longest_delay: Duration::from_millis(50),
            error,
        };
        for method in ["GET", "PUT", "DELETE"] {
            proxy.faults().set_rates(method, Some(rates));
        }
        let dataset = format!("dl://round-{round}");
        run(server.dlcmd()?.arg("put").arg(&source).arg(&dataset))?.code(0)?;
        // The server is killed and its metadata are removed: the acknowledged files must be in the
        // bucket.
        server.kill()?;
        std::fs::remove_dir_all(data.join("meta"))?;
        server = start()?;
        run(server.dlcmd()?.args(["recover", "--all"]))?.code(0)?;
        let got = scene.path().join(format!("got-{round}"));
        run(server.dlcmd()?.arg("get").arg(&dataset).arg(&got))?.code(0)?;
        folder::compare(&source, &got)?;
    }
    run(server.dlcmd()?.args(["delete-dataset", "dl://round-0"]))?.code(0)?;
    run(server.dlcmd()?.args(["rm", "-r", "dl://round-1/000"]))?.code(0)?;
    let names = run(server.dlcmd()?.arg("datasets"))?.code(0)?.text();
    ensure!(names == "round-1\nround-2\nround-3\n", "{names}");
    server.stop()?;
    Ok(())
}

/// Keeps S-12.
#[test]
fn credentials_come_from_a_profile_where_no_variable_has_them() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let bucket = S3::start(Kind::S3sFs)?;
    let (url, home) = (bucket.fresh(), scene.path().join("home"));
    let endpoint = format!("region = us-east-1\nendpoint_url = http://{}\n", bucket.address());
    folder::write(&home, ".aws/config", format!("[profile lab]\n{endpoint}"))?;
    let keys = "aws_access_key_id = key\naws_secret_access_key = secret\n";
    folder::write(&home, ".aws/credentials", format!("[lab]\n{keys}"))?;
    let variables = |profile: &str| {
        let home = ("HOME".to_owned(), home.to_string_lossy().into_owned());
        let http = ("AWS_ALLOW_HTTP".to_owned(), "true".to_owned());
        vec![home, http, ("AWS_PROFILE".to_owned(), profile.to_owned())]
    };
    let (data, flags) = (scene.path().join("data"), ["--store", &url]);
    let server = Server::start_among(&data, "127.0.0.1:0", &flags, &variables("lab"))?;
    folder::write(scene.path(), "src/a", "a file")?;
    run(server.dlcmd()?.arg("put").arg(scene.path().join("src")).arg("dl://ds"))?.code(0)?;
    server.stop()?;
    let mut command = server_command()?;
    command.envs(variables("lba")).args(["--listen", "127.0.0.1:0", "--store", &url, "--data"]);
    let refused = run(command.arg(scene.path().join("second")))?.code(1)?;
    ensure!(refused.stderr.contains("AWS_PROFILE is \"lba\""), "{}", refused.stderr);
    ensure!(!refused.stderr.contains("169.254"), "{}", refused.stderr);
    Ok(())
}

/// Keeps S-12.
#[test]
fn server_and_client_report_a_lost_bucket() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    folder::fill(&source, 3, 1_000, &Dice::new(8))?;
    let mut bucket = S3::start(Kind::S3sFs)?;
    let (url, variables) = (bucket.fresh(), settings(bucket.address()));
    let server = Server::start_among(&data, "127.0.0.1:0", &["--store", &url], &variables)?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    bucket.process().kill()?;
    let got = scene.path().join("got");
    let get = run(server.dlcmd()?.arg("get").arg("dl://ds").arg(&got))?;
    ensure!(get.code != 0 && get.stderr.contains("127.0.0.1"), "{}", get.stderr);
    let mut second = server_command()?;
    second.envs(variables).args(["--listen", "127.0.0.1:0", "--store", &url, "--data"]);
    let second = run(second.arg(scene.path().join("second")))?.code(1)?;
    let told = second.stderr.lines().last().context("an error on stderr")?;
    ensure!(told.contains(&url) && told.contains("AWS_ENDPOINT"), "{told}");
    server.kill()?;
    Ok(())
}

/// Keeps S-01: with a fast store and after its loss.
#[test]
fn a_fast_store_is_read_from_and_its_loss_costs_nothing_else() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    let fast = scene.path().join("fast");
    folder::fill(&source, 100, 100_000, &Dice::new(9))?;
    let bucket = S3::start(Kind::S3sFs)?;
    let (url, variables) = (bucket.fresh(), settings(bucket.address()));
    let fast_url = fast.to_str().context("a temporary folder has a name")?;
    let flags = ["--store", &url, "--fast-store", fast_url, "--fast-store-quota", "64MiB"];
    let flags = [&flags[..], &["--http", "127.0.0.1:0"]].concat();
    let server = Server::start_among(&data, "127.0.0.1:0", &flags, &variables)?;
    let hits = || sample(server.http(), "diesel_fast_store_hits_total");
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    let get = |name: &str| {
        let got = scene.path().join(name);
        run(server.dlcmd()?.arg("get").arg("dl://ds").arg(&got))?.code(0)?;
        folder::compare(&source, &got)
    };
    get("from the bucket")?;
    let copies = fast.join("copies");
    let deadline = Deadline::after(&*clock(), Duration::from_secs(30));
    while !copies.is_dir() || folder::read(&copies)?.is_empty() {
        ensure!(!deadline.remaining(&*clock()).is_zero(), "nothing was copied");
        std::thread::sleep(Duration::from_millis(10));
    }
    let before = hits()?;
    get("from the copies")?;
    ensure!(hits()? > before, "the copies were not read");
    std::fs::remove_dir_all(&fast)?;
    get("without the copies")?;
    run(server.dlcmd()?.args(["delete-dataset", "dl://ds"]))?.code(0)?;
    server.stop()?;
    Ok(())
}

/// Keeps S-14, S-01 and S-64: damaged copies in the fast store.
#[test]
fn damaged_copies_in_the_fast_store_cost_no_byte() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    let fast = scene.path().join("fast");
    folder::fill(&source, 100, 100_000, &Dice::new(9))?;
    folder::write(&source, "of several parts", vec![7; 20_000_000])?;
    let fast_url = fast.to_str().context("a temporary folder has a name")?;
    let flags = ["--fast-store", fast_url, "--http", "127.0.0.1:0"];
    let server = Server::start_with(&data, "127.0.0.1:0", &flags)?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    let get = |name: &str| {
        let got = scene.path().join(name);
        run(server.dlcmd()?.arg("get").arg("dl://ds").arg(&got))?.code(0)?;
        folder::compare(&source, &got)?;
        Ok::<_, anyhow::Error>(std::fs::remove_dir_all(got)?)
    };
    let copies = fast.join("copies");
    let whole = folder::bytes_under(&data.join("chunks"))? * 9 / 10;
    let copied = || {
        let deadline = Deadline::after(&*clock(), Duration::from_secs(30));
        while !copies.is_dir() || folder::bytes_under(&copies)? < whole {
            ensure!(!deadline.remaining(&*clock()).is_zero(), "copying takes more than 30 s");
            get("to have them copied")?;
        }
        Ok::<_, anyhow::Error>(())
    };
    let rotten = || sample(server.http(), "diesel_fast_store_rotten_total");
    for round in 1..=2 {
        copied()?;
        let before = rotten()?;
        rot(&copies)?;
        get("from damaged copies")?;
        ensure!(rotten()? > before, "round {round}: no damage was noticed");
    }
    copied()?;
    get("from whole copies")?;
    server.stop()?;
    Ok(())
}

/// Changes every thousandth byte of each file below a folder.
fn rot(folder: &std::path::Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            rot(&path)?;
            continue;
        }
        let mut bytes = std::fs::read(&path)?;
        bytes.iter_mut().skip(500).step_by(1_000).for_each(|byte| *byte ^= 1);
        std::fs::write(&path, bytes)?;
    }
    Ok(())
}
