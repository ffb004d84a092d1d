//! The files and packages of this repository, from git and cargo.
//!
//! Must hold: uncommitted new files count, deleted and ignored files don't. No network is used.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A package of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// The name in the manifest.
    pub name: String,
    /// The path of `Cargo.toml`, relative to the root.
    pub manifest: PathBuf,
    /// The first source file of each library, binary, test and example, relative to the root.
    pub roots: Vec<PathBuf>,
    /// The names of the package's programs.
    pub programs: Vec<String>,
    /// The dependencies on packages of the workspace.
    pub edges: Vec<Edge>,
}

/// A dependency on another package of the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The name of the dependency.
    pub to: String,
    /// The purpose of the dependency.
    pub need: Need,
}

/// The purpose of a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The library or binary itself.
    Normal,
    /// Tests, examples and benches.
    Test,
    /// The build script.
    Build,
}

/// The root of the repository under test, from the manifest path that cargo sets at run time. The
/// compile-time path may belong to another clone with the same target folder.
pub fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR");
        let manifest = manifest.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let folder = Path::new(&manifest).parent();
        folder.expect("this package is a folder of the repository").to_owned()
    });
    &ROOT
}

/// All files that git tracks or would track, relative to the root, in byte order.
///
/// # Errors
///
/// When git is missing, or this is not a clone.
pub fn files() -> Result<Vec<PathBuf>> {
    let listed = stdout_of(Command::new("git").args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    let listed = String::from_utf8(listed).context("read the file names git lists")?;
    let mut files: Vec<_> = listed.split_terminator('\0').map(PathBuf::from).collect();
    files.retain(|file| root().join(file).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}

/// The text of a file, given relative to the root; `None` when it is not UTF-8.
///
/// # Errors
///
/// When the file cannot be read.
pub fn text(file: &Path) -> Result<Option<String>> {
    let bytes =
        std::fs::read(root().join(file)).with_context(|| format!("read {}", file.display()))?;
    Ok(String::from_utf8(bytes).ok())
}

/// The packages of the workspace.
///
/// # Errors
///
/// When cargo fails, or its output is not understood.
pub fn packages() -> Result<Vec<Package>> {
    let printed = stdout_of(Command::new(env!("CARGO")).args([
        "metadata",
        "--offline",
        "--no-deps",
        "--format-version",
        "1",
    ]))?;
    let metadata: Value = serde_json::from_slice(&printed).context("parse cargo metadata")?;
    list(&metadata, "packages")?.iter().map(package).collect()
}

fn package(from: &Value) -> Result<Package> {
    let in_root = |path: &str| -> Result<PathBuf> {
        let path = Path::new(path).strip_prefix(root());
        Ok(path.context("place a path of cargo metadata in the repository")?.to_owned())
    };
    let roots = list(from, "targets")?.iter().map(|target| in_root(string(target, "src_path")?));
    let is_program = |target: &&Value| {
        list(target, "kind").is_ok_and(|kinds| kinds.contains(&Value::from("bin")))
    };
    let name = |target: &Value| -> Result<String> { Ok(string(target, "name")?.to_owned()) };
    let programs = list(from, "targets")?.iter().filter(is_program).map(name);
    let local = |dependency: &&Value| dependency.get("path").is_some_and(Value::is_string);
    let edge = |dependency: &Value| -> Result<Edge> {
        let need = match dependency.get("kind").and_then(Value::as_str) {
            Some("dev") => Need::Test,
            Some("build") => Need::Build,
            _ => Need::Normal,
        };
        Ok(Edge { to: string(dependency, "name")?.to_owned(), need })
    };
    Ok(Package {
        name: string(from, "name")?.to_owned(),
        manifest: in_root(string(from, "manifest_path")?)?,
        roots: roots.collect::<Result<_>>()?,
        programs: programs.collect::<Result<_>>()?,
        edges: list(from, "dependencies")?.iter().filter(local).map(edge).collect::<Result<_>>()?,
    })
}

fn list<'a>(from: &'a Value, field: &str) -> Result<&'a Vec<Value>> {
    let value = from.get(field).and_then(Value::as_array);
    value.with_context(|| format!("find the list {field:?} in cargo metadata"))
}

fn string<'a>(from: &'a Value, field: &str) -> Result<&'a str> {
    let value = from.get(field).and_then(Value::as_str);
    value.with_context(|| format!("find the text {field:?} in cargo metadata"))
}

fn stdout_of(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.current_dir(root()).output();
    let output = output.with_context(|| format!("start {command:?}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {complaint}");
    Ok(output.stdout)
}
