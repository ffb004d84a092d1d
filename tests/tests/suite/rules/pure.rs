//! The agent's decisions are pure, and its time is an argument, so that a simulation may run both.

use std::path::Path;

use anyhow::Result;
use dl_tests::workspace;

use super::hold;

const RULE: &str = "The agent takes its clock as an argument, and its decisions (place/) know neither \
                    locks, tasks, files nor clocks:";

/// Names that read a clock; run.rs passes the machine's.
const CLOCKS: [&str; 3] = ["since_boot", "SystemClock", "Instant::"];

/// Names of locks, tasks, files and clocks.
const IMPURE: [&str; 11] = [
    "tokio",
    "std::fs",
    "std::net",
    "std::thread",
    "Mutex",
    "RwLock",
    "Atomic",
    "OnceLock",
    "Clock",
    "SystemTime",
    "Random",
];

#[test]
fn decisions_of_the_agent_are_pure_and_its_time_is_an_argument() -> Result<()> {
    let mut found = Vec::new();
    for file in workspace::files()? {
        let Some(text) = workspace::text(&file)? else { continue };
        found.extend(breaches(&file, &text));
    }
    hold(RULE, &found);
    Ok(())
}

#[test]
fn a_clock_and_a_lock_are_found() {
    let of = |file: &str, text: &str| breaches(Path::new(file), text).len();
    let text = "use dl_runtime::since_boot;\n// Mutex\nfn f(at: Mutex<u8>) {}\n";
    assert_eq!(of("/x/agent/src/place/window.rs", text), 2);
    assert_eq!(of("/x/agent/src/cache/mod.rs", text), 1);
    assert_eq!(of("/x/agent/src/run.rs", text), 0);
    assert_eq!(of("/x/client/src/lib.rs", text), 0);
    let tests = "fn f() {}\n#[cfg(test)]\nmod tests { use dl_runtime::SystemClock; }\n";
    assert_eq!(of("/x/agent/src/cache/mod.rs", tests), 0);
}

fn breaches(file: &Path, text: &str) -> Vec<String> {
    let shown = file.to_string_lossy();
    let is_test = ["tests.rs", "model.rs"].iter().any(|name| file.ends_with(name));
    if !shown.contains("/agent/src/") || is_test || file.ends_with("agent/src/run.rs") {
        return Vec::new();
    }
    let forbidden = match shown.contains("/agent/src/place/") {
        true => [&CLOCKS[..], &IMPURE[..]].concat(),
        false => CLOCKS.to_vec(),
    };
    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines =
        product.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
    lines
        .filter_map(|(number, line)| {
            let name = forbidden.iter().find(|name| line.contains(*name))?;
            Some(format!("{shown}:{}: {name}", number + 1))
        })
        .collect()
}
