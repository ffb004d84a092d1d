//! An etcd with TLS and client authentication.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use dl_tests::ca::Ca;
use dl_tests::etcd::Etcd;
use dl_tests::scene::Scene;
use dl_tests::soon;

use super::settings::bounds;

/// The password, absent from all output.
const SECRET: &str = "TOP:SE@CRET";

/// The lifetime of a login token in etcd.
const TOKEN: Duration = Duration::from_secs(2);

/// Keeps S-33 and S-30.
#[test]
fn settings_come_from_etcd_with_tls_and_logins() -> Result<()> {
    let scene = Scene::new()?;
    let (ca, other) = (Ca::new(&scene.path(""), "ca")?, Ca::new(&scene.path(""), "other")?);
    for ca in [&ca, &other] {
        ca.issue("client", "diesel", false)?;
    }
    let (trusted, ttl) = (ca.file("ca.pem"), TOKEN.as_secs().to_string());
    let wants = ["--client-cert-auth", "--trusted-ca-file", &trusted, "--auth-token-ttl", &ttl];
    let mut etcd = Etcd::start_tls(&ca, &wants)?;
    // A user with read access to a single key.
    let user = format!("diesel:{SECRET}");
    for arguments in [
        &["user", "add", "root:root"][..],
        &["user", "add", &user],
        &["role", "add", "settings"],
        &["role", "grant-permission", "settings", "read", "/diesel/config"],
        &["user", "grant-role", "diesel", "settings"],
        &["auth", "enable"],
    ] {
        etcd.control(arguments)?;
    }
    let set = |etcd: &Etcd, mib: u64| {
        let text = format!("[live]\nread_memory = \"{mib}MiB\"\n");
        etcd.control(&["--user", "root:root", "put", "/diesel/config", &text])
    };
    set(&etcd, 16)?;
    let config = |login: &str, files: &str| {
        let place = format!("etcds://{login}@{}/diesel/config?{files}", etcd.addresses());
        ("DIESEL_CONFIG".to_owned(), place)
    };
    let shown = |ca: &Ca| format!("cert={}&key={}", ca.file("client.pem"), ca.file("client.key"));
    let (trusted, shown, unknown) = (format!("ca={trusted}"), shown(&ca), shown(&other));
    let good = config(&user, &format!("{trusted}&{shown}"));

    let refused = |place: (String, String), told: &str| -> Result<()> {
        let trusted = ("SSL_CERT_FILE".to_owned(), other.file("ca.pem"));
        let said = scene.fails_among(2, &[], [place, trusted])?;
        ensure!(said.contains(told) && !said.contains("CRET"), "{told}: {said}");
        Ok(())
    };
    let (with, other) = (|files: String| config(&user, &files), other.file("ca.pem"));
    let plain = format!("etcd://{}/diesel/config", etcd.addresses());
    let wrong = [
        (config("diesel:CRET", &format!("{trusted}&{shown}")), "invalid user ID or password"),
        (with(format!("ca={other}&{shown}")), "invalid peer certificate"),
        (with(shown.clone()), "invalid peer certificate"),
        (with(trusted.clone()), "?cert=FILE&key=FILE"),
        (with(format!("{trusted}&{unknown}")), "?cert=FILE&key=FILE"),
        (with(format!("{trusted}&cert=/no/cert&key=/no/key")), "/no/cert: No such file"),
        (("DIESEL_CONFIG".to_owned(), plain), "write etcds://"),
    ];
    // Each start takes as long as a server waits for its settings.
    std::thread::scope(|scope| {
        let refused = &refused;
        let begun = wrong.map(|(place, told)| scope.spawn(move || refused(place, told)));
        begun
            .into_iter()
            .try_for_each(|one| one.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;

    let server = scene.start_among(&[], &[good])?;
    let reads = |mib: u64| soon("news", || Ok(bounds(&server)?.0 == mib));
    reads(16)?;
    set(&etcd, 20)?;
    reads(20)?;
    // The token has expired; the watch continues.
    std::thread::sleep(TOKEN * 3);
    set(&etcd, 24)?;
    reads(24)?;
    // A new watch logs in again.
    etcd.kill(0)?;
    etcd.run(0)?;
    soon("etcd is back", || Ok(set(&etcd, 28).is_ok()))?;
    reads(28)?;
    let log = server.stop()?;
    ensure!(!log.contains("CRET"), "{log}");
    Ok(())
}
