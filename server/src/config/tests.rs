//! Settings as they are given, and what is made of them.

use super::*;

fn load(flags: &[&str]) -> Result<Config, ConfigError> {
    let flags = Flags::try_parse_from([&["dlserver"], flags].concat()).unwrap();
    let text = flags.config.as_ref().map(|path| std::fs::read_to_string(path).unwrap());
    Config::load(flags, text.as_deref())
}

#[test]
fn without_settings_everything_is_under_one_folder() {
    let config = load(&[]).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:7420");
    assert_eq!(config.meta, "embedded:diesel-data/meta");
    assert_eq!(config.store, "diesel-data/chunks");
    assert_eq!(config.folders(), ["diesel-data/chunks", "diesel-data/meta"].map(PathBuf::from));
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.scratch, PathBuf::from("diesel-data/scratch"));
}

#[test]
fn a_folder_for_everything_may_have_any_name_that_is_text() {
    use std::os::unix::ffi::OsStrExt;
    for (data, store) in
        [("a:b", "./a:b/chunks"), ("s3://b", "./s3://b/chunks"), ("/a:b", "/a:b/chunks")]
    {
        let config = load(&["--data", data]).unwrap();
        assert_eq!(config.store, store);
        assert_eq!(config.folders().first(), Some(&PathBuf::from(store)));
    }
    let data = Some(PathBuf::from(std::ffi::OsStr::from_bytes(b"d\xff")));
    let refused = Config::load(Flags { data, ..Flags::default() }, None).unwrap_err().to_string();
    assert!(refused.starts_with("data can't be") && refused.contains("UTF-8"), "{refused}");
}

#[test]
fn flags_override_the_file_and_the_file_the_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dlserver.toml");
    std::fs::write(&path, "listen = \"127.0.0.1:1\"\ngrace = \"5m\"\nread_memory = \"1GiB\"\n")
        .unwrap();
    let config = load(&["--config", path.to_str().unwrap(), "--listen", "[::1]:2"]).unwrap();
    assert_eq!(config.listen.to_string(), "[::1]:2");
    assert_eq!(config.grace, Duration::from_secs(300));
    assert_eq!(config.limits.read_bytes, 1 << 30);
}

#[test]
fn stores_in_memory_lie_in_no_folder() {
    let config = load(&["--meta", "memory:", "--store", "memory:"]).unwrap();
    assert!(config.folders().is_empty());
    assert_eq!(config.scratch, std::env::temp_dir());
    let config = load(&["--meta", "memory:", "--scratch", "/s"]).unwrap();
    assert_eq!(config.scratch, PathBuf::from("/s"));
    let config = load(&["--meta", "memory:", "--store", "s3://bucket"]).unwrap();
    assert!(config.folders().is_empty());
    let config = load(&["--meta", "embedded:/a", "--store", "file:///b"]).unwrap();
    assert_eq!(config.folders(), ["/b", "/a"].map(PathBuf::from));
}

#[test]
fn a_chunk_store_lies_where_its_address_says() {
    let placed = |store: &str| {
        let config = load(&["--meta", "memory:", "--store", store]).unwrap();
        (config.folders(), config.limits.read_back_delay.is_zero())
    };
    // A scheme begins with a letter.
    for folder in ["1:a", "a_b:c", "./a:b", "a b", "/a"] {
        assert_eq!(placed(folder), (vec![PathBuf::from(folder)], true), "{folder}");
    }
    assert_eq!(placed("file:///a:b"), (vec![PathBuf::from("/a:b")], true));
    assert_eq!(placed("memory:"), (Vec::new(), true));
    assert_eq!(placed("s3://bucket/a"), (Vec::new(), false));
}

#[test]
fn a_fast_store_has_a_quota() {
    assert_eq!(load(&[]).unwrap().fast_store, None);
    let fast = |flags: &[&str]| load(flags).unwrap().fast_store.unwrap().quota;
    assert_eq!(fast(&["--fast-store", "/f"]), 64 << 30);
    assert_eq!(fast(&["--fast-store", "/f", "--fast-store-quota", "2TiB"]), 2 << 40);
}

#[test]
fn a_fast_store_is_refused_inside_the_chunk_store() {
    let scene = tempfile::tempdir().unwrap();
    let store = scene.path().join("chunks");
    std::fs::create_dir(&store).unwrap();
    std::os::unix::fs::symlink(&store, scene.path().join("link")).unwrap();
    let store = store.to_str().unwrap();
    let link = format!("{}/link", scene.path().display());
    let fast = |fast: &str| load(&["--store", store, "--fast-store", fast]);
    for same in
        [store, &format!("{store}/"), &format!("file://{store}"), &link, &format!("{link}/a/b")]
    {
        let refused = fast(same).unwrap_err().to_string();
        assert!(refused.contains("another place"), "{same}: {refused}");
    }
    assert!(fast(&format!("{store}-fast")).is_ok() && fast("/nowhere/fast").is_ok());
    assert!(load(&["--store", "/nowhere/copies/a", "--fast-store", "/nowhere"]).is_err());
    assert!(load(&["--store", "/nowhere/chunks", "--fast-store", "/nowhere"]).is_ok());
}

#[test]
fn an_open_address_must_be_asked_for_by_name() {
    let refused = load(&["--listen", "0.0.0.0:7420"]).unwrap_err().to_string();
    assert!(refused.contains("--without-keys") && refused.contains("--users"), "{refused}");
    assert!(load(&["--listen", "0.0.0.0:7420", "--without-keys"]).is_ok());
    assert!(load(&["--listen", "0.0.0.0:7420", "--users", "users"]).is_ok());
}

#[test]
fn an_address_to_listen_on_may_be_localhost_or_a_port_alone() {
    let http = |text| load(&["--http", text]).unwrap().http.unwrap().address.to_string();
    for (text, address) in [
        ("localhost:7420", "127.0.0.1:7420"),
        ("LOCALHOST:0", "127.0.0.1:0"),
        (":7420", "0.0.0.0:7420"),
        ("[::]:1", "[::]:1"),
    ] {
        assert_eq!(http(text), address);
        let listen = load(&["--listen", text, "--without-keys"]).unwrap().listen;
        assert_eq!(listen.to_string(), address);
        let is_loopback = load(&["--listen", text]).is_ok();
        assert_eq!(is_loopback, address.starts_with("127."), "{text}");
        let file = format!("listen = \"{text}\"\nwithout_keys = true");
        let config = Config::load(Flags::default(), Some(&file)).unwrap();
        assert_eq!(config.listen.to_string(), address);
    }
    for text in ["localhost", "localhost:", ":", ":x", ":70000", "localhost:+1x", "host:1", "::1"] {
        assert!(load(&["--listen", text, "--without-keys"]).is_err(), "{text}");
    }
}

#[test]
fn neither_the_help_nor_a_flag_that_is_none_shows_a_login() {
    use clap::CommandFactory;
    for flag in Flags::command().get_arguments() {
        assert!(flag.get_env().is_none() || flag.is_hide_env_values_set(), "{flag}");
    }
    for (flag, told) in [
        ("redis://:sesame@h", "unexpected argument 'redis://***@h'"),
        ("--without-keys=redis://:sesame@h", "unexpected value 'redis://***@h'"),
        ("--meat=redis://:sesame@h", "'--meat'"),
        ("--lisen", "--listen"),
    ] {
        let refused = Flags::try_parse_from(["dlserver", flag]).unwrap_err();
        let refused = without_logins(refused).to_string();
        assert!(refused.contains(told) && !refused.contains("sesame"), "{refused}");
    }
}

#[test]
fn the_http_port_can_be_moved_and_left_out() {
    let http = |flags: &[&str]| load(flags).unwrap().http;
    let asked = |flags: &[&str]| http(flags).map(|http| (http.address.port(), http.is_asked));
    assert_eq!(asked(&[]), Some((7421, false)));
    assert_eq!(asked(&["--http", "0.0.0.0:80"]), Some((80, true)));
    assert_eq!(asked(&["--http", "none"]), None);
}

#[test]
fn what_may_change_stands_in_a_table_of_its_own() {
    assert_eq!(live("listen = \"127.0.0.1:1\"").unwrap(), Live::default());
    let text = "[live]\nread_only = true\nkeep = [\"imagenet*\"]\nread_memory = \"1GiB\"";
    let found = live(text).unwrap();
    assert!(found.read_only && found.read_bytes == Some(1 << 30) && found.write_bytes.is_none());
    assert_eq!(found.keep, ["imagenet*".parse().unwrap()]);
    for (wrong, told) in [
        ("[live]\nread_onyl = true", "read_onyl"),
        ("[live]\nkeep = [\"a/b\"]", "live.keep"),
        ("[live]\nwrite_memory = \"1MiB\"", "4MiB"),
    ] {
        let error = anyhow::Error::new(live(wrong).unwrap_err());
        assert!(format!("{error:#}").contains(told), "{error:#}");
    }
}

#[test]
fn wrong_settings_say_what_they_take() {
    for (flags, told) in [
        (&["--listen", "localhost"][..], "127.0.0.1:7420"),
        (&["--http", "off"], "or none"),
        (&["--users", "u", "--without-keys"], "one of the two"),
        (&["--tls-cert", "c"], "tls_key"),
        (&["--tls-key", "k"], "tls_cert"),
        (&["--tls-client-ca", "a"], "tls_cert and tls_key"),
        (&["--write-memory", "64"], "64MiB"),
        (&["--write-memory", "1MiB"], "4MiB"),
        (&["--grace", "30"], "30s"),
        (&["--fast-store", "/f", "--fast-store-quota", "9"], "64GiB"),
        (&["--fast-store", "/f", "--fast-store-quota", "99999999TiB"], "64GiB"),
        (&["--fast-store", "redis://host"], "file:///DIR"),
        (&["--store", "/f", "--fast-store", "/f"], "another place"),
        (&["--store", "ftp://host/prefix"], "s3://BUCKET/PREFIX"),
        (&["--meta", "redsi://host:1/0"], "embedded:DIR"),
        (&["--meta", "memory"], "embedded:DIR"),
    ] {
        let error = load(flags).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dlserver.toml");
    std::fs::write(&path, "lisen = \"127.0.0.1:1\"\n").unwrap();
    let error = load(&["--config", path.to_str().unwrap()]).unwrap_err();
    let why = error.to_string();
    assert!(why.contains("line 1, column 1: unknown field `lisen`"), "{why}");
}

#[test]
fn no_error_shows_what_may_be_a_password() {
    for (text, told) in [
        (
            "listen = \"127.0.0.1:1\"\nmeta = \"redis://:SECRET@h:1/0\ngrace = \"1s\"",
            "line 2, column ",
        ),
        ("meta = redis://:SECRET@h:1", "line 1, column "),
        ("\nmata = \"redis://:SECRET@h:1\"", "line 2, column 1: unknown field `mata`"),
        ("without_keys = \"u:SECRET@h\"", "line 1, column 16: expected a boolean"),
        ("meta = [\"redis://:SECRET@h:1\"]", "expected a string"),
        ("meta.\"redis://:SECRET@h\" = 1", "line 1, column "),
        ("\"redis://:SECRET@h\" = 1", "unknown field"),
        ("[live]\nread_only = \"u:SECRET@h\"", "line 2, column 13: expected a boolean"),
        ("[live]\nkeep = [\"u:SECRET@h\"]", "live.keep"),
    ] {
        let error = format!(
            "{0} {0:?}",
            live(text)
                .map(drop)
                .and(Config::load(Flags::default(), Some(text)).map(drop))
                .unwrap_err()
        );
        assert!(error.contains(told) && !error.contains("SECRET"), "{error}");
    }
    for flags in [
        ["--config", "etcd:u:SECRET@h:1/k"],
        ["--config", "ectd://u:SECRET@h:1/k"],
        ["--users", "ectd://u:SECRET@h:1/k"],
        ["--listen", "u:SECRET@h:1"],
        ["--meta", "redsi://:SECRET@h:1"],
        ["--store", "s3://KEY:SECRET@b"],
        ["--store", "KEY:SECRET@b"],
        ["--fast-store", "s3://KEY:SECRET@b"],
    ] {
        let given = Flags::try_parse_from([&["dlserver"], &flags[..]].concat()).unwrap();
        let place = given.config.as_ref().map(|place| source("config", place).map(drop));
        let error = place.unwrap_or(Ok(())).and_then(|()| Config::load(given, None).map(drop));
        let error = format!("{0} {0:?}", error.unwrap_err());
        assert!(!error.contains("SECRET") && error.contains('@'), "{error}");
    }
}
