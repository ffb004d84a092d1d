//! TLS, and every mismatch between client and server.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use dl_tests::ca::Ca;
use dl_tests::http::sample;
use dl_tests::program::{Ended, Server, dlcmd, run};
use dl_tests::scene::Scene;
use dl_tests::{folder, soon};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::UsersFile;

fn to(server: &Server, scheme: &str) -> Result<Command> {
    let mut command = dlcmd()?;
    command.args(["--server", &format!("{scheme}://{}", server.address())]);
    Ok(command)
}

fn ask(server: &Server, scheme: &str, flags: &[&str]) -> Result<Ended> {
    run(to(server, scheme)?.args(flags).arg("datasets"))
}

/// Keeps S-31.
#[test]
fn tls_works_with_keys_and_whole_datasets() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let ca = Ca::new(folder.path(), "ca")?;
    ca.issue("server", "127.0.0.1", false)?;
    let users = UsersFile::new(folder.path());
    let key = users.add("ann", &["admin:*"])?;
    let server = ca.serve("server", &users.flags())?;
    let source = folder.path().join("src");
    folder::fill(&source, 300, 100_000, &dl_tests::dice::Dice::new(1))?;
    let by_ann = || -> Result<Command> {
        let mut command = to(&server, "https")?;
        command.args(["--user", "ann"]).env("DIESEL_KEY", &key).env("DIESEL_CA", ca.file("ca.pem"));
        Ok(command)
    };
    run(by_ann()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    run(by_ann()?.args(["get", "dl://ds"]).arg(folder.path().join("got")))?.code(0)?;
    folder::compare(&source, &folder.path().join("got"))?;
    let log = server.stop()?;
    ensure!(!log.contains(&key), "the key is in: {log}");
    Ok(())
}

/// Keeps S-31: TLS at a plain port, plain text at a TLS port, and certificates of an unknown CA, of
/// another host, and expired.
#[test]
fn each_mismatch_between_client_and_server_has_its_remedy() -> Result<()> {
    let scene = Scene::new()?;
    let folder = scene.path("");
    let (ca, other) = (Ca::new(&folder, "ca")?, Ca::new(&folder, "other")?);
    ca.issue("server", "127.0.0.1", false)?;
    ca.issue("expired", "127.0.0.1", true)?;
    ca.issue("elsewhere", "node1.example.org", false)?;
    let (trusted, foreign, no_certificate) =
        (ca.file("ca.pem"), other.file("ca.pem"), ca.file("server.key"));
    let (trusted, foreign, none) =
        (["--ca", &trusted], ["--ca", &foreign], ["--ca", &no_certificate]);
    let plain = scene.start()?;
    for (name, scheme, flags, code, told) in [
        ("server", "http", &[][..], 5, &["that port speaks TLS: write https://"][..]),
        ("plain", "https", &trusted, 5, &["that port speaks no TLS: write http://"]),
        ("server", "https", &foreign, 5, &["nobody trusted here has signed it", "--ca"]),
        ("server", "https", &none, 2, &["the certificates to trust are none"]),
        ("expired", "https", &trusted, 5, &["expired", "new certificate"]),
        ("elsewhere", "https", &trusted, 5, &["node1.example.org", "names it"]),
        ("server", "https", &trusted, 0, &[]),
        ("plain", "http", &[], 0, &[]),
    ] {
        let tls = (name != "plain").then(|| ca.serve(name, &[])).transpose()?;
        let said = ask(tls.as_ref().unwrap_or(&plain), scheme, flags)?.code(code)?.stderr;
        ensure!(told.iter().all(|told| said.contains(told)), "{name}, {scheme}: {said}");
    }
    // A machine without trusted certificates.
    std::fs::write(scene.path("no.pem"), "")?;
    let mut bare = to(&plain, "https")?;
    bare.arg("datasets").env("SSL_CERT_FILE", scene.path("no.pem"));
    let said = run(bare.env("SSL_CERT_DIR", scene.path("none")))?.code(2)?.stderr;
    ensure!(said.contains("trusts no certificates") && said.contains("--ca"), "{said}");
    Ok(())
}

/// Keeps S-31.
#[test]
fn a_required_client_certificate_is_reported() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (ca, clients) = (Ca::new(folder.path(), "ca")?, Ca::new(folder.path(), "clients")?);
    ca.issue("server", "127.0.0.1", false)?;
    clients.issue("ann", "ann", false)?;
    let server = ca.serve("server", &["--tls-client-ca", &clients.file("ca.pem")])?;
    let trusted = ca.file("ca.pem");
    let told = ask(&server, "https", &["--ca", &trusted])?.code(5)?.stderr;
    ensure!(told.contains("a client certificate of a trusted CA"), "{told}");
    let (cert, key) = (clients.file("ann.pem"), clients.file("ann.key"));
    let flags = ["--ca", &trusted, "--client-cert", &cert, "--client-key", &key];
    ask(&server, "https", &flags)?.code(0)?;
    let half = ask(&server, "https", &flags[..4])?.code(2)?.stderr;
    ensure!(half.contains("--client-key"), "{half}");
    Ok(())
}

/// A connection that is never rebuilt with another certificate.
async fn connect(server: &Server, ca: &Ca) -> Result<HealthClient<Channel>> {
    let ca = Certificate::from_pem(std::fs::read(ca.file("ca.pem"))?);
    let endpoint = Endpoint::from_shared(format!("https://{}", server.address()))?;
    let channel = endpoint.tls_config(ClientTlsConfig::new().ca_certificate(ca))?.connect().await?;
    Ok(HealthClient::new(channel))
}

/// Keeps S-33 and S-31.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_counts_for_new_connections() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (old, new) = (Ca::new(folder.path(), "old")?, Ca::new(folder.path(), "new")?);
    for ca in [&old, &new] {
        ca.issue("server", "127.0.0.1", false)?;
    }
    let server = old.serve("server", &["--http", "127.0.0.1:0"])?;
    let mut before = connect(&server, &old).await?;
    before.check(HealthCheckRequest::default()).await?;
    let name = "diesel_config_stale_seconds{source=\"certificate\"}";
    let stale = || Ok(sample(server.http(), name)? != 0.0);
    ensure!(!stale()?, "stale from the start");
    let replace = |what: &str, from: &Ca| std::fs::copy(from.file(what), old.file(what));

    // A key of another certificate.
    let kept = std::fs::read_to_string(old.file("server.key"))?;
    replace("server.key", &new)?;
    soon("the metric reports the wrong key", stale)?;
    connect(&server, &old).await?;

    replace("server.pem", &new)?;
    let new_ca = new.file("ca.pem");
    soon("the server presents the new certificate", || {
        Ok(ask(&server, "https", &["--ca", &new_ca])?.code == 0)
    })?;
    ensure!(connect(&server, &old).await.is_err(), "the server still presents the old certificate");
    ensure!(!stale()?, "stale with the new certificate");
    before.check(HealthCheckRequest::default()).await.context("on the old connection")?;

    std::fs::remove_file(old.file("server.pem"))?;
    soon("the metric reports the missing file", stale)?;
    connect(&server, &new).await?;
    replace("server.pem", &new)?;
    soon("the metric reports the restored file", || Ok(!stale()?))?;
    // A key without line breaks.
    let line = std::fs::read_to_string(new.file("server.key"))?.replace('\n', "");
    std::fs::write(old.file("server.key"), line)?;
    soon("the metric reports the damaged key", stale)?;
    let log = server.stop()?;
    ensure!(
        log.contains("the certificate and its key can't be used: the last good ones hold"),
        "{log}"
    );
    ensure!(log.contains("lines of their own") && !log.contains("45, 45, "), "{log}");
    for key in [kept, std::fs::read_to_string(new.file("server.key"))?] {
        ensure!(key.lines().all(|line| !log.contains(line)), "the key is in: {log}");
    }
    Ok(())
}

/// Keeps S-12.
#[test]
fn a_server_whose_certificate_is_of_no_use_does_not_start() -> Result<()> {
    let scene = Scene::new()?;
    let ca = Ca::new(&scene.path(""), "ca")?;
    for name in ["one", "other"] {
        ca.issue(name, "127.0.0.1", false)?;
    }
    let text = std::fs::read_to_string(ca.file("one.key"))?;
    let secret = text.lines().nth(1).context("a key")?;
    std::fs::write(ca.file("line.key"), text.replace('\n', ""))?;
    std::fs::write(ca.file("escaped.key"), text.replace('\n', "\\n"))?;
    for (cert, key, told) in [
        (
            "one.pem",
            "line.key",
            "the key: it is no PEM: each section needs its BEGIN and END lines",
        ),
        ("one.pem", "escaped.key", "the key: it is no PEM"),
        ("line.key", "one.key", "the certificate: it is no PEM"),
        ("one.pem", "none.key", "none.key: "),
        ("one.pem", "other.key", "they can't be used together"),
        ("one.key", "one.key", "there is no certificate"),
        ("one.pem", "one.pem", "the key: "),
    ] {
        let flags = ["--tls-cert", &ca.file(cert), "--tls-key", &ca.file(key)];
        let refused = scene.fails(2, &flags)?;
        ensure!(refused.contains(told), "{cert} {key}: {refused}");
        for shown in ["PRIVATE", secret, "45, 45, "] {
            ensure!(!refused.contains(shown), "{cert} {key}: {shown} is in {refused}");
        }
    }
    Ok(())
}
