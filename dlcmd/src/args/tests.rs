//! Parsing of command lines.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::*;
use crate::context::Environment;

fn parse(line: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from([&["dlcmd"], line].concat())
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn global_flags_stand_before_or_after_the_command() {
    for line in [
        &["--json", "--quiet", "--server", "a:1,b:2", "ls", "dl://d"][..],
        &["ls", "dl://d", "--json", "--quiet", "--server", "a:1,b:2"],
        &["ls", "--json", "dl://d", "-q", "--server=a:1", "--server=b:2"],
    ] {
        let cli = parse(line).expect("legal");
        assert!(cli.global.json && cli.global.quiet, "{line:?}");
        let options = cli.global.connect_options(Environment::default()).expect("no key file");
        assert_eq!(options.servers, ["a:1", "b:2"], "{line:?}");
    }
}

#[test]
fn every_command_of_the_contract_is_understood() {
    for line in [
        "put a dl://d",
        "put a b c dl://d/x",
        "put - dl://d",
        "put -0 - dl://d --checksum --threads 3",
        "get dl://d .",
        "get dl://d/a/b --sync out",
        "cat dl://d/a",
        "ls dl://d",
        "ls -lR dl://d/a/",
        "ls -R0 dl://d",
        "stat dl://d",
        "stat dl://d/a",
        "du dl://d/a",
        "rm dl://d/a",
        "rm -r dl://d",
        "datasets",
        "snapshot save dl://d f",
        "snapshot info f --json",
        "agent prefetch dl://d/a dl://d/b --wait --task t",
        "why --task t --json",
        "shuffle dl://d",
        "shuffle dl://d/a dl://d/b",
        "shuffle dl://d/a --seed 7 --epoch 3 --group-size 50 -0",
        "shuffle dl://d --report --window 64 --class-depth 2 --json",
        "--snapshot f ls -lR dl://d",
        "cat dl://d/a --snapshot f",
        "delete-dataset dl://d",
        "recover dl://d",
        "recover --all --since 2h",
        "recover --since 2026-11-20T08:00:00Z dl://d",
        "user --users f add ann --role read:imagenet* --role write:ann-*",
        "user add ann --role admin:* --users f",
        "user --users f remove ann",
        "user --users f list --json",
        "completions bash",
        "man",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(parse(&words).is_ok(), "{line}");
    }
}

#[test]
fn wrong_usage_ends_with_2_and_help_with_0() {
    for line in [
        &["ls"][..],
        &["ls", "photos"],
        &["put", "dl://d"],
        &["put", "a", "b"],
        &["get", "dl://d"],
        &["recover"],
        &["recover", "dl://d", "--all"],
        &["put", "--threads", "0", "a", "dl://d"],
        &["user", "--users", "f", "add", "ann"],
        &["user", "--users", "f", "add", "a n", "--role", "read:*"],
        &["user", "--users", "f", "add", "ann", "--role", "own:*"],
        &["user", "--users", "f", "add", "ann", "--role", "read:*", "--key", "k"],
        &["frobnicate"],
    ] {
        let refused = parse(line).expect_err("wrong usage");
        assert_eq!(refused.exit_code(), 2, "{line:?}");
    }
    let help = parse(&["help", "put"]).expect_err("help is printed");
    assert_eq!((help.kind(), help.exit_code()), (ErrorKind::DisplayHelp, 0));
}

#[test]
fn names_that_are_not_text_are_understood() {
    let line = [&b"dlcmd"[..], b"get", b"dl://d/\xFF", b"out-\xFE"];
    let line = line.map(|word| OsString::from(OsStr::from_bytes(word)));
    assert!(Cli::try_parse_from(line).is_ok());
}

#[test]
fn flags_come_before_the_environment_and_the_defaults() {
    let options = |line: &[&str], servers: Option<&str>| {
        let (servers, user) = (servers.map(str::to_owned), Some("ann".to_owned()));
        let cli = parse(line).expect("legal");
        cli.global.connect_options(Environment { servers, user, ..Environment::default() })
    };
    let flags = &["--server", "f:1", "--user", "bob", "datasets"];
    let given = options(flags, Some("e:1,e:2")).expect("legal");
    assert_eq!((given.servers, given.user), (vec!["f:1".to_owned()], "bob".to_owned()));
    let given = options(&["datasets"], Some("e:1,e:2")).expect("legal");
    assert_eq!((given.servers.join(" "), given.user), ("e:1 e:2".to_owned(), "ann".to_owned()));
    assert_eq!(options(&["datasets"], None).expect("legal").servers, ["127.0.0.1:7420"]);
    assert!(options(&["datasets"], Some("")).is_err());
}

#[test]
fn a_key_file_precedes_the_environment_and_is_not_empty() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("key");
    let options = |key: Option<&str>| {
        let file = file.to_str().expect("text");
        let cli = parse(&["--key-file", file, "datasets"]).expect("legal");
        let key = key.map(str::to_owned);
        cli.global.connect_options(Environment { key, ..Environment::default() })
    };
    assert!(options(Some("environment")).is_err());
    std::fs::write(&file, "sesame\n").expect("written");
    let key = options(Some("environment")).expect("there is a key").key;
    assert_eq!(key.as_deref(), Some("sesame"));
    std::fs::write(&file, "\n").expect("written");
    assert!(options(None).expect_err("no key").to_string().contains("the file is empty"));
}
