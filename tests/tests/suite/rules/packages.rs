//! Dependencies obey `deny.toml`: no banned package, and only permitted licences. This rule needs
//! no tool; `make lint` checks more with cargo-deny.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dl_tests::workspace;
use regex::Regex;

use super::hold;

const RULE: &str = "deny.toml permits every package:";

/// The rules of `deny.toml`.
struct Rules {
    licences: Vec<String>,
    banned: Vec<String>,
}

/// Name and licence of a package.
type Package = (String, String);

#[test]
fn every_package_is_let_in() -> Result<()> {
    let packages = packages()?;
    ensure!(packages.len() > 100, "only {} packages were found", packages.len());
    hold(RULE, &breaches(&rules()?, &packages));
    Ok(())
}

#[test]
fn a_package_without_permission_is_found() -> Result<()> {
    let rules = rules()?;
    let package = |name: &str, licence: &str| (name.to_owned(), licence.to_owned());
    let fine = [
        package("a", "MIT OR Apache-2.0"),
        package("b", "(MIT OR GPL-3.0) AND Unicode-3.0"),
        package("c", "Unlicense/MIT"),
        package("d", "Apache-2.0 WITH LLVM-exception"),
    ];
    assert_eq!(breaches(&rules, &fine), Vec::<String>::new());
    let wrong = [
        package("openssl-sys", "MIT"),
        package("e", "GPL-3.0"),
        package("f", "MIT AND GPL-3.0"),
        package("g", ""),
    ];
    let found = breaches(&rules, &wrong);
    ensure!(found.len() == wrong.len(), "{found:?}");
    Ok(())
}

fn rules() -> Result<Rules> {
    let text = workspace::text(Path::new("deny.toml"))?.context("deny.toml is UTF-8")?;
    let names = |text: &str, pattern: &str| -> Result<Vec<String>> {
        let pattern = Regex::new(pattern)?;
        let found = pattern.captures_iter(text).filter_map(|found| found.get(1));
        Ok(found.map(|name| name.as_str().to_owned()).collect())
    };
    let allowed = text.lines().find(|line| line.starts_with("allow = [")).context("licences")?;
    let rules = Rules {
        licences: names(allowed, "\"([^\"]+)\"")?,
        banned: names(&text, "crate = \"([^\"]+)\"")?,
    };
    ensure!(rules.licences.len() > 2 && rules.banned.len() > 2, "deny.toml is not understood");
    Ok(rules)
}

/// All packages of a build on this machine.
fn packages() -> Result<Vec<Package>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--locked", "--offline", "--workspace", "--edges", "all"]);
    cargo.args(["--prefix", "none", "--format", "{p}|{l}"]);
    let output = cargo.current_dir(workspace::root()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout)?;
    let named = listed.lines().filter_map(|line| {
        let (package, licence) = line.split_once('|')?;
        let licence = licence.trim_end_matches(" (*)");
        Some((package.split(' ').next()?.to_owned(), licence.to_owned()))
    });
    let packages: BTreeSet<Package> = named.collect();
    Ok(packages.into_iter().collect())
}

fn breaches(rules: &Rules, packages: &[Package]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, licence) in packages {
        if rules.banned.contains(name) {
            found.push(format!("{name} is banned; see the reason there"));
        } else if !is_allowed(rules, licence) {
            found.push(format!("{name} has the licence {licence:?}; use another package"));
        }
    }
    found
}

/// Whether every part of an AND expression has a permitted alternative.
fn is_allowed(rules: &Rules, licence: &str) -> bool {
    let is_one = |one: &str| rules.licences.iter().any(|allowed| allowed == one.trim());
    licence.split(" AND ").all(|part| {
        let part = part.trim().trim_start_matches('(').trim_end_matches(')');
        part.replace('/', " OR ").split(" OR ").any(is_one)
    })
}
