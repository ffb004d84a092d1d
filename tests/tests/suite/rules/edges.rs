//! The permitted dependencies of each crate: a table, compared with the manifests.
//!
//! Must hold: the table has a row for each crate. Test dependencies follow the table, too; in
//! addition, a crate may depend on itself to enable a test feature.

use anyhow::Result;
use dl_tests::workspace::{self, Edge, Need, Package};

use super::hold;

const RULE: &str =
    "A crate depends on the crates its row in rules/edges.rs names, and on no other:";

/// The base crates: each other crate may use both; neither uses the other.
const BASE: [&str; 2] = ["dl-format", "dl-runtime"];

/// Each crate with its permitted dependencies besides the base.
const EDGES: &[(&str, &[&str])] = &[
    ("dl-format", &[]),
    ("dl-runtime", &[]),
    ("dl-store", &[]),
    ("dl-meta", &[]),
    ("dl-proto", &[]),
    ("dl-server", &["dl-store", "dl-meta", "dl-proto"]),
    ("dl-node", &[]),
    ("libdiesel", &["dl-proto", "dl-node"]),
    ("dl-agent", &["dl-proto", "dl-node", "libdiesel"]),
    ("dl-fuse", &["dl-node", "libdiesel"]),
    ("dl-csi", &["dl-node", "libdiesel", "dl-fuse"]),
    ("dlcmd", &["dl-node", "libdiesel", "dl-agent", "dl-fuse", "dl-csi"]),
    ("dl-python", &["dl-node", "libdiesel"]),
    ("dl-capi", &["libdiesel"]),
    ("dl-tests", ALL),
    ("dl-benches", ALL),
];

const ALL: &[&str] = &[
    "dl-store",
    "dl-meta",
    "dl-proto",
    "dl-server",
    "dl-node",
    "libdiesel",
    "dl-agent",
    "dl-fuse",
    "dl-csi",
    "dlcmd",
];

#[test]
fn crates_depend_only_along_the_table() -> Result<()> {
    let packages = workspace::packages()?;
    hold(RULE, &[breaches(&packages), stale(&packages)].concat());
    Ok(())
}

#[test]
fn an_edge_outside_the_table_is_found() {
    let needs = |name: &str, edges: &[(&str, Need)]| Package {
        name: name.to_owned(),
        manifest: format!("{name}/Cargo.toml").into(),
        roots: Vec::new(),
        programs: Vec::new(),
        edges: edges.iter().map(|&(to, need)| Edge { to: to.to_owned(), need }).collect(),
    };
    assert_eq!(breaches(&[]).len(), EDGES.len(), "rows without a crate");
    let mut packages: Vec<_> = EDGES.iter().map(|(name, _)| needs(name, &[])).collect();
    assert_eq!(breaches(&packages), Vec::<String>::new());
    let unused = stale(&packages).join("\n");
    assert!(unused.contains("no dlcmd -> dl-agent;") && !unused.contains("dl-benches"), "{unused}");

    packages.extend([
        needs("libdiesel", &[("dl-meta", Need::Normal), ("dl-store", Need::Normal)]),
        needs("dl-store", &[("dl-store", Need::Test), ("dl-server", Need::Test)]),
        needs("dl-runtime", &[("dl-format", Need::Build)]),
        needs("dl-unheard-of", &[]),
    ]);
    let found = breaches(&packages).join("\n");
    for edge in ["libdiesel -> dl-meta", "dl-store -> dl-server", "dl-runtime -> dl-format"] {
        assert!(found.contains(edge), "{edge} in {found}");
    }
    assert!(found.contains("dl-unheard-of has no row"), "{found}");
    assert_eq!(found.lines().count(), 5, "{found}");
}

/// Edges of the table that no manifest has, but for the crates that may use all.
fn stale(packages: &[Package]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, allowed) in EDGES.iter().filter(|(_, allowed)| *allowed != ALL) {
        let package = packages.iter().filter(|package| package.name == *name);
        let edges: Vec<_> = package.flat_map(|package| &package.edges).collect();
        let unused = allowed.iter().filter(|to| !edges.iter().any(|edge| edge.to == **to));
        found.extend(unused.map(|to| format!("no {name} -> {to}; take the edge out of the table")));
    }
    found
}

fn breaches(packages: &[Package]) -> Vec<String> {
    let mut found = Vec::new();
    for package in packages {
        let manifest = package.manifest.display();
        let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == package.name) else {
            found.push(format!("{manifest}: {} has no row; add one", package.name));
            continue;
        };
        for edge in &package.edges {
            let to = edge.to.as_str();
            let base = BASE.contains(&to) && !BASE.contains(&package.name.as_str());
            let own_tests = edge.need == Need::Test && to == package.name;
            if !(base || own_tests || allowed.contains(&to)) {
                found.push(format!(
                    "{manifest}: {} -> {to}; move the shared code into a crate below both",
                    package.name
                ));
            }
        }
    }
    for (name, _) in EDGES {
        if !packages.iter().any(|package| package.name == *name) {
            found.push(format!("{name} has a row but is no package; take the row out"));
        }
    }
    found
}
