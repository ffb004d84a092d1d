//! Every crate uses the lints of the workspace, and crates without unsafe code forbid unsafe code.

use std::path::Path;

use anyhow::Result;
use dl_tests::workspace;

use super::hold;

const RULE: &str = "A crate takes the lints of the workspace and forbids unsafe code at its root:";
const INHERITED: &str = "[lints]\nworkspace = true\n";
const FORBIDDEN: &str = "#![forbid(unsafe_code)]";
/// Roots of crates with unsafe modules; elsewhere the workspace's lints deny unsafe code. The
/// runtime configures the C allocator and copies with wide registers. The node library maps
/// files and shared memory; the client library has a fork marker. The agent waits for descriptors; the Python package
/// lends memory to Python, the C library to C. The mount clones a descriptor, and takes one by its number.
const UNSAFE: [&str; 7] = [
    "runtime/src/lib.rs",
    "node/src/lib.rs",
    "client/src/lib.rs",
    "agent/src/lib.rs",
    "fuse/src/lib.rs",
    "python/src/lib.rs",
    "capi/src/lib.rs",
];

#[test]
fn crates_use_the_workspace_lints_and_forbid_unsafe_code() -> Result<()> {
    let mut found = Vec::new();
    for package in workspace::packages()? {
        let manifest = workspace::text(&package.manifest)?.unwrap_or_default();
        found.extend(missing(&package.manifest, &manifest, INHERITED));
        let sources = package.manifest.with_file_name("src");
        for root in package.roots.iter().filter(|root| root.starts_with(&sources)) {
            if UNSAFE.iter().any(|exception| root.ends_with(exception)) {
                continue;
            }
            let text = workspace::text(root)?.unwrap_or_default();
            found.extend(missing(root, &text, FORBIDDEN));
        }
    }
    hold(RULE, &found);
    Ok(())
}

fn missing(file: &Path, text: &str, wanted: &str) -> Option<String> {
    let wanted = wanted.trim_end();
    (!text.contains(wanted)).then(|| format!("{}: add {wanted:?}", file.display()))
}
