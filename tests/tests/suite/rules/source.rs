//! Rust files as tokens: items, modules and tests without confusion by strings and comments. Unlike
//! in a parser's output, macro calls are visible.

use std::path::Path;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use dl_tests::workspace;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// An item of a module: attributes, then all tokens up to the closing `;` or brace.
pub(super) struct Item {
    pub(super) attributes: Vec<Group>,
    pub(super) head: Vec<TokenTree>,
    pub(super) body: Option<Group>,
}

/// The items of a file, given relative to the root of the repository.
pub(super) fn items_of(file: &Path) -> Result<Vec<Item>> {
    let shown = file.display();
    let text = workspace::text(file)?.ok_or_else(|| anyhow!("{shown} is not UTF-8"))?;
    Ok(items(tokens(&text).map_err(|error| error.context(format!("read {shown}")))?))
}

/// The tokens of a text; comments are dropped, doc comments become attributes.
pub(super) fn tokens(text: &str) -> Result<TokenStream> {
    TokenStream::from_str(text)
        .map_err(|error| anyhow!("line {}: not Rust: {error}", error.span().start().line))
}

/// Splits the tokens of a module into its items.
pub(super) fn items(stream: TokenStream) -> Vec<Item> {
    let mut items = Vec::new();
    let mut next = Item { attributes: Vec::new(), head: Vec::new(), body: None };
    let mut tokens = stream.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' && next.head.is_empty() => {
                tokens.next_if(|token| is_punct(token, '!'));
                if let Some(TokenTree::Group(attribute)) = tokens.next() {
                    next.attributes.push(attribute);
                }
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => items.push(next.take()),
            TokenTree::Group(group)
                if group.delimiter() == Delimiter::Brace && next.keyword() != Some("use") =>
            {
                next.body = Some(group);
                items.push(next.take());
            }
            token => next.head.push(token),
        }
    }
    items
}

impl Item {
    fn take(&mut self) -> Self {
        let empty = Self { attributes: Vec::new(), head: Vec::new(), body: None };
        std::mem::replace(self, empty)
    }

    /// The keyword of the item; `None` for a macro call.
    pub(super) fn keyword(&self) -> Option<&'static str> {
        const KEYWORDS: [&str; 10] =
            ["use", "mod", "fn", "struct", "enum", "union", "trait", "impl", "static", "type"];
        let words = self.head.iter().filter_map(|token| match token {
            TokenTree::Ident(word) => Some(word),
            _ => None,
        });
        words.into_iter().find_map(|word| KEYWORDS.into_iter().find(|keyword| word == keyword))
    }

    /// The name after the keyword.
    pub(super) fn name(&self) -> Option<String> {
        let keyword = self.keyword()?;
        let mut tokens = self.head.iter();
        tokens.find(|token| is_word(token, keyword))?;
        match tokens.next()? {
            TokenTree::Ident(name) => Some(name.to_string()),
            _ => None,
        }
    }

    /// Whether the item exists only in tests.
    pub(super) fn is_for_tests(&self) -> bool {
        self.attributes.iter().any(|attribute| {
            let text = attribute.stream().to_string().replace(' ', "");
            text == "cfg(test)" || text.starts_with("cfg(all(test,")
        })
    }

    /// Whether the item is a test function: `#[test]`, `#[tokio::test]`.
    pub(super) fn is_test(&self) -> bool {
        self.keyword() == Some("fn")
            && self.attributes.iter().any(|attribute| {
                let path = attribute.stream().into_iter();
                let path = path.take_while(|token| !matches!(token, TokenTree::Group(_)));
                path.last().is_some_and(|token| is_word(&token, "test"))
            })
    }

    /// The lines from the item's first word to its last brace.
    pub(super) fn lines(&self) -> usize {
        let first = self.head.first().map(|token| token.span().start().line);
        let last = self.body.as_ref().map(|body| body.span_close().end().line);
        first.zip(last).map_or(1, |(first, last)| last + 1 - first)
    }

    /// The line on which the item starts, after its attributes.
    pub(super) fn line(&self) -> usize {
        self.head.first().map_or(0, |token| token.span().start().line)
    }

    /// The items inside, of a module or of a macro call in braces.
    pub(super) fn inner(&self) -> Vec<Item> {
        let within = matches!(self.keyword(), Some("mod") | None);
        self.body.iter().filter(|_| within).flat_map(|body| items(body.stream())).collect()
    }
}

/// All items of a file, with the items of inline modules and macro calls.
pub(super) fn all_items(items: Vec<Item>) -> Vec<Item> {
    let mut all = Vec::new();
    for item in items {
        all.extend(all_items(item.inner()));
        all.push(item);
    }
    all
}

pub(super) fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

pub(super) fn is_punct(token: &TokenTree, punct: char) -> bool {
    matches!(token, TokenTree::Punct(found) if found.as_char() == punct)
}

/// Whether the word occurs in the tokens, at any depth.
pub(super) fn mentions(stream: impl IntoIterator<Item = TokenTree>, word: &str) -> bool {
    stream.into_iter().any(|token| match token {
        TokenTree::Group(group) => mentions(group.stream(), word),
        token => is_word(&token, word),
    })
}

#[test]
fn items_are_told_apart() -> Result<()> {
    let text = "//! Doc.\nuse a::{b, c};\npub(crate) async fn f() {}\n#[cfg(test)]\nmod tests {\n\
                #[test]\nfn g() {}\n}\nproptest! { #[tokio::test] fn h(x in 1..) {} }";
    let all = all_items(items(tokens(text)?));
    let names: Vec<_> =
        all.iter().filter_map(|item| Some((item.keyword()?, item.name()?, item.line()))).collect();
    let expected = [("use", "a", 2), ("fn", "f", 3), ("fn", "g", 7), ("mod", "tests", 5)];
    let expected = expected.into_iter().chain([("fn", "h", 9)]);
    assert_eq!(names, expected.map(|(k, n, l)| (k, n.to_owned(), l)).collect::<Vec<_>>());
    let tests: Vec<_> = all.iter().filter(|item| item.is_test()).filter_map(Item::name).collect();
    assert_eq!(tests, ["g", "h"]);
    let lines: Vec<_> = all.iter().filter(|item| item.is_for_tests()).map(Item::lines).collect();
    assert_eq!(lines, [4]);
    Ok(())
}
