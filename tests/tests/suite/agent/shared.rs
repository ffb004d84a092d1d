//! A single copy in memory for all processes of a task.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::program::run;
use libdiesel::{Client, ConnectOptions, Dataset, DatasetName, ShuffleOptions, TaskOptions};

use super::{FILES, Scene, agent_program, bytes_of};

/// A handle of this process with the usual task.
fn open(scene: &Scene) -> Result<Dataset> {
    open_at(scene, "", None)
}

/// A handle of this process on a node. Without `patience`, reads wait for the agent as long as by
/// default.
pub(super) fn open_at(scene: &Scene, node: &str, patience: Option<Duration>) -> Result<Dataset> {
    let mut task = TaskOptions::named("job").context("a name")?;
    task.patience = patience.unwrap_or(task.patience);
    task.folder = Some(scene.path(&format!("run{node}")));
    task.program = Some(agent_program()?);
    let servers = vec![scene.address.clone()];
    let options = ConnectOptions { servers, task: Some(task), ..ConnectOptions::default() };
    Ok(Client::connect(options)?.dataset(&DatasetName::new("ds")?)?)
}

#[test]
fn processes_share_a_copy_and_a_second_epoch_asks_no_server() -> Result<()> {
    let mut scene = Scene::new(1)?;
    let files = FILES as u64;
    ensure!(scene.read(&[])? == files, "files are missing");
    let first = scene.status()?;
    ensure!(first["chunks_present"] == first["chunks"], "{first}");
    ensure!(first["chunks_from_servers"] == first["chunks"], "a chunk was fetched twice: {first}");
    scene.kill_server()?;
    ensure!(scene.read(&["--epoch", "1"])? == files, "files are missing");
    let halves = std::thread::scope(|scope| {
        let half = |rank: &'static str| {
            scope.spawn(|| scene.read(&["--epoch", "2", "--world", "2", "--rank", rank]))
        };
        let halves = [half("0"), half("1")];
        halves.map(|half| half.join().expect("no panic"))
    });
    let read: u64 = halves.into_iter().sum::<Result<u64>>()?;
    ensure!(read == files, "{read} of {files} files");
    scene.get_and_compare()?;
    let last = scene.status()?;
    ensure!(last["chunks_from_servers"] == first["chunks"], "{last}");
    ensure!(last["fallbacks"] == 0, "{last}");
    Ok(())
}

#[test]
fn every_way_to_read_gives_the_bytes_of_the_file() -> Result<()> {
    let scene = Scene::new(4)?;
    let dataset = open(&scene)?;
    let snapshot = dataset.snapshot().context("a snapshot")?;
    let numbers: Vec<u32> = (0..snapshot.files()).step_by(7).collect();
    let mut buffer = vec![0; 32 << 20];
    let places = dataset.get_many_into(&numbers, &mut buffer)?;
    let views = dataset.view_many(numbers.get(..20).context("enough files")?)?;
    let mut one = vec![0; 64 << 10];
    for (index, (number, place)) in numbers.iter().zip(places).enumerate() {
        let path = snapshot.path(*number)?;
        let wanted = bytes_of(&scene, &path)?;
        ensure!(buffer.get(place) == Some(&wanted[..]), "{path} in a batch");
        ensure!(dataset.get(&path)? == wanted, "{path} by path");
        let length = dataset.get_into(*number, &mut one)?;
        ensure!(one.get(..length) == Some(&wanted[..]), "{path} by number");
        let length = dataset.get_into(&path, &mut one)?;
        ensure!(one.get(..length) == Some(&wanted[..]), "{path} into a buffer");
        if let Some(view) = views.get(index) {
            ensure!(**view == wanted[..], "a view of {path}");
        }
    }
    drop(views);
    ensure!(dataset.get_into(0, &mut []).is_err(), "a buffer that is too short");
    let epoch = dataset.shuffle(ShuffleOptions::new(1, 0, 2))?;
    let mut read = 0;
    while let Some(file) = epoch.next()? {
        ensure!(file.bytes? == bytes_of(&scene, &file.path)?, "{} in an epoch", file.path);
        read += 1;
    }
    ensure!(read == FILES, "{read} files");
    let status = scene.status()?;
    ensure!(status["workers"][0]["pins"] == 0, "{status}");
    Ok(())
}

#[test]
fn a_large_file_comes_through_fewer_slots_than_its_parts() -> Result<()> {
    let mut scene = Scene::new(5)?;
    let large = Dice::new(6).bytes(50 << 20);
    std::fs::write(scene.path("src").join("large"), &large)?;
    run(scene.dlcmd()?.arg("put").arg(scene.path("src")).arg("dl://ds"))?.code(0)?;
    scene.start_agent(&["--memory", "24MiB"])?;
    let dataset = open(&scene)?;
    ensure!(dataset.get("large")? == large, "by path");
    let mut buffer = vec![0; large.len() + 1];
    let length = dataset.get_into("large", &mut buffer)?;
    ensure!(buffer.get(..length) == Some(&large[..]), "into a buffer");
    ensure!(*dataset.view("large")? == large[..], "a view");
    let small = bytes_of(&scene, &"large")?.len();
    let places = dataset.get_many_into(&["large"], &mut buffer)?;
    ensure!(places.first() == Some(&(0..small)), "in a batch");
    let status = scene.status()?;
    ensure!(status["fallbacks"] == 0 && status["failed_fetches"] == 0, "{status}");
    ensure!(status["memory_used"].as_u64() <= Some(24 << 20), "{status}");
    run(scene.dlcmd()?.args(["agent", "stop"]))?.code(0)?;
    scene.start_agent(&["--policy", "oneshot", "--memory", "256MiB"])?;
    scene.wait_until(|status| status["partial"] == false)?;
    scene.kill_server()?;
    let dataset = open(&scene)?;
    ensure!(dataset.get("large")? == large, "without a server");
    Ok(())
}
