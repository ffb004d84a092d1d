//! The paths in a file's tokens: references by `crate::` and `super::`, and imported names.

use proc_macro2::{Group, TokenStream, TokenTree};

use super::source::{Item, is_punct, is_word};

/// The names from the crate's root down; the root is the empty path.
pub(super) type ModulePath = Vec<String>;

/// A path in a file, and its line.
#[derive(Debug, PartialEq)]
pub(super) struct Reference {
    pub(super) to: ModulePath,
    pub(super) line: usize,
}

/// The end of a path, or of a branch of a braced import.
struct Leaf {
    path: ModulePath,
    alias: Option<String>,
    line: usize,
}

pub(super) fn join(module: &ModulePath, name: &str) -> ModulePath {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

/// All paths of an item of `module` with `crate` or `super` as the first word.
pub(super) fn references(item: &Item, module: &ModulePath) -> Vec<Reference> {
    let mut found = Vec::new();
    let body = item.body.iter().cloned().map(TokenTree::Group);
    let tokens: Vec<_> = item.head.iter().cloned().chain(body).collect();
    collect(&tokens, module, &mut found);
    found
}

/// The first words of an item's paths, with their lines.
pub(super) fn beginnings(item: &Item) -> Vec<(String, usize)> {
    let body = item.body.iter().cloned().map(TokenTree::Group);
    let mut found = Vec::new();
    begin(&item.head.iter().cloned().chain(body).collect::<Vec<_>>(), &mut found);
    found
}

fn begin(tokens: &[TokenTree], found: &mut Vec<(String, usize)>) {
    let mut is_inside = false;
    for (index, token) in tokens.iter().enumerate() {
        let is_path = tokens
            .get(index + 1..index + 3)
            .is_some_and(|next| next.iter().all(|token| is_punct(token, ':')));
        match token {
            TokenTree::Ident(word) if is_path && !is_inside => {
                found.push((word.to_string(), word.span().start().line));
            }
            TokenTree::Group(group) => {
                begin(&group.stream().into_iter().collect::<Vec<_>>(), found);
            }
            _ => {}
        }
        is_inside = is_punct(token, ':');
    }
}

fn collect(tokens: &[TokenTree], module: &ModulePath, found: &mut Vec<Reference>) {
    let mut rest = tokens;
    while let Some((first, after)) = rest.split_first() {
        let start = if is_word(first, "crate") {
            Some(Vec::new())
        } else if is_word(first, "super") {
            Some(parent(module))
        } else {
            None
        };
        rest = after;
        if let Some(start) = start {
            let mut leaves = Vec::new();
            rest = walk(after, start, first.span().start().line, &mut leaves);
            found.extend(
                leaves.into_iter().map(|leaf| Reference { to: leaf.path, line: leaf.line }),
            );
        } else if let TokenTree::Group(group) = first {
            collect(&group.stream().into_iter().collect::<Vec<_>>(), module, found);
        }
    }
}

/// The names imported by a `use` of `module`, with their full paths.
pub(super) fn imports(head: &[TokenTree], module: &ModulePath) -> Vec<(String, ModulePath)> {
    let mut tokens = head.iter();
    tokens.find(|token| is_word(token, "use"));
    let mut leaves = Vec::new();
    element(tokens.as_slice(), module, &mut leaves);
    leaves
        .into_iter()
        .filter_map(|Leaf { path, alias, .. }| {
            Some((alias.or_else(|| path.last().cloned())?, path))
        })
        .collect()
}

/// A whole path. A first word other than `crate`, `super` or `self` counts as a name below `base`;
/// for a crate's name, no such module is known.
fn element(tokens: &[TokenTree], base: &ModulePath, leaves: &mut Vec<Leaf>) {
    let Some((first, after)) = tokens.split_first() else { return };
    let line = first.span().start().line;
    match first {
        TokenTree::Group(group) => each_element(group, base, leaves),
        TokenTree::Ident(word) => {
            let start = match word.to_string().as_str() {
                "crate" => Vec::new(),
                "super" => parent(base),
                "self" => base.clone(),
                name => join(base, name),
            };
            walk(after, start, line, leaves);
        }
        _ => {}
    }
}

fn each_element(group: &Group, base: &ModulePath, leaves: &mut Vec<Leaf>) {
    let tokens: Vec<_> = group.stream().into_iter().collect();
    for part in tokens.split(|token| is_punct(token, ',')) {
        element(part, base, leaves);
    }
}

/// Follows `::name` steps from `path`, into braces too, and returns the remaining tokens.
fn walk<'a>(
    tokens: &'a [TokenTree],
    mut path: ModulePath,
    line: usize,
    leaves: &mut Vec<Leaf>,
) -> &'a [TokenTree] {
    let mut rest = tokens;
    while let [colon, second, step, after @ ..] = rest {
        if !(is_punct(colon, ':') && is_punct(second, ':')) {
            break;
        }
        match step {
            TokenTree::Ident(word) if word == "super" => path = parent(&path),
            TokenTree::Ident(word) => path.push(word.to_string()),
            TokenTree::Group(group) => {
                each_element(group, &path, leaves);
                return after;
            }
            _ => break,
        }
        rest = after;
    }
    let alias = match rest {
        [word, TokenTree::Ident(alias), ..] if is_word(word, "as") => Some(alias.to_string()),
        _ => None,
    };
    leaves.push(Leaf { path, alias, line });
    rest
}

fn parent(module: &ModulePath) -> ModulePath {
    module.split_last().map_or_else(Vec::new, |(_, parent)| parent.to_vec())
}

/// The file of an attribute `#[path = "..."]`.
pub(super) fn path_attribute(attribute: &Group) -> Option<String> {
    let tokens: Vec<_> = attribute.stream().into_iter().collect();
    match tokens.as_slice() {
        [word, equals, TokenTree::Literal(file)]
            if is_word(word, "path") && is_punct(equals, '=') =>
        {
            Some(file.to_string().trim_matches('"').to_owned())
        }
        _ => None,
    }
}

#[test]
fn paths_are_read_from_imports_expressions_and_macro_calls() -> anyhow::Result<()> {
    let text = "use crate::{a::{b, self}, c as d}; fn f() { vec![super::super::x::y(), crate::z] }";
    let module = ["m".to_owned(), "n".to_owned(), "o".to_owned()].to_vec();
    let items = super::source::items(super::source::tokens(text)?);
    let found: Vec<_> = items.iter().flat_map(|item| references(item, &module)).collect();
    let found: Vec<_> = found.into_iter().map(|reference| reference.to.join("::")).collect();
    assert_eq!(found, ["a::b", "a", "c", "m::x::y", "z"]);

    let names: Vec<_> = items.iter().flat_map(|item| imports(&item.head, &module)).collect();
    let names: Vec<_> = names.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..3], ["b", "a", "d"]);
    Ok(())
}

#[test]
fn a_module_may_stand_in_a_file_of_another_name() -> anyhow::Result<()> {
    let tokens: TokenStream = super::source::tokens("#[path = \"generated/v1.rs\"] mod v1;")?;
    let items = super::source::items(tokens);
    let paths: Vec<_> = items.iter().flat_map(|item| &item.attributes).collect();
    assert_eq!(paths.into_iter().find_map(path_attribute).as_deref(), Some("generated/v1.rs"));
    Ok(())
}
