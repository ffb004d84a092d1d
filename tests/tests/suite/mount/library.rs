//! Mounts by programs of the library.

use std::fs;

use anyhow::{Context, Result, ensure};
use dl_format::{Attributes, DatasetName, DirPath};
use dl_tests::program::program;
use dl_tests::skip;
use libdiesel::{Client, ConnectOptions, Kind, Mount, MountOptions, TaskOptions};

use super::{Scene, fill_mixed, no_mount};

#[test]
fn a_program_mounts_a_dataset_and_ends_the_mount() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let scene = Scene::new(fill_mixed)?;
    let task = TaskOptions::named("job").context("a name")?;
    let task =
        TaskOptions { folder: Some(scene.path("run")), program: Some(program("dlcmd")?), ..task };
    let connect = ConnectOptions {
        servers: vec![scene.address.clone()],
        task: Some(task),
        ..Default::default()
    };
    let dataset = Client::connect(connect)?.dataset(&DatasetName::new("ds")?)?;
    let options =
        MountOptions { arguments: vec!["--threads".into(), "1".into()], ..Default::default() };
    let mount = Mount::new(&dataset, &scene.mnt(), &options)?;
    dl_tests::folder::compare(&scene.path("src"), mount.dir())?;
    ensure!(mount.status()?.contains("\"task\":\"job\""), "{}", mount.status()?);
    dataset.put("later", Attributes::default(), b"later")?;
    let _ = dataset.flush()?.check()?;
    mount.refresh()?;
    ensure!(fs::read(mount.dir().join("later"))? == b"later");
    mount.unmount(false)?;
    let ended = mount.status().err().context("it has ended")?;
    ensure!(ended.kind() == Kind::NotFound, "{ended}");
    let folder = Some(DirPath::new("nothing")?);
    let missing = Mount::new(&dataset, &scene.mnt(), &MountOptions { folder, ..options });
    ensure!(missing.is_err_and(|error| error.kind() == Kind::NotFound));
    Ok(())
}
