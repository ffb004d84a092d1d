//! Every request to a server has a tracing span for its log lines.

use anyhow::{Context, Result, ensure};
use dl_tests::workspace;
use regex::Regex;

use super::hold;

const RULE: &str = "Every method of the service stands below a span of its own name:";

const SERVICE: &str = "server/src/api/service.rs";
const METHODS: &str = "proto/diesel.proto";

#[test]
fn each_method_of_the_service_has_a_span() -> Result<()> {
    let text = |file: &str| -> Result<String> {
        workspace::text(file.as_ref())?.with_context(|| format!("{file} is text"))
    };
    let methods = methods(&text(METHODS)?)?;
    ensure!(methods.len() > 10, "only {methods:?} were found");
    hold(RULE, &breaches(&text(SERVICE)?, &methods)?);
    Ok(())
}

/// The methods of a service, with their Rust names.
fn methods(proto: &str) -> Result<Vec<String>> {
    let rpc = Regex::new(r"\n *rpc ([A-Za-z]+)\(")?;
    let snake = |name: &str| {
        let mut text = String::new();
        for letter in name.chars() {
            if letter.is_ascii_uppercase() && !text.is_empty() {
                text.push('_');
            }
            text.push(letter.to_ascii_lowercase());
        }
        text
    };
    Ok(rpc.captures_iter(proto).filter_map(|found| Some(snake(found.get(1)?.as_str()))).collect())
}

fn breaches(service: &str, methods: &[String]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for method in methods {
        let span = format!(
            r#"#\[tracing::instrument\(name = "{method}", [^\n]*\)\]\n    async fn {method}\("#
        );
        if !Regex::new(&span)?.is_match(service) {
            found.push(format!(
                "{SERVICE}: {method} has no span; put #[tracing::instrument] above it"
            ));
        }
    }
    Ok(found)
}
