//! The tours of demo/, with small folders and the programs of the tests.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dl_tests::program::{program, run, tool};
use dl_tests::scene::Scene;
use dl_tests::workspace;

/// A scene with a working folder for the tour.
fn scene(files: usize, longest: usize) -> Result<Scene> {
    let scene = Scene::filled(files, longest)?;
    fs::create_dir(scene.path("tmp"))?;
    Ok(scene)
}

fn tour(scene: &Scene, script: &str, programs: &Path) -> Command {
    let mut tour = Command::new(workspace::root().join("demo").join(script));
    tour.env("SRC", scene.src()).env("PROGRAMS", programs).env("TMPDIR", scene.path("tmp"));
    tour
}

/// Checks that only the sources are left.
fn check_left(scene: &Scene) -> Result<()> {
    let left: Vec<_> = fs::read_dir(scene.path("tmp"))?.collect::<Result<_, _>>()?;
    ensure!(left.is_empty(), "{left:?} is left");
    Ok(())
}

/// The folder of the programs of the tests.
fn programs() -> Result<PathBuf> {
    program("examples/read_shuffled")?;
    Ok(program("dlserver")?.parent().context("a program is in a folder")?.to_owned())
}

#[test]
fn the_demo_recovers_from_lost_metadata() -> Result<()> {
    let scene = scene(300, 20_000)?;
    symlink("nowhere", scene.src().join("link"))?;
    let said = run(&mut tour(&scene, "run.sh", &programs()?))?.code(0)?.text();
    ensure!(said.contains("links, special files and unreadable files were left out"), "{said}");
    ensure!(said.ends_with("Done. Nothing is left behind.\n"), "{said}");
    check_left(&scene)
}

#[test]
fn the_demo_fails_where_a_part_of_its_files_was_not_stored() -> Result<()> {
    let (scene, programs) = (scene(10, 1_000)?, programs()?);
    let others = scene.path("programs");
    fs::create_dir(&others)?;
    symlink(programs.join("dlserver"), others.join("dlserver"))?;
    symlink(programs.join("examples"), others.join("examples"))?;
    let real = programs.join("dlcmd").display().to_string();
    for (code, told) in [
        (1, "stopped, the rest was not tried: no space left"),
        (4, "store 2 files: no space left"),
        (4, "store a: no space left"),
    ] {
        let dlcmd = others.join("dlcmd");
        let text = format!(
            "#!/bin/sh\n'{real}' \"$@\" || exit\nif [ \"$1\" = put ]; then\n\
             echo 'dlcmd: {told}' >&2\nexit {code}\nfi\n"
        );
        fs::write(&dlcmd, text)?;
        fs::set_permissions(&dlcmd, fs::Permissions::from_mode(0o755))?;
        let ended = run(&mut tour(&scene, "run.sh", &others))?.code(1)?;
        ensure!(ended.stderr.contains(told), "{}", ended.stderr);
        check_left(&scene)?;
    }
    Ok(())
}

#[test]
fn the_cluster_demo_survives_its_kills_and_losses() -> Result<()> {
    // A put long enough for a kill of its server.
    let scene = scene(2_000, 100_000)?;
    let mut tour = tour(&scene, "cluster.sh", &programs()?);
    let tools = tool("bin/s3s-fs", "buckets")?;
    let tools = tools.parent().context("a program is in a folder")?.display().to_string();
    tour.env("PATH", format!("{}:{tools}", std::env::var("PATH")?));
    let said = run(&mut tour)?.code(0)?.text();
    ensure!(said.ends_with("Done. Nothing is left behind.\n"), "{said}");
    check_left(&scene)
}
