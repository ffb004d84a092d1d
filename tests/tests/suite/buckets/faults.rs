//! Single faults of network and bucket, and their error messages.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::SeededRandom;
use dl_runtime::fault::Fault;
use dl_store::{Error, Key, Kind, Store, StoreExt};
use dl_tests::azure::{self, Azurite};
use dl_tests::cluster::clock;
use dl_tests::proxy::{FaultyAnswer, Proxy};
use dl_tests::s3::{self, S3, settings};

use super::lose_answers_of_creates;

struct Scene {
    server: S3,
    proxy: Proxy,
}

impl Scene {
    fn new(kind: s3::Kind) -> Result<Self> {
        let server = S3::start(kind)?;
        let proxy = Proxy::start(server.address(), Arc::new(SeededRandom::new(0)))?;
        Ok(Self { server, proxy })
    }

    async fn open(&self) -> Result<Arc<dyn Store>, Error> {
        dl_store::open_with(&self.server.fresh(), &settings(self.proxy.address())).await
    }
}

fn key(name: &str) -> Result<Key> {
    Ok(Key::new(name)?)
}

/// The whole error chain, as shown to a user.
fn told(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = StdError::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[tokio::test]
async fn a_create_with_a_lost_answer_finds_its_object() -> Result<()> {
    for kind in [s3::Kind::Moto, s3::Kind::S3sFs] {
        let server = S3::start(kind)?;
        lose_answers_of_creates(server.address(), &server.fresh(), settings).await?;
    }
    let server = Azurite::start()?;
    lose_answers_of_creates(server.address(), &server.fresh(), azure::settings).await
}

#[tokio::test]
async fn a_stalled_answer_is_fetched_again() -> Result<()> {
    let scene = Scene::new(s3::Kind::S3sFs)?;
    let store = scene.open().await?;
    let (key, body) = (key("x/1")?, vec![7; 1 << 20]);
    store.create(&key, body.clone().into()).await?;
    let stall = || {
        let stalled = Fault::AnswerLost(FaultyAnswer::Stalled(Duration::from_secs(60)));
        scene.proxy.faults().script("GET", [Some(stalled)]);
        clock().monotonic()
    };
    let begun = stall();
    ensure!(store.read_all(&key).await? == body);
    let took = clock().monotonic().saturating_sub(begun);
    ensure!(took < Duration::from_secs(15), "the read took {took:?}");
    let begun = stall();
    ensure!(store.list_sorted(&dl_store::Prefix::ROOT).await?.len() == 1);
    let took = clock().monotonic().saturating_sub(begun);
    ensure!(took < Duration::from_secs(20), "the listing took {took:?}");
    Ok(())
}

#[tokio::test]
async fn a_lost_bucket_server_is_reported_at_once() -> Result<()> {
    let mut scene = Scene::new(s3::Kind::S3sFs)?;
    let store = scene.open().await?;
    let (there, new) = (key("x/1")?, key("x/2")?);
    store.create(&there, "here".into()).await?;
    scene.server.process().kill()?;
    let clock = clock();
    let begun = clock.monotonic();
    let (read, created, deleted, listed, opened) = tokio::join!(
        store.read_all(&there),
        store.create(&new, "new".into()),
        store.delete(&there),
        store.list_sorted(&dl_store::Prefix::ROOT),
        scene.open(),
    );
    let took = clock.monotonic().saturating_sub(begun);
    let errors = [read.err(), created.err(), deleted.err(), listed.err(), opened.err()];
    for error in errors {
        let error = error.context("the server runs")?;
        ensure!(error.kind == Kind::Unavailable, "{}", told(&error));
    }
    ensure!(took < Duration::from_secs(45), "the requests took {took:?}");
    Ok(())
}

#[tokio::test]
async fn bucket_errors_name_the_remedy() -> Result<()> {
    // moto creates buckets on demand; s3s-fs checks keys.
    let (moto, s3s_fs) = (S3::start(s3::Kind::Moto)?, S3::start(s3::Kind::S3sFs)?);
    let right = settings(s3s_fs.address());
    let with = |name: &str, value: &str| {
        let mut settings = right.clone();
        settings.retain(|(other, _)| other != name);
        settings.push((name.to_owned(), value.to_owned()));
        settings
    };
    for (url, settings, kind, expected) in [
        ("s3://absent/p", settings(moto.address()), Kind::Unsupported, "no bucket absent"),
        (
            "s3://chunks",
            with("AWS_SECRET_ACCESS_KEY", "wrong"),
            Kind::Denied,
            "AWS_SECRET_ACCESS_KEY",
        ),
        (
            "s3://chunks",
            with("AWS_ALLOW_HTTP", "false"),
            Kind::Unavailable,
            "needs AWS_ALLOW_HTTP=true",
        ),
    ] {
        let opened = dl_store::open_with(url, &settings).await;
        let error = opened.err().with_context(|| format!("{url} must be refused"))?;
        let told = told(&error);
        ensure!(error.kind == kind && told.contains(expected), "{:?}: {told}", error.kind);
        ensure!(told.contains(url) && !told.contains("secret"), "{told}");
    }
    Ok(())
}

#[tokio::test]
async fn a_bucket_without_conditional_create_is_refused() -> Result<()> {
    let scene = Scene::new(s3::Kind::Moto)?;
    scene.proxy.forget_conditions();
    let error = scene.open().await.err().context("the bucket was accepted")?;
    let told = told(&error);
    ensure!(error.kind == Kind::Unsupported && told.contains("If-None-Match"), "{told}");
    Ok(())
}
