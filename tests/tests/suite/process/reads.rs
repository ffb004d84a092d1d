//! The cost of a request at the chunk store, by the server's counts.

use anyhow::{Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::http::sample;
use dl_tests::program::Server;
use dl_tests::scene::Scene;
use libdiesel::{Attributes, ChunkShape, Client, ConnectOptions, DatasetName, FilePath};

const FILES: usize = 256;
const LENGTH: usize = 4_096;

fn open(server: &Server) -> Result<Client> {
    let servers = vec![server.address().to_owned()];
    Ok(Client::connect(ConnectOptions { servers, ..ConnectOptions::default() })?)
}

/// The count of reads of the chunk store.
fn reads(server: &Server) -> Result<f64> {
    sample(server.http(), "diesel_store_operation_seconds_count{operation=\"read\"}")
}

/// With a server that has not read the chunk yet.
#[test]
fn all_files_of_a_chunk_cost_a_single_read_of_the_store() -> Result<()> {
    let scene = Scene::new()?;
    let server = scene.start()?;
    let dice = Dice::new(1);
    let mut files = Vec::new();
    for number in 0..FILES {
        files.push((FilePath::new(format!("{}/{number}", number % 9))?, dice.bytes(LENGTH)));
    }
    let created = open(&server)?.create_dataset(&DatasetName::new("ds")?, ChunkShape::default())?;
    for (path, bytes) in &files {
        created.put(path, Attributes::default(), bytes)?;
    }
    let flushed = created.flush()?.check()?;
    ensure!(flushed.files == FILES as u64, "{flushed:?}");
    server.stop()?;

    let server = scene.start()?;
    let dataset = open(&server)?.dataset(&DatasetName::new("ds")?)?;
    for _ in 0..FILES {
        files.swap(dice.below(FILES), dice.below(FILES));
    }
    let paths: Vec<FilePath> = files.iter().map(|(path, _)| path.clone()).collect();
    let before = reads(&server)?;
    let got = dataset.get_many(&paths)?;
    let after = reads(&server)?;
    for ((path, bytes), got) in files.iter().zip(got) {
        ensure!(got? == bytes[..], "{path} has other bytes");
    }
    ensure!(after - before == 1.0, "{} reads of the store", after - before);
    Ok(())
}
