//! `dlcmd shuffle --report` for datasets stored by class and for shuffled datasets.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use dl_tests::folder;
use dl_tests::program::run_with_stdin;
use dl_tests::workspace;
use serde_json::Value;

use super::Workplace;

const CLASSES: usize = 6;
const FILES: usize = 384;
const PER_CHUNK: usize = 16;

impl Workplace {
    /// Datasets `sorted` and `mixed` of the same files, 24 chunks each.
    fn with_classes() -> Result<Self> {
        let scene = Self::start()?;
        let paths: Vec<String> = (0..FILES)
            .map(|number| format!("train/c{}/f{number}", number * CLASSES / FILES))
            .collect();
        for path in &paths {
            folder::write(scene.path(), format!("src/{path}"), path)?;
        }
        let chunks = FILES / PER_CHUNK;
        for chunk in 0..chunks {
            let sorted = &paths[chunk * PER_CHUNK..(chunk + 1) * PER_CHUNK];
            scene.put("sorted", &sorted.join("\n"))?;
            // 7 is coprime to the 384 files: each file comes once.
            let mixed = (0..PER_CHUNK).map(|n| paths[(n * chunks + chunk) * 7 % FILES].as_str());
            scene.put("mixed", &mixed.collect::<Vec<_>>().join("\n"))?;
        }
        Ok(scene)
    }

    /// Puts the listed files as one chunk.
    fn put(&self, dataset: &str, list: &str) -> Result<()> {
        let mut command = self.server.dlcmd()?;
        command.args(["put", "-", &format!("dl://{dataset}")]).current_dir(self.path().join("src"));
        run_with_stdin(&mut command, list.as_bytes())?.code(0)?;
        Ok(())
    }

    fn report(&self, dataset: &str, words: &[&str]) -> Result<Value> {
        let words = [&["shuffle", dataset, "--report", "--json", "--window", "32"], words].concat();
        Ok(serde_json::from_str(&self.dl(&words)?.code(0)?.text())?)
    }
}

fn number(of: &Value, field: &str) -> Result<f64> {
    of.pointer(field).and_then(Value::as_f64).with_context(|| format!("{field} in {of}"))
}

#[test]
fn small_groups_of_a_sorted_dataset_cause_a_warning() -> Result<()> {
    let scene = Workplace::with_classes()?;
    let report = scene.report("dl://sorted", &["--group-size", "2"])?;
    ensure!(report["type"] == "shuffle-report" && report["schema"] == 1, "{report}");
    ensure!(report["files"] == 384 && report["chunks"] == 24 && report["classes"] == 6, "{report}");
    ensure!(number(&report, "/share")? < 0.5, "{report}");
    let advised = number(&report, "/advice/group_size")?.to_string();
    let warning = report["warning"].as_str().context("a warning")?;
    for said in ["dl://sorted", "sorted by class", "2 chunks", &format!("--group-size {advised} ")]
    {
        ensure!(warning.contains(said), "{said:?} in {warning}");
    }
    let text = |words: &[&str]| scene.dl(&[&["shuffle", "--report"], words].concat())?.code(0);
    let small = ["dl://sorted", "--group-size", "2", "--window", "32"];
    let small = text(&small)?;
    ensure!(small.text().contains(warning) && small.stderr.is_empty(), "{small:?}");

    // Large groups, a mixed dataset, or a single class: no reason for a warning.
    for (words, says) in [
        (&["dl://sorted", "--group-size", &advised, "--window", "32"][..], "classes in "),
        (&["dl://mixed", "--group-size", "1", "--window", "32"], "classes in "),
        (&["dl://sorted/train/c3", "--group-size", "1"], "mix:       nothing is known"),
        (&["dl://sorted", "--group-size", "1", "--class-depth", "1"], "classes in "),
    ] {
        let fine = text(words)?.text();
        ensure!(!fine.contains("warning") && fine.contains(says), "{words:?}: {fine}");
    }
    Ok(())
}

#[test]
fn the_files_of_several_folders_are_shuffled_together() -> Result<()> {
    let scene = Workplace::with_classes()?;
    let shuffled = |words: &[&str]| scene.dl(&[&["shuffle", "--seed", "3"], words].concat());
    let order = |words: &[&str]| -> Result<Vec<String>> {
        Ok(shuffled(words)?.code(0)?.text().lines().map(str::to_owned).collect())
    };
    let all = order(&["dl://sorted"])?;
    let two = order(&["dl://sorted/train/c1", "dl://sorted/train/c4", "dl://sorted/train/c1"])?;
    let sorted = |mut paths: Vec<String>| {
        paths.sort();
        paths
    };
    let is_of_two = |path: &&String| path.starts_with("train/c1/") || path.starts_with("train/c4/");
    let expected: Vec<String> = all.iter().filter(is_of_two).cloned().collect();
    ensure!(expected.len() == 128 && sorted(two.clone()) == sorted(expected), "{two:?}");
    ensure!(two.windows(2).filter(|pair| pair[0][..8] != pair[1][..8]).count() > 10, "{two:?}");
    let report = shuffled(&["--report", "dl://sorted/train/c1", "dl://sorted/train/c4"])?;
    ensure!(report.code(0)?.text().contains("128 files"));
    let strange = shuffled(&["dl://sorted/train/c1", "dl://mixed/train/c1"])?.code(2)?;
    ensure!(strange.stderr.contains("two datasets"), "{strange:?}");
    let missing = shuffled(&["dl://sorted/train/c1", "dl://sorted/train/c9"])?.code(3)?;
    ensure!(missing.stderr.contains("dl://sorted/train/c9"), "{missing:?}");
    Ok(())
}

#[test]
fn every_report_field_is_in_the_document() -> Result<()> {
    let scene = Workplace::with_classes()?;
    let report = scene.report("dl://sorted", &["--group-size", "2", "--class-depth", "2"])?;
    let document = workspace::text(Path::new("docs/JSON.md"))?.context("docs/JSON.md is UTF-8")?;
    let (_, section) = document.split_once("## `shuffle-report`").context("its heading")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let objects = ["", "/order", "/full", "/chunk_by_chunk", "/advice"];
    for object in objects.iter().filter_map(|at| report.pointer(at)?.as_object()) {
        for field in object.keys().filter(|field| !["type", "schema"].contains(&field.as_str())) {
            ensure!(section.contains(&format!("`{field}`")), "{field} in docs/JSON.md");
        }
    }
    let documented = section.matches("| `").count();
    ensure!(documented >= 5, "{documented} rows");

    for words in [
        &["--window", "3"][..],
        &["--class-depth", "3"],
        &["--report", "-0"],
        &["--report", "--window", "0"],
        &["--report", "--group-size", "0"],
        &["--report", "--world", "8"],
        &["--report", "--nodes", "2"],
        &["--report", "--global"],
        &["--global", "--nodes", "2"],
        &["--report", "--pad"],
    ] {
        scene.dl(&[&["shuffle", "dl://sorted"][..], words].concat())?.code(2)?;
    }
    let huge = ["shuffle", "--report", "--window", "5000000000", "dl://sorted"];
    let huge = scene.dl(&huge)?.code(2)?;
    ensure!(huge.stderr.contains("too large a number"), "{huge:?}");
    scene.dl(&["shuffle", "--report", "dl://sorted/none"])?.code(3)?;
    scene.dl(&["rm", "-r", "dl://mixed"])?.code(0)?;
    let empty = scene.dl(&["shuffle", "--report", "dl://mixed"])?.code(1)?;
    ensure!(empty.stderr.contains("no files"), "{empty:?}");
    Ok(())
}
