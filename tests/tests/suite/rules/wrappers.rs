//! A wrapper forwards every method of its trait, including methods with a default. A forgotten
//! method would silently bypass the inner value.
//!
//! Must hold: wrappers are recognized in the code: an `impl Trait for Type` whose `Type` holds a
//! `Trait`, for every trait of the workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use dl_tests::workspace;
use proc_macro2::TokenTree;

use super::hold;
use super::source::{self, Item};

const RULE: &str = "A wrapper of a trait forwards every method; put \
                    `#[deny(clippy::missing_trait_methods)]` on the impl:";

#[test]
fn wrappers_forward_every_method() -> Result<()> {
    let mut traits = BTreeSet::new();
    let mut files = Vec::new();
    for file in workspace::files()? {
        if file.extension().is_some_and(|extension| extension == "rs") {
            let items = source::all_items(source::items_of(&file)?);
            traits.extend(traits_of(&items));
            files.push((file, items));
        }
    }
    let found = files.iter().flat_map(|(file, items)| breaches(file, items, &traits));
    hold(RULE, &found.collect::<Vec<_>>());
    Ok(())
}

#[test]
fn a_wrapper_with_a_default_method_is_found() -> Result<()> {
    let breaches = |text: &str| {
        let text = format!("pub trait Store {{}} {text}");
        let items = source::all_items(source::items(source::tokens(&text)?));
        anyhow::Ok(breaches(Path::new("lib.rs"), &items, &traits_of(&items)).len())
    };
    let boxed = "struct Slow { inner: Arc<dyn Store> }";
    let generic = "struct Slow<S> { inner: S }";
    let leaf = "struct Disk { root: PathBuf }";
    assert_eq!(breaches(&format!("{boxed} impl Store for Slow {{}}"))?, 1);
    assert_eq!(breaches(&format!("{generic} impl<S: Store> crate::Store for Slow<S> {{}}"))?, 1);
    assert_eq!(breaches(&format!("{leaf} impl Store for Disk {{}}"))?, 0);
    let denied = "#[async_trait] #[deny(clippy::missing_trait_methods)]";
    assert_eq!(breaches(&format!("{boxed} {denied} impl Store for Slow {{}}"))?, 0);
    Ok(())
}

fn traits_of(items: &[Item]) -> BTreeSet<String> {
    let traits = items.iter().filter(|item| item.keyword() == Some("trait"));
    traits.filter_map(Item::name).collect()
}

fn breaches(file: &Path, items: &[Item], traits: &BTreeSet<String>) -> Vec<String> {
    let structs: BTreeMap<_, _> = items
        .iter()
        .filter(|item| item.keyword() == Some("struct"))
        .filter_map(|item| Some((item.name()?, item)))
        .collect();
    let mut found = Vec::new();
    for item in items.iter().filter(|item| item.keyword() == Some("impl")) {
        let Some((generics, implemented, target)) = parts(item) else { continue };
        let holds_one = structs.get(&target).is_some_and(|wrapper| {
            let fields = wrapper.body.iter().cloned().map(TokenTree::Group);
            source::mentions(wrapper.head.iter().cloned().chain(fields), &implemented)
        });
        let wraps = holds_one || source::mentions(generics, &implemented);
        let denied = item.attributes.iter().any(|attribute| {
            source::mentions(attribute.stream(), "deny")
                && source::mentions(attribute.stream(), "missing_trait_methods")
        });
        if traits.contains(&implemented) && wraps && !denied {
            let (file, line) = (file.display(), item.line());
            found.push(format!("{file}:{line}: {target} wraps a {implemented}"));
        }
    }
    found
}

/// Splits `impl<generics> path::Trait<..> for path::Type<..> where ..` into the remaining tokens,
/// the trait's last name and the type's last name.
fn parts(item: &Item) -> Option<(Vec<TokenTree>, String, String)> {
    let middle = item.head.iter().position(|token| source::is_word(token, "for"))?;
    let (before, after) = item.head.split_at(middle);
    let (generics_after_impl, implemented) = split_path(before.get(1..)?);
    let (_, target) = split_path(after.get(1..)?);
    let bounds = after.iter().skip_while(|token| !source::is_word(token, "where"));
    let generics = generics_after_impl.into_iter().chain(bounds.cloned()).collect();
    Some((generics, implemented?, target?))
}

/// Splits a path into its tokens in angle brackets and its last name.
fn split_path(tokens: &[TokenTree]) -> (Vec<TokenTree>, Option<String>) {
    let mut depth = 0_usize;
    let mut generics = Vec::new();
    let mut last = None;
    for token in tokens {
        if source::is_word(token, "where") {
            break;
        }
        if source::is_punct(token, '<') {
            depth += 1;
        } else if source::is_punct(token, '>') {
            depth = depth.saturating_sub(1);
        } else if depth > 0 {
            generics.push(token.clone());
        } else if let TokenTree::Ident(name) = token {
            last = Some(name.to_string());
        }
    }
    (generics, last)
}
