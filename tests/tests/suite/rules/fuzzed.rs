//! The fuzz targets and the tests of format run the same decoders, and the target of the mount calls
//! the code that the tests of dl-fuse call. Only cargo-fuzz builds the targets, so the rule reads
//! their sources.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use dl_tests::workspace;
use regex::Regex;

use super::hold;

const RULE: &str = "Every decoder has a fuzz target, and every target calls its decoder:";

/// Targets without a decoder, with the function that each calls; its crate tests the function, too.
const OTHERS: [(&str, &str); 1] = [("request", "use dl_fuse::fuzzing::Requests;")];

fn text(file: &Path) -> Result<String> {
    workspace::text(file)?.with_context(|| format!("{} is text", file.display()))
}

/// The names that a pattern finds in a file.
fn names(file: &str, pattern: &str) -> Result<Vec<String>> {
    let (text, pattern) = (text(Path::new(file))?, Regex::new(pattern)?);
    let found = pattern.captures_iter(&text).filter_map(|found| found.get(1));
    Ok(found.map(|name| name.as_str().to_owned()).collect())
}

#[test]
fn decoders_targets_and_their_entries_agree() -> Result<()> {
    let decoders = names("fuzz/src/lib.rs", r#"\n    \("([a-z_]+)", [a-z_]+\),"#)?;
    let entries = names("fuzz/Cargo.toml", r#"\[\[bin\]\]\nname = "([a-z_]+)"\n"#)?;
    let mut targets = BTreeMap::new();
    for file in workspace::files()? {
        if file.starts_with("fuzz/fuzz_targets") {
            let name = file.file_stem().context("a file has a name")?;
            targets.insert(name.to_string_lossy().into_owned(), text(&file)?);
        }
    }
    let mut found = Vec::new();
    for name in &decoders {
        let calls = format!("libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dl_fuzz::{name}(bytes));");
        match targets.get(name) {
            None => found.push(format!("fuzz/fuzz_targets/{name}.rs is missing")),
            Some(target) if target.contains(&calls) => {}
            Some(_) => found.push(format!("fuzz/fuzz_targets/{name}.rs: calls another decoder")),
        }
        if !entries.contains(name) {
            found.push(format!("fuzz/Cargo.toml: {name} has no entry"));
        }
    }
    for (name, calls) in OTHERS {
        let target = targets.remove(name).unwrap_or_default();
        if !target.contains(calls) {
            found.push(format!("fuzz/fuzz_targets/{name}.rs: lacks {calls}"));
        }
    }
    let is_known =
        |name: &String| decoders.contains(name) || OTHERS.iter().any(|(other, _)| other == name);
    let stray = targets.keys().chain(&entries).filter(|name| !is_known(name));
    found.extend(stray.map(|name| format!("fuzz/src/lib.rs: {name} is none of DECODERS")));
    hold(RULE, &found);
    Ok(())
}
