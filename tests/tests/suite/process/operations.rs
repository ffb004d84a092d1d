//! The commands of docs/OPERATIONS.md, as an admin gives them: on machines for Redis and for servers
//! that are addresses of a network which only this test sees, with files that only it sees.

use std::process::Command;

use anyhow::{Result, ensure};
use dl_tests::program::{program, run, tool};
use dl_tests::{skip, workspace};

/// Namespaces that end with what was started in them.
const ALONE: [&str; 6] = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"];

#[test]
fn the_commands_of_the_operations_page_deploy_maintain_back_up_and_restore() -> Result<()> {
    let probe = ["ip", "addr", "add", "10.0.0.1/32", "dev", "lo"];
    let alone = run(Command::new("unshare").args(ALONE).args(probe))?;
    if alone.code != 0 {
        let why = format!("no network and file system of its own: {}", alone.stderr);
        return skip(why);
    }
    let scene = tempfile::tempdir()?;
    let programs = program("dlserver")?;
    let mut all = Command::new("unshare");
    all.args(ALONE).arg(workspace::root().join("tests/operations.sh"));
    all.arg(workspace::root().join("docs/OPERATIONS.md"));
    all.args(programs.parent()).arg(tool("bin/s3s-fs", "buckets")?).arg(scene.path());
    let ended = run(&mut all)?.code(0)?;
    ensure!(ended.text().ends_with("operations: done\n"), "{ended:?}");
    Ok(())
}
