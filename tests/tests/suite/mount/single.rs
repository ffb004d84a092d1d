//! Single files instead of whole chunks, when the memory of the agent holds a part of the dataset.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::program::program;
use dl_tests::{folder, skip, tell};
use libdiesel::{ChunkShape, Client, ConnectOptions, DatasetName, FilePath, TaskOptions};

use super::{Scene, no_mount};

const FILES: usize = 12_000;
const FILE_BYTES: usize = 4 << 10;
/// Chunks of 1 MiB.
const CHUNKS: u64 = (FILES * FILE_BYTES) as u64 >> 20;
const MEMORY: &str = "16MiB";

fn path(file: usize) -> String {
    format!("{:02}/{file:05}", file / 300)
}

fn fill(root: &Path) -> Result<()> {
    let dice = Dice::new(11);
    (0..FILES).try_for_each(|file| folder::write(root, path(file), dice.bytes(FILE_BYTES)))
}

/// The files in any order.
fn mixed(seed: u64) -> Vec<usize> {
    let (dice, mut files) = (Dice::new(seed), (0..FILES).collect::<Vec<_>>());
    for end in (1..files.len()).rev() {
        files.swap(end, dice.below(end + 1));
    }
    files
}

/// Chunks and single files from the servers.
#[derive(Debug, Clone, Copy)]
struct Fetched {
    chunks: u64,
    files: u64,
}

fn fetched(scene: &Scene) -> Result<Fetched> {
    let status = scene.agent_status()?;
    let number = |name: &str| status[name].as_u64().with_context(|| format!("{name} in {status}"));
    Ok(Fetched { chunks: number("chunks_from_servers")?, files: number("fallbacks")? })
}

/// The fetches during a run.
fn during(scene: &Scene, what: &str, run: impl FnOnce() -> Result<()>) -> Result<Fetched> {
    let before = fetched(scene)?;
    run()?;
    let after = fetched(scene)?;
    let Fetched { chunks, files } = after;
    let (chunks, files) = (chunks - before.chunks, files - before.files);
    tell(format_args!("{what}: {chunks} chunks and {files} files for {FILES} reads"));
    Ok(Fetched { chunks, files })
}

/// A handle of this process, through the same agent.
fn get(scene: &Scene, files: &[usize]) -> Result<()> {
    let mut task = TaskOptions::named("job").context("a legal name")?;
    task.folder = Some(scene.path("run"));
    task.program = Some(program("dlcmd")?);
    let servers = vec![scene.address.clone()];
    let options = ConnectOptions { servers, task: Some(task), ..ConnectOptions::default() };
    let dataset = Client::connect(options)?.dataset(&DatasetName::new("ds")?)?;
    for file in files {
        let bytes = dataset.get(&FilePath::new(path(*file))?)?;
        ensure!(bytes == fs::read(scene.path("src").join(path(*file)))?, "other bytes");
    }
    Ok(())
}

#[test]
fn heavy_random_reads_fetch_files_and_ordered_reads_chunks() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::shaped(ChunkShape::new(1 << 20, 64)?, fill)?;
    scene.mount("dl://ds", &["--memory", MEMORY])?;
    let at_random = during(&scene, "mount, in no order", || {
        mixed(1).into_iter().try_for_each(|file| {
            let mount = fs::read(scene.mnt().join(path(file)))?;
            ensure!(mount == fs::read(scene.path("src").join(path(file)))?, "other bytes");
            Ok(())
        })
    })?;
    scene.umount()?;
    let by_get = during(&scene, "get, in no order", || get(&scene, &mixed(2)))?;
    // A new mount has an empty page cache.
    scene.mount("dl://ds", &["--memory", MEMORY])?;
    let in_order = during(&scene, "mount, tar", || {
        let script = "tar cf - . | cat > /dev/null";
        let ended = Command::new("sh").args(["-c", script]).current_dir(scene.mnt()).output()?;
        ensure!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
        Ok(())
    })?;
    scene.umount()?;
    for random in [at_random, by_get] {
        ensure!(random.chunks < FILES as u64 / 40, "{random:?} of {FILES} reads");
        ensure!(random.files > FILES as u64 / 3, "{random:?} of {FILES} reads");
    }
    // A chunk has files of several folders: `put` reads folders in the order of the filesystem, with
    // several threads.
    ensure!(in_order.chunks <= 4 * CHUNKS && in_order.files < 6 * CHUNKS, "{in_order:?}");
    Ok(())
}
