//! Error messages about wrong settings must not show passwords.

use std::fs;

use anyhow::{Result, ensure};
use dl_tests::scene::Scene;

/// The password, absent from all output.
const SECRET: &str = "TOPSECRET";

/// Keeps S-12, S-30 and S-67.
#[test]
fn no_mistake_in_a_setting_shows_its_password() -> Result<()> {
    let scene = Scene::new()?;
    let refused = |flags: &[&str], variables: &[(&str, &str)], code: i32, told: &str| {
        let said = scene.fails_among(code, flags, variables.iter().copied())?;
        ensure!(said.contains(told) && !said.contains(SECRET), "{flags:?} {variables:?}: {said}");
        Ok(())
    };
    let file = scene.path("dlserver.toml");
    let path = file.to_string_lossy().into_owned();
    for (text, told) in [
        ("grace = \"5s\"\nmeta = \"redis://:TOPSECRET@127.0.0.1:1\n", "line 2, column "),
        ("meta = redis://:TOPSECRET@127.0.0.1:1\n", "line 1, column "),
        ("mata = \"redis://:TOPSECRET@127.0.0.1:1\"\n", "line 1, column 1: unknown field `mata`"),
        ("without_keys = \"redis://:TOPSECRET@h\"\n", "line 1, column 16: expected a boolean"),
    ] {
        fs::write(&file, text)?;
        refused(&["--config", &path], &[], 2, told)?;
    }
    for place in ["etcd:u:TOPSECRET@127.0.0.1:1/k", "ectd://u:TOPSECRET@127.0.0.1:1/k"] {
        refused(&[], &[("DIESEL_CONFIG", place)], 2, "etcd://HOST:PORT/KEY")?;
        refused(&["--users", place], &[], 2, "etcd://HOST:PORT/KEY")?;
    }
    refused(&["--config", "u:TOPSECRET@host"], &[], 2, "No such file")?;
    refused(&["--store", "s3://KEY:TOPSECRET@bucket"], &[], 2, "s3://BUCKET/PREFIX")?;
    let meta = ("DIESEL_META", "redis://:TOPSECRET@127.0.0.1:1");
    refused(&["--help"], &[meta], 0, "[env: DIESEL_META]")?;
    refused(&[], &[("DIESEL_WITHOUT_KEYS", meta.1)], 2, "invalid value 'redis://***@127.0.0.1:1'")?;
    let endpoint = [
        ("AWS_ENDPOINT", "http://KEY:TOPSECRET@127.0.0.1:1"),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    refused(&["--store", "s3://bucket"], &endpoint, 1, "AWS_ENDPOINT is \"http://***@127.0.0.1:1\"")
}
