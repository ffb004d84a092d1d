//! The permitted imports among the modules of the client library, and network access of a single
//! module.
//!
//! Must hold: modules shared by readers of servers and of shared memory (order, snapshots, forks,
//! errors, epochs) need no network and no async runtime.

use anyhow::{Context, Result};
use dl_tests::workspace;

use super::circles::Modules;
use super::hold;

const RULE: &str = "A module of the client library uses the modules that its row in rules/layers.rs \
                    names, and `remote` alone uses crates of the network:";

/// Each root module with the root modules that may be imported.
const LAYERS: &[(&str, &[&str])] = &[
    ("admin", &[]),
    ("format", &[]),
    ("error", &[]),
    ("process", &[]),
    ("order", &["error"]),
    ("path", &["error"]),
    ("snapshot", &["error", "order"]),
    ("report", &["error", "order", "snapshot"]),
    ("epoch", &["error", "order", "process", "snapshot"]),
    ("task", &[]),
    ("worker", &["epoch", "error", "order", "process", "snapshot", "task"]),
    ("remote", &["epoch", "error", "order", "process", "snapshot", "task"]),
    ("environment", &["error", "remote"]),
    ("log", &["remote"]),
    ("dataset", &["epoch", "error", "order", "path", "process", "remote", "snapshot", "worker"]),
    ("mount", &["dataset", "error", "task"]),
    ("agent", &["dataset", "error", "remote", "snapshot", "task", "worker"]),
];

/// The only module with network access, and its crates.
const REMOTE: &str = "remote";
const NETWORK: [&str; 7] =
    ["tokio", "tonic", "futures", "prost", "rustls", "http_body", "tokio_stream"];

#[test]
fn client_modules_use_each_other_only_along_the_table() -> Result<()> {
    let packages = workspace::packages()?;
    let client = packages.iter().find(|package| package.name == "libdiesel");
    let root = client.and_then(|client| client.roots.iter().find(|root| root.ends_with("lib.rs")));
    hold(RULE, &breaches(&Modules::of(root.context("libdiesel has a src/lib.rs")?)?));
    Ok(())
}

#[test]
fn foreign_edges_and_network_outside_remote_are_found() -> Result<()> {
    assert_eq!(breaches(&Modules::of_text("")?).len(), LAYERS.len(), "rows without a module");
    let kept: String = LAYERS.iter().map(|(name, _)| format!("mod {name} {{}}\n")).collect();
    assert_eq!(breaches(&Modules::of_text(&kept)?), Vec::<String>::new());
    let text = kept
        .replace("mod order {}", "mod order { use crate::remote::Client; }")
        .replace("mod snapshot {}", "mod snapshot { mod a { use tonic::Status; } }")
        .replace("mod epoch {}", "mod epoch { fn f() { super::remote::g(); tokio::spawn(h()) } }")
        .replace("mod remote {}", "mod remote { use tokio::spawn; use crate::{epoch, error::E}; }")
        .replace("mod path {}", "mod path { #[cfg(test)] mod tests { use crate::remote::C; } }");
    let found = breaches(&Modules::of_text(&format!("{text} mod unheard_of {{}}"))?);
    let expected = [
        "order uses remote",
        "snapshot::a uses the crate tonic",
        "epoch uses remote",
        "epoch uses the crate tokio",
        "unheard_of has no row",
    ];
    for breach in expected {
        assert!(found.iter().any(|found| found.contains(breach)), "{breach} in {found:?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:?}");
    Ok(())
}

fn breaches(modules: &Modules) -> Vec<String> {
    let mut found = Vec::new();
    let known = modules.at_the_root();
    for module in &known {
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| name == module) else {
            found.push(format!("{module} has no row; add one"));
            continue;
        };
        for (to, place) in modules.used_by(module) {
            if !allowed.contains(&to.as_str()) {
                found.push(format!("{place}: {module} uses {to}; move the shared code below both"));
            }
        }
    }
    for (module, name, place) in modules.crates() {
        if module.first().is_some_and(|top| top != REMOTE) && NETWORK.contains(&name.as_str()) {
            let module = module.join("::");
            found.push(format!("{place}: {module} uses the crate {name}; do that in {REMOTE}"));
        }
    }
    for (name, _) in LAYERS {
        if !known.iter().any(|module| module == name) {
            found.push(format!("{name} has a row but is no module; take the row out"));
        }
    }
    found
}
