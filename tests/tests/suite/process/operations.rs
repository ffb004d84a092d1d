//! The commands of docs/OPERATIONS.md, run in private namespaces: network addresses and files exist
//! only in this test.
//!
//! Must hold: each shell block is run, or listed here with a reason.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dl_tests::program::{program, run, tool};
use dl_tests::scene::Scene;
use dl_tests::{skip, workspace};
use regex::Regex;

const PAGE: &str = "docs/OPERATIONS.md";
const SCRIPT: &str = "tests/operations.sh";

/// Excluded blocks, by their first words.
const LEFT_OUT: [&str; 1] = [
    // The build takes minutes; rules/commands.rs checks the names.
    "cargo install --locked --path",
];

/// Namespaces whose processes end with the test.
const ALONE: [&str; 6] = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"];

#[test]
fn the_commands_of_the_operations_page_work() -> Result<()> {
    let probe = ["ip", "addr", "add", "10.0.0.1/32", "dev", "lo"];
    let alone = run(Command::new("unshare").args(ALONE).args(probe))?;
    if alone.code != 0 {
        let why = format!("no network and file system of its own: {}", alone.stderr);
        return skip(why);
    }
    let scene = Scene::new()?;
    let programs = program("dlserver")?;
    let mut all = Command::new("unshare");
    all.args(ALONE).arg(workspace::root().join(SCRIPT)).arg(workspace::root().join(PAGE));
    all.args(programs.parent()).arg(tool("bin/s3s-fs", "buckets")?).arg(scene.path(""));
    let ended = run(&mut all)?;
    // The cause stands in the last lines of the output.
    let why =
        ended.stderr.lines().rfind(|line| line.starts_with("operations: ")).map(str::to_owned);
    let ended = ended.code(0).with_context(|| why.unwrap_or_default())?;
    ensure!(ended.text().ends_with("operations: done\n"), "{ended:?}");
    Ok(())
}

#[test]
fn every_block_of_the_operations_page_is_run_or_excused() -> Result<()> {
    let page = workspace::text(Path::new(PAGE))?.context("the page is text")?;
    let script = workspace::text(Path::new(SCRIPT))?.context("the script is text")?;
    let found = not_run(&page, &script)?;
    ensure!(found.is_empty(), "{found:#?}");
    Ok(())
}

#[test]
fn an_unused_block_is_found() -> Result<()> {
    let page = "```sh\none 1\ntwo\n```\n```yaml\nthree\n```\n```sh\nfour\none 1\n```\n";
    let page = format!("{page}```sh\n{} x\n```\n", LEFT_OUT.join("\n```\n```sh\n"));
    let found = |script: &str| Ok::<_, anyhow::Error>(not_run(&page, script)?.join("\n"));
    let both = "block 'one 1' | serve one\n    block 'four' | sed | commands four";
    ensure!(found(both)?.is_empty(), "{}", found(both)?);
    let twice = found("block 'one 1'\nblock 'two'")?;
    ensure!(twice.contains(":8: four:") && twice.lines().count() == 1, "{twice}");
    let other = found(&format!("{both}\nblock 'three'"))?;
    ensure!(other.contains("no block holds \"three\""), "{other}");
    let gone = not_run("```sh\na\n```\n", "block 'a'")?;
    ensure!(gone.len() == LEFT_OUT.len(), "{gone:?}");
    Ok(())
}

/// Blocks neither run by a script nor excluded, and names in the script or the list without a
/// block.
fn not_run(page: &str, script: &str) -> Result<Vec<String>> {
    let (blocks, mut used, mut found) = (blocks_of(page), BTreeSet::new(), Vec::new());
    for named in Regex::new("block '([^']+)'")?.captures_iter(script) {
        let text = named.get(1).context("a block is named")?.as_str();
        // The first block with this text, as in the script.
        if let Some((line, _)) = blocks.iter().find(|(_, block)| block.contains(text)) {
            used.insert(*line);
        } else {
            found.push(format!("{SCRIPT}: no block holds {text:?}"));
        }
    }
    for left_out in LEFT_OUT {
        if let Some((line, _)) = blocks.iter().find(|(_, block)| block.starts_with(left_out)) {
            used.insert(*line);
        } else {
            found.push(format!("{PAGE}: no block begins with {left_out:?}"));
        }
    }
    for (line, block) in blocks.iter().filter(|(line, _)| !used.contains(line)) {
        let first = block.lines().next().unwrap_or_default();
        found.push(format!("{PAGE}:{line}: {first}: nothing in {SCRIPT} runs this block"));
    }
    Ok(found)
}

/// The shell blocks, each with the number of the line before its text.
fn blocks_of(page: &str) -> Vec<(usize, String)> {
    let (mut blocks, mut begun) = (Vec::new(), None);
    for (index, line) in page.lines().enumerate() {
        begun = match (begun.take(), line) {
            (None, "```sh") => Some((index + 1, String::new())),
            (Some(block), "```") => {
                blocks.push(block);
                None
            }
            (Some((number, text)), line) => Some((number, text + line + "\n")),
            (None, _) => None,
        };
    }
    blocks
}
