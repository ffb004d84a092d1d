//! Sibling modules don't import each other in a circle, on any level of any crate.
//!
//! Must hold: re-exports are resolved (`use crate::Name` counts as the module that defines `Name`).
//! Imports of test code don't count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use dl_tests::workspace;

use super::hold;
use super::paths::{self, ModulePath, Reference};
use super::source::{self, Item};

const RULE: &str = "Sibling modules do not import each other in a circle; \
                    move the shared code into a third module below them:";

/// The modules of a library or binary, and their references to each other.
#[derive(Default)]
pub(super) struct Modules {
    known: BTreeSet<ModulePath>,
    /// The full path of each imported or re-exported name.
    aliases: BTreeMap<ModulePath, ModulePath>,
    /// References: from, to, place.
    references: Vec<(ModulePath, ModulePath, String)>,
    /// First words of other paths: module, word, place.
    others: Vec<(ModulePath, String, String)>,
}

/// From each module to its siblings, with the place of the first reference.
type Graph = BTreeMap<ModulePath, BTreeMap<ModulePath, String>>;

#[test]
fn sibling_modules_import_each_other_in_no_circle() -> Result<()> {
    let mut found = Vec::new();
    for package in workspace::packages()? {
        for root in &package.roots {
            found.extend(circles(&Modules::of(root)?.graph()));
        }
    }
    hold(RULE, &found);
    Ok(())
}

/// Parents, children and tests make no circle.
#[test]
fn circles_are_found_and_named() -> Result<()> {
    for (text, edges) in [
        (
            "mod a { use crate::{b::X, d}; } mod b { fn f() { super::c::g(); } }
             mod c { mod inner { type A = crate::a::A; } } mod d {}",
            &["a -> b", "b -> c", "c -> a"][..],
        ),
        (
            "mod a { mod b { use super::c::X; } mod c { use crate::a::b::Y; } }",
            &["a::b -> a::c", "a::c -> a::b"],
        ),
        (
            "pub use b::X as Z; mod a { use crate::Z; } mod b { use crate::a::Y; }",
            &["a -> b", "b -> a"],
        ),
        (
            "use a::X; mod a { use super::Top; use crate::b::Y; mod inner { use super::X; } }
             mod b { pub(crate) struct Y; #[cfg(test)] mod tests { use crate::a::X; } }",
            &[],
        ),
    ] {
        let found = circles(&Modules::of_text(text)?.graph());
        assert_eq!(found.len(), usize::from(!edges.is_empty()), "{found:?}");
        for edge in edges {
            assert!(found.iter().all(|circle| circle.contains(edge)), "{edge} in {found:?}");
        }
    }
    Ok(())
}

impl Modules {
    /// The modules of the library or binary with this root.
    pub(super) fn of(root: &Path) -> Result<Self> {
        let mut modules = Self::default();
        let folder = root.parent().context("a source file stands in a folder")?;
        modules.read_file(root, folder, &Vec::new())?;
        Ok(modules)
    }

    /// The modules of a library with this text.
    pub(super) fn of_text(text: &str) -> Result<Self> {
        let mut modules = Self::default();
        let items = source::items(source::tokens(text)?);
        modules.read(items, Path::new("lib.rs"), Path::new(""), &Vec::new())?;
        Ok(modules)
    }

    /// The names of the modules at the root.
    pub(super) fn at_the_root(&self) -> Vec<String> {
        let names = self.known.iter().map(Vec::as_slice);
        names.filter_map(|path| <[String; 1]>::try_from(path.to_vec()).ok()).flatten().collect()
    }

    /// The root modules used by a root module, each with a place.
    pub(super) fn used_by(&self, module: &str) -> Vec<(String, String)> {
        let edges = self.graph().remove(&vec![module.to_owned()]).unwrap_or_default();
        let others = edges.into_iter().map(|(to, place)| (to.join("::"), place));
        others.filter(|(to, _)| to != module).collect()
    }

    /// The first words of paths, such as names of other crates, each with its module and place.
    pub(super) fn crates(&self) -> &[(ModulePath, String, String)] {
        &self.others
    }

    /// Reads a file and its child modules, whose files lie in `folder`.
    fn read_file(&mut self, file: &Path, folder: &Path, module: &ModulePath) -> Result<()> {
        self.read(source::items_of(file)?, file, folder, module)
    }

    fn read(
        &mut self,
        items: Vec<Item>,
        file: &Path,
        folder: &Path,
        module: &ModulePath,
    ) -> Result<()> {
        self.known.insert(module.clone());
        for item in items.into_iter().filter(|item| !item.is_for_tests()) {
            match (item.keyword(), item.name()) {
                (Some("mod"), Some(name)) => {
                    let child = paths::join(module, &name);
                    if item.body.is_some() {
                        self.read(item.inner(), file, &folder.join(&name), &child)?;
                    } else if let Some((file, folder)) = file_of(&item, &name, file, folder) {
                        self.read_file(&file, &folder, &child)?;
                    }
                }
                (Some("use"), _) => {
                    for (alias, meant) in paths::imports(&item.head, module) {
                        self.aliases.insert(paths::join(module, &alias), meant);
                    }
                    self.refer(&item, module, file);
                }
                _ => self.refer(&item, module, file),
            }
        }
        Ok(())
    }

    fn refer(&mut self, item: &Item, module: &ModulePath, file: &Path) {
        for Reference { to, line } in paths::references(item, module) {
            let place = format!("{}:{line}", file.display());
            self.references.push((module.clone(), to, place));
        }
        for (word, line) in paths::beginnings(item) {
            self.others.push((module.clone(), word, format!("{}:{line}", file.display())));
        }
    }

    /// The module at the end of a path, seen from `from`. Aliases count only in the modules above
    /// `from`.
    fn resolve(&self, from: &ModulePath, path: &ModulePath) -> ModulePath {
        // The longest chain of aliases; `use a::b as a` would never end.
        const HOPS: usize = 8;
        let mut path = path.clone();
        'hop: for _ in 0..HOPS {
            for length in 1..=path.len() {
                let (reached, rest) = path.split_at(length);
                if self.known.contains(reached) {
                    continue;
                }
                let parent = &reached[..length - 1];
                match self.aliases.get(reached) {
                    Some(meant) if from.starts_with(parent) => {
                        path = meant.iter().chain(rest).cloned().collect();
                        continue 'hop;
                    }
                    _ => return parent.to_vec(),
                }
            }
            return path;
        }
        path
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for (from, to, place) in &self.references {
            let to = self.resolve(from, to);
            let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(sibling), Some(other)) = (from.get(..=shared), to.get(..=shared)) {
                let edges = graph.entry(sibling.to_vec()).or_default();
                edges.entry(other.to_vec()).or_insert_with(|| place.clone());
            }
        }
        graph
    }
}

/// The file of `mod name;` and the folder of its children; `None` for files outside the sources,
/// such as the output of a build script.
fn file_of(item: &Item, name: &str, file: &Path, folder: &Path) -> Option<(PathBuf, PathBuf)> {
    let exists = |file: &PathBuf| workspace::root().join(file).is_file();
    if let Some(path) = item.attributes.iter().find_map(paths::path_attribute) {
        let file = file.parent()?.join(path);
        let folder = file.parent()?.to_owned();
        return Some((file, folder)).filter(|(file, _)| exists(file));
    }
    let children = folder.join(name);
    let candidates = [folder.join(format!("{name}.rs")), children.join("mod.rs")];
    candidates.into_iter().find(exists).map(|file| (file, children))
}

/// A line for each circle: its modules in turn, each step with its place.
fn circles(graph: &Graph) -> Vec<String> {
    let mut found = Vec::new();
    let mut reported = BTreeSet::new();
    for start in graph.keys() {
        let Some(circle) = way_back(graph, start) else { continue };
        if reported.is_disjoint(&circle.iter().map(|(from, _, _)| *from).collect()) {
            let steps = circle.iter().map(|(from, to, place)| {
                format!("{} -> {} ({place})", from.join("::"), to.join("::"))
            });
            found.push(steps.collect::<Vec<_>>().join(", "));
        }
        reported.extend(circle.into_iter().map(|(from, _, _)| from));
    }
    found
}

type Step<'a> = (&'a ModulePath, &'a ModulePath, &'a str);

/// The shortest path from a module back to itself.
fn way_back<'a>(graph: &'a Graph, start: &'a ModulePath) -> Option<Vec<Step<'a>>> {
    let mut came_by: BTreeMap<&ModulePath, Step<'_>> = BTreeMap::new();
    let mut reached = vec![start];
    let mut next = 0;
    while let Some(&from) = reached.get(next) {
        next += 1;
        for (to, place) in graph.get(from).into_iter().flatten() {
            if !came_by.contains_key(to) {
                came_by.insert(to, (from, to, place));
                reached.push(to);
            }
        }
    }
    let mut way = vec![*came_by.get(start)?];
    while let Some((from, _, _)) = way.last().copied().filter(|(from, _, _)| *from != start) {
        way.push(*came_by.get(from)?);
    }
    way.reverse();
    Some(way)
}
