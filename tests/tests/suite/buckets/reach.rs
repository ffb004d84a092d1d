//! Unreachable buckets: each cause has its remedy, and a private CA is trusted by configuration.

use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_tests::ca::Ca;
use dl_tests::cluster::clock;
use dl_tests::program::{run, server_command};
use dl_tests::scene::Scene;

/// A failed start takes at most 5 s; a busy machine starts programs slowly.
const TIMEOUT: Duration = Duration::from_secs(9);

/// The last line on stderr of a server with a bucket at the unreachable `endpoint`.
fn refused(endpoint: &str, variables: &[(&str, &str)]) -> Result<String> {
    let scene = Scene::new()?;
    let mut server = server_command()?;
    server.env("AWS_ENDPOINT", endpoint).env("AWS_ALLOW_HTTP", "true");
    server.envs([("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")]);
    // The endpoint in these tests is a dlserver, which speaks only HTTP/2.
    server.env("AWS_HTTP1_ONLY", "false").env("AWS_HTTP2_ONLY", "true");
    server.env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR");
    server.envs(variables.iter().copied());
    server.args(["--listen", "127.0.0.1:0", "--store", "s3://bucket/prefix", "--data"]);
    let began = clock().monotonic();
    let ended = run(server.arg(scene.data()))?.code(1)?;
    let took = clock().monotonic().saturating_sub(began);
    ensure!(took < TIMEOUT, "the start took {took:?}: {}", ended.stderr);
    Ok(ended.stderr.lines().last().unwrap_or_default().to_owned())
}

/// Keeps S-12.
#[test]
fn each_cause_for_which_a_bucket_is_not_reached_has_its_remedy() -> Result<()> {
    let closed = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let (plain, closed) = (format!("http://{closed}/"), format!("http://{closed}"));
    let unresolved = "http://no-such-host.invalid:9000";
    for (endpoint, variables, told) in [
        (closed.as_str(), &[][..], &["Connection refused", "start the store there"][..]),
        (unresolved, &[], &["no-such-host.invalid", "correct the host in AWS_ENDPOINT", "DNS"]),
        (&plain, &[("AWS_ALLOW_HTTP", "false")], &["needs AWS_ALLOW_HTTP=true"]),
        (
            &closed,
            &[("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")],
            &["unset AWS_VIRTUAL_HOSTED_STYLE_REQUEST"],
        ),
        (&closed, &[("AWS_CA_BUNDLE", "/nowhere/ca.pem")], &["AWS_CA_BUNDLE", "No such file"]),
    ] {
        let line = refused(endpoint, variables)?;
        ensure!(told.iter().all(|told| line.contains(told)), "{endpoint}: {line}");
        ensure!(!line.contains("region") && !line.contains("SECRET"), "{endpoint}: {line}");
    }
    Ok(())
}

/// Keeps S-12: the connection goes to the proxy, and the store may be well.
#[test]
fn a_dead_proxy_is_named_with_its_variable() -> Result<()> {
    let closed = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let proxy = format!("http://user:hidden@{closed}");
    for (variable, scheme, except) in [
        ("http_proxy", "http", "no_proxy"),
        ("HTTPS_PROXY", "https", "no_proxy"),
        ("all_proxy", "http", "no_proxy"),
        ("AWS_PROXY_URL", "https", "AWS_PROXY_EXCLUDES"),
    ] {
        let line = refused(&format!("{scheme}://store.invalid:9000"), &[(variable, &proxy)])?;
        let told = [
            format!("can't be reached through the proxy http://{closed} of {variable}"),
            format!("start the proxy, correct {variable}, or name the store's host in {except}"),
        ];
        ensure!(told.iter().all(|told| line.contains(told)), "{variable}: {line}");
        ensure!(!line.contains("start the store") && !line.contains("hidden"), "{line}");
    }
    let around = [("http_proxy", proxy.as_str()), ("no_proxy", "127.0.0.1")];
    let line = refused(&format!("http://{closed}"), &around)?;
    ensure!(line.contains("start the store there") && !line.contains("proxy"), "{line}");
    Ok(())
}

/// Keeps S-12.
#[test]
fn a_private_ca_is_trusted_by_variable_or_named_in_the_error() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (ca, other) = (Ca::new(folder.path(), "ca")?, Ca::new(folder.path(), "other")?);
    ca.issue("server", "127.0.0.1", false)?;
    // A dlserver in place of an S3 server: the error changes as soon as the certificate is trusted.
    let server = ca.serve("server", &[])?;
    let endpoint = format!("https://{}", server.address());
    let (ca, other) = (ca.file("ca.pem"), other.file("ca.pem"));
    for variables in [&[][..], &[("AWS_CA_BUNDLE", other.as_str())], &[("SSL_CERT_FILE", &other)]] {
        let line = refused(&endpoint, variables)?;
        let told = ["UnknownIssuer", "AWS_CA_BUNDLE or SSL_CERT_FILE"];
        ensure!(told.iter().all(|told| line.contains(told)), "{variables:?}: {line}");
    }
    for variable in ["AWS_CA_BUNDLE", "SSL_CERT_FILE"] {
        let line = refused(&endpoint, &[(variable, ca.as_str())])?;
        ensure!(!line.contains("certificate") && line.contains(&endpoint), "{variable}: {line}");
    }
    Ok(())
}
