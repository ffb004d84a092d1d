//! docs/METRICS.md describes exactly the metrics of a server.
//!
//! Must hold: each metric has a row with kind and labels, and each row has a metric. Names end in a
//! unit. Each label value is explained in the section of its metric.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use dl_tests::http::get;
use dl_tests::program::Server;
use dl_tests::workspace;
use regex::Regex;

use super::hold;

const RULE: &str = "docs/METRICS.md has a row for each metric, with its kind and labels:";

const VALUES_RULE: &str =
    "docs/METRICS.md explains each value of a label in the section of its metric:";

/// Labels with a common explanation at the beginning of the document.
const EVERYWHERE: [&str; 4] = ["method", "code", "version", "le"];

/// Permitted unit suffixes.
const UNITS: [&str; 13] = [
    "_total",
    "_seconds",
    "_bytes",
    "_info",
    "_in_flight",
    "_connections",
    "_datasets",
    "_losses",
    "_members",
    "_workers",
    "_leases",
    "_objects",
    "_running",
];

/// Prefixes of metrics without samples on a server without training jobs and TLS.
const WITHOUT_SAMPLES: [&str; 2] = ["diesel_task_", "diesel_certificate_"];

/// Metrics, each with its kind and its labels.
type Metrics = BTreeMap<String, (String, BTreeSet<String>)>;

#[test]
fn the_documented_metrics_match_a_server() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let server = Server::start_with(scene.path(), "127.0.0.1:0", &["--http", "127.0.0.1:0"])?;
    let (status, text) = get(server.http(), "/metrics")?;
    ensure!(status == 200, "{text}");
    server.stop()?;
    let document = workspace::text(Path::new("docs/METRICS.md"))?.unwrap_or_default();
    hold(RULE, &differences(&written(&document)?, &told(&text)?));
    hold(VALUES_RULE, &Vec::from_iter(unexplained(&document, &text)?));
    Ok(())
}

#[test]
fn an_unexplained_label_value_is_found() -> Result<()> {
    let told = "a_total{x=\"y\"} 1\na_total{x=\"z\",method=\"Get\"} 1\nb_total{x=\"y\"} 1\n";
    let document = "## A\n\n`x` is `y`.\n\n| `a_total` |\n\n## B\n\n| `b_total` | | | |\n";
    let found = unexplained(document, told)?;
    ensure!(found.len() == 2, "{found:?}");
    Ok(())
}

fn differences(written: &Metrics, told: &Metrics) -> Vec<String> {
    let is_same = |name: &str, (kind, labels): &(String, BTreeSet<String>)| {
        let may_have_none = WITHOUT_SAMPLES.iter().any(|prefix| name.starts_with(prefix));
        let has_none = labels.is_empty() && may_have_none;
        let written = written.get(name);
        written.is_some_and(|(of, with)| of == kind && (with == labels || has_none))
    };
    let unlike = told.iter().filter(|(name, metric)| !is_same(name, metric));
    let unlike = unlike.map(|(name, metric)| format!("{name} is {metric:?}"));
    let gone = written.keys().filter(|name| !told.contains_key(*name));
    let gone = gone.map(|name| format!("{name}: no server has this metric"));
    let unitless = told.keys().filter(|name| !UNITS.iter().any(|unit| name.ends_with(unit)));
    let unitless = unitless.map(|name| format!("{name} has no unit suffix"));
    unlike.chain(gone).chain(unitless).collect()
}

/// Label values without an explanation in the section of their metric.
fn unexplained(document: &str, text: &str) -> Result<BTreeSet<String>> {
    let label = Regex::new("([a-z_]+)=\"([^\"]*)\"")?;
    let mut found = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, labels)) = line.split_once('{') else { continue };
        let name = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name);
        let is_of = |section: &&str| section.contains(&format!("| `{name}` |"));
        let section = document.split("\n## ").find(is_of).unwrap_or_default();
        for value in label.captures_iter(labels) {
            let is_explained =
                EVERYWHERE.contains(&&value[1]) || section.contains(&format!("`{}`", &value[2]));
            if !is_explained {
                found.insert(format!("{name} has {}", &value[0]));
            }
        }
    }
    Ok(found)
}

/// The rows of the document.
fn written(document: &str) -> Result<Metrics> {
    let quoted = Regex::new("`([a-z_]+)`")?;
    let mut metrics = Metrics::new();
    for row in document.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, name, kind, labels, ..] = cells.as_slice() else { continue };
        let labels = quoted.captures_iter(labels).map(|label| label[1].to_owned()).collect();
        metrics.insert(name.trim_matches('`').to_owned(), ((*kind).to_owned(), labels));
    }
    Ok(metrics)
}

/// The metrics in a server's answer.
fn told(text: &str) -> Result<Metrics> {
    let label = Regex::new("([a-z_]+)=\"")?;
    let mut metrics = Metrics::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (named, kind) = kind.split_once(' ').context("a type has a name and a kind")?;
            name = named.to_owned();
            metrics.insert(name.clone(), (kind.to_owned(), BTreeSet::new()));
        } else if !line.starts_with('#') {
            let (_, labels) = metrics.get_mut(&name).context("a sample follows its type")?;
            let found = label.captures_iter(line).map(|label| label[1].to_owned());
            // Every histogram has the label le.
            labels.extend(found.filter(|label| label != "le"));
        }
    }
    Ok(metrics)
}
