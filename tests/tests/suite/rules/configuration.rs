//! docs/CONFIGURATION.md lists exactly the settings of the programs.
//!
//! Must hold: every flag, variable and key of the file has a row, and every row has such a setting.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser};
use dl_server::config::{Config, ConfigError, Flags, live};
use dl_tests::program::{dlcmd, run};
use dl_tests::workspace;
use regex::Regex;

use super::hold;

const RULE: &str = "docs/CONFIGURATION.md names each setting, and no other:";

/// The text under a heading.
fn section(heading: &str) -> Result<String> {
    let text = workspace::text(Path::new("docs/CONFIGURATION.md"))?.unwrap_or_default();
    let start = format!("\n## {heading}\n");
    let (_, rest) = text.split_once(&start).with_context(|| format!("find {start:?}"))?;
    Ok(rest.split("\n## ").next().unwrap_or_default().to_owned())
}

/// A table column, counted from zero: the text in backquotes, up to the first space.
fn column(section: &str, number: usize) -> BTreeSet<String> {
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(number + 1));
    let named = cells.filter_map(|cell| cell.trim().strip_prefix('`'));
    named.filter_map(|cell| cell.split(['`', ' ']).next()).map(str::to_owned).collect()
}

fn differences(what: &str, written: &BTreeSet<String>, taken: &BTreeSet<String>) -> Vec<String> {
    let unwritten = taken.difference(written).map(|one| format!("{what} {one} is not written"));
    let untaken = written.difference(taken).map(|one| format!("{what} {one} is not taken"));
    unwritten.chain(untaken).collect()
}

#[test]
fn the_settings_of_dlserver_match_the_document() -> Result<()> {
    let section = section("dlserver")?;
    let command = Flags::command();
    let taken: Vec<_> =
        command.get_arguments().filter(|argument| argument.get_long().is_some()).collect();
    let flags = taken.iter().filter_map(|argument| argument.get_long());
    let flags: BTreeSet<_> = flags.map(|flag| format!("--{flag}")).collect();
    let variables = taken.iter().filter_map(|argument| argument.get_env());
    let variables: BTreeSet<_> =
        variables.map(|variable| variable.to_string_lossy().into_owned()).collect();
    let mut found = differences("flag", &column(&section, 0), &flags);
    found.extend(differences("variable", &column(&section, 1), &variables));
    found.extend(differences("key", &column(&section, 2), &keys()?));
    hold(RULE, &found);
    Ok(())
}

/// The permitted keys of the file, from the parser's error about an unknown key.
fn keys() -> Result<BTreeSet<String>> {
    let taken = expected("no_such_key = 1\n")?;
    Ok(taken.into_iter().filter(|key| key != "live").collect())
}

fn expected(text: &str) -> Result<BTreeSet<String>> {
    let refused = load(Some(text)).err().context("refuse an unknown key")?;
    let reason = refused.to_string();
    let (_, expected) = reason.split_once("expected").context("say what is expected")?;
    let quoted = Regex::new("`([a-z_]+)`")?;
    Ok(quoted.captures_iter(expected).map(|key| key[1].to_owned()).collect())
}

fn load(text: Option<&str>) -> Result<Config, ConfigError> {
    Config::load(Flags::parse_from(["dlserver"]), text)
}

#[test]
fn the_adjustable_settings_match_the_document() -> Result<()> {
    let section = section("dlserver")?;
    let (_, text) = section.split_once("### Settings that change").context("find the part")?;
    let text = text.split("\n### ").next().unwrap_or_default();
    let named = text.lines().filter_map(|line| line.strip_prefix("- `")?.split('`').next());
    let named: BTreeSet<_> = named.map(str::to_owned).collect();
    hold(RULE, &differences("live setting", &named, &expected("[live]\nno_such_key = 1\n")?));
    let (_, example) = text.split_once("```toml\n").context("find the example")?;
    let example = example.split("```").next().unwrap_or_default();
    assert!(live(example)? != live("")?, "the example changes something");
    Ok(())
}

#[test]
fn the_file_in_the_text_has_every_key_and_is_taken() -> Result<()> {
    let section = section("dlserver")?;
    let (_, example) = section.split_once("```toml\n").context("find the example")?;
    let example = example.split("```").next().unwrap_or_default();
    load(Some(example))?;
    let keys = example.lines().filter_map(|line| line.split(" = ").next());
    let keys: BTreeSet<_> = keys.map(str::to_owned).collect();
    hold(RULE, &differences("key of the example", &keys, &column(&section, 2)));
    Ok(())
}

#[test]
fn the_defaults_written_are_the_defaults_taken() -> Result<()> {
    let section = section("dlserver")?;
    let taken = load(None)?;
    let mib = |bytes: u32| format!("`{}MiB`", bytes >> 20);
    for (flag, default) in [
        ("--listen", format!("`{}`", taken.listen)),
        ("--write-memory", mib(taken.limits.write_bytes)),
        ("--read-memory", mib(taken.limits.read_bytes)),
        ("--grace", format!("`{}s`", taken.grace.as_secs())),
        ("--log", format!("`{}`", taken.log)),
    ] {
        let row = section.lines().find(|line| line.starts_with(&format!("| `{flag} ")));
        let row = row.with_context(|| format!("find the row of {flag}"))?;
        let written = row.split('|').nth(4).unwrap_or_default().trim();
        assert_eq!(written, default, "the default of {flag}");
    }
    Ok(())
}

#[test]
fn the_variables_of_dlcmd_match_the_document() -> Result<()> {
    let help = run(dlcmd()?.arg("--help"))?.code(0)?.text();
    let variable = Regex::new("DIESEL_[A-Z_]+")?;
    let taken = variable.find_iter(&help).map(|name| name.as_str().to_owned()).collect();
    hold(RULE, &differences("variable", &column(&section("dlcmd")?, 0), &taken));
    Ok(())
}
