//! The header of the C library: that of the crate, for all compilers, and no other symbols.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dl_tests::program::run;
use dl_tests::workspace;

use super::prefix;

/// Rewrites the header instead of comparing it.
const WRITE: &str = "DIESEL_WRITE_GENERATED";

/// The files of the crate, in the order of the header.
const FILES: [&str; 10] =
    ["failure", "status", "options", "context", "write", "bytes", "read", "list", "epoch", "tidy"];

fn written(capi: &Path) -> Result<String> {
    let config = cbindgen::Config::from_file(capi.join("cbindgen.toml"))
        .map_err(|why| anyhow::anyhow!("cbindgen.toml: {why}"))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in FILES {
        builder = builder.with_src(capi.join(format!("src/{name}.rs")));
    }
    let mut text = Vec::new();
    builder.generate()?.write(&mut text);
    Ok(String::from_utf8(text)?)
}

#[test]
fn the_header_is_that_of_the_crate() -> Result<()> {
    let capi = workspace::root().join("capi");
    let (header, text) = (capi.join("include/diesel.h"), written(&capi)?);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&header, &text)?;
    }
    let there = std::fs::read_to_string(&header)?;
    ensure!(there == text, "capi/include/diesel.h differs: {WRITE}=1 writes it anew");
    Ok(())
}

#[test]
fn the_library_exports_the_functions_of_the_header_alone() -> Result<()> {
    let library = prefix()?.join("lib/libdiesel.so.0");
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library))?.code(0)?;
    let symbols = listed.text();
    let symbols = symbols.lines().filter_map(|line| line.split_whitespace().nth(2));
    let symbols: BTreeSet<_> =
        symbols.map(|symbol| symbol.split('@').next().unwrap_or_default()).collect();
    let header = std::fs::read_to_string(workspace::root().join("capi/include/diesel.h"))?;
    let function = regex::Regex::new(r"(DL_[a-z_]+)\(")?;
    let code: String = header.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let functions = function.captures_iter(&code);
    let functions: BTreeSet<_> =
        functions.filter_map(|found| Some(found.get(1)?.as_str())).collect();
    // The version of the symbols is a symbol itself.
    let symbols: BTreeSet<_> = symbols.into_iter().filter(|name| *name != "DIESEL_0").collect();
    ensure!(symbols == functions, "{symbols:?}\n{functions:?}");
    ensure!(symbols.len() > 30, "{symbols:?}");
    let (folder, stripped) = (tempfile::tempdir()?, "stripped");
    let stripped = folder.path().join(stripped);
    run(Command::new("strip").arg("-o").arg(&stripped).arg(&library))?.code(0)?;
    let bytes = std::fs::metadata(&stripped)?.len();
    ensure!(bytes <= BYTES_MAX, "the library has {bytes} bytes");
    let needed = run(Command::new("readelf").arg("-d").arg(&library))?.code(0)?;
    ensure!(needed.text().contains("Library soname: [libdiesel.so.0]"), "{needed:?}");
    Ok(())
}

/// The size of a library of the profile of the tests; a release is smaller.
const BYTES_MAX: u64 = 14 << 20;

#[test]
fn compilers_of_c_and_cpp_take_the_headers() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let include = prefix()?.join("include");
    for (compiler, standard, header) in [
        ("gcc", "c99", "diesel.h"),
        ("gcc", "c17", "diesel.h"),
        ("g++", "c++17", "diesel.h"),
        ("g++", "c++17", "diesel.hpp"),
        ("g++", "c++20", "diesel.hpp"),
    ] {
        let ending = if compiler == "gcc" { "c" } else { "cpp" };
        let source = folder.path().join(format!("one.{ending}"));
        std::fs::write(&source, format!("#include <{header}>\nint main(void) {{ return 0; }}\n"))?;
        let mut command = Command::new(compiler);
        command.arg(format!("-std={standard}")).args(["-Wall", "-Wextra", "-Werror", "-pedantic"]);
        command.arg("-I").arg(&include).arg("-c").arg(&source);
        command.arg("-o").arg(folder.path().join("one.o"));
        run(&mut command)?
            .code(0)
            .with_context(|| format!("{compiler} -std={standard} {header}"))?;
    }
    Ok(())
}
