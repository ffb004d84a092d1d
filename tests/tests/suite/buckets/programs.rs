//! dlserver with its chunks in a bucket, and dlcmd, over a faulty network.
//!
//! Must hold: acknowledged files are read back byte for byte despite network faults, and a lost
//! bucket is reported.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::SeededRandom;
use dl_runtime::fault::Rates;
use dl_tests::azure::{self, Azurite};
use dl_tests::http::sample;
use dl_tests::program::dl;
use dl_tests::proxy::{FaultyAnswer, Proxy};
use dl_tests::s3::{Kind, S3, settings};
use dl_tests::scene::Scene;
use dl_tests::{folder, soon};

/// Puts, deletes and recovers datasets in a bucket with these errors; kills the server and removes
/// its metadata after each put.
fn survive(
    bucket: SocketAddr,
    url: &str,
    settings: super::Settings,
    errors: &[FaultyAnswer],
) -> Result<()> {
    let scene = Scene::filled(400, 150_000)?;
    let proxy = Proxy::start(bucket, Arc::new(SeededRandom::new(7)))?;
    let start = || scene.start_among(&["--store", url], &settings(proxy.address()));
    let mut server = start()?;
    for (round, &error) in errors.iter().enumerate() {
        let longest_delay = Duration::from_millis(50);
        let (before, answer_lost, delay) = (0.05, 0.1, 0.1);
        proxy.set_rates(Some(Rates { before, answer_lost, delay, longest_delay, error }));
        let dataset = format!("dl://round-{round}");
        server.put(scene.src(), &dataset)?;
        let folder = format!("00{round}");
        dl(&server, ["rm", "-r", &format!("{dataset}/{folder}")])?.code(0)?;
        fs::rename(scene.src().join(&folder), scene.path("removed"))?;
        server.kill()?;
        scene.lose_metadata()?;
        server = start()?;
        dl(&server, ["recover", "--all"])?.code(0)?;
        server.compare(&dataset, &scene.src())?;
        dl(&server, ["verify", "--checksums", &dataset])?.code(0)?;
        fs::rename(scene.path("removed"), scene.src().join(&folder))?;
    }
    dl(&server, ["delete-dataset", "dl://round-0"])?.code(0)?;
    let names = dl(&server, ["datasets"])?.code(0)?.text();
    ensure!(names.lines().count() == errors.len() - 1 && !names.contains("round-0"), "{names}");
    Ok(())
}

/// Keeps S-01, S-02, S-06 and S-29.
#[test]
fn a_put_through_a_bad_network_is_complete() -> Result<()> {
    let bucket = S3::start(Kind::S3sFs)?;
    let errors =
        [FaultyAnswer::SlowDown, FaultyAnswer::Internal, FaultyAnswer::Dropped, FaultyAnswer::Cut];
    survive(bucket.address(), &bucket.fresh(), settings, &errors)
}

/// Keeps S-01, S-02, S-06 and S-29.
#[test]
fn a_dataset_on_azurite_survives_a_bad_network() -> Result<()> {
    let bucket = Azurite::start()?;
    survive(bucket.address(), &bucket.fresh(), azure::settings, &[FaultyAnswer::Dropped])
}

/// Keeps S-12.
#[test]
fn credentials_come_from_a_profile_where_no_variable_has_them() -> Result<()> {
    let scene = Scene::new()?;
    let bucket = S3::start(Kind::S3sFs)?;
    let (url, home) = (bucket.fresh(), scene.path("home"));
    let endpoint = format!("region = us-east-1\nendpoint_url = http://{}\n", bucket.address());
    folder::write(&home, ".aws/config", format!("[profile lab]\n{endpoint}"))?;
    let keys = "aws_access_key_id = key\naws_secret_access_key = secret\n";
    folder::write(&home, ".aws/credentials", format!("[lab]\n{keys}"))?;
    let variables = |profile: &str| {
        let home = ("HOME".to_owned(), home.to_string_lossy().into_owned());
        let http = ("AWS_ALLOW_HTTP".to_owned(), "true".to_owned());
        vec![home, http, ("AWS_PROFILE".to_owned(), profile.to_owned())]
    };
    let flags = ["--store", &url];
    let server = scene.start_among(&flags, &variables("lab"))?;
    server.put(&home, "dl://ds")?;
    server.stop()?;
    let refused = scene.fails_among(1, &flags, variables("lba"))?;
    ensure!(
        refused.contains("AWS_PROFILE is \"lba\"") && !refused.contains("169.254"),
        "{refused}"
    );
    Ok(())
}

/// Keeps S-12.
#[test]
fn server_and_client_report_a_lost_bucket() -> Result<()> {
    let scene = Scene::filled(3, 1_000)?;
    let mut bucket = S3::start(Kind::S3sFs)?;
    let (url, variables) = (bucket.fresh(), settings(bucket.address()));
    let server = scene.start_among(&["--store", &url], &variables)?;
    server.put(scene.src(), "dl://ds")?;
    bucket.process().kill()?;
    let get = dl(&server, ["cat", "dl://ds/000/000001.bin"])?;
    ensure!(get.code != 0 && get.stderr.contains("127.0.0.1"), "{}", get.stderr);
    let second = Scene::new()?.fails_among(1, &["--store", &url], variables)?;
    let told = second.lines().last().context("an error on stderr")?;
    ensure!(told.contains(&url) && told.contains("AWS_ENDPOINT"), "{told}");
    Ok(())
}

/// Keeps S-01, S-14 and S-64: copies in a fast store are read, and their damage and loss cost no
/// byte.
#[test]
fn damaged_or_lost_copies_in_the_fast_store_cost_no_byte() -> Result<()> {
    let scene = Scene::filled(100, 100_000)?;
    let (source, copies) = (scene.src(), scene.path("fast/copies"));
    folder::write(&source, "of several parts", vec![7; 20_000_000])?;
    let bucket = S3::start(Kind::S3sFs)?;
    let (url, fast) = (bucket.fresh(), scene.path("fast").display().to_string());
    let flags = ["--store", &url, "--fast-store", &fast, "--fast-store-quota", "64MiB"];
    let server = scene.start_among(&flags, &settings(bucket.address()))?;
    server.put(&source, "dl://ds")?;
    let whole = folder::bytes_under(bucket.folder())? * 9 / 10;
    let copied = || {
        soon("the objects are copied", || {
            server.compare("dl://ds", &source)?;
            Ok(folder::bytes_under(&copies)? > whole)
        })
    };
    let counted = |what: &str| sample(server.http(), &format!("diesel_fast_store_{what}_total"));
    for round in 1..=2 {
        copied()?;
        let before = counted("rotten")?;
        // Every thousandth byte.
        for path in folder::paths(&copies)? {
            let mut bytes = fs::read(&path)?;
            bytes.iter_mut().skip(500).step_by(1_000).for_each(|byte| *byte ^= 1);
            fs::write(&path, bytes)?;
        }
        server.compare("dl://ds", &source)?;
        ensure!(counted("rotten")? > before, "round {round}: no damage was noticed");
    }
    copied()?;
    let before = counted("hits")?;
    server.compare("dl://ds", &source)?;
    ensure!(counted("hits")? > before, "the copies were not read");
    fs::remove_dir_all(&fast)?;
    server.compare("dl://ds", &source)?;
    dl(&server, ["delete-dataset", "dl://ds"])?.code(0)?;
    Ok(())
}
