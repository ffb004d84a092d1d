//! Recovery of metadata from the chunks, beside an insert of as many rows into the embedded
//! database.
//!
//! Must hold: both sides begin empty, and end once every row is readable.

use std::fs::remove_dir_all;
use std::path::Path;

use anyhow::{Result, ensure};
use dl_format::FilePath;
use libdiesel::admin::RecoverRequest;
use libdiesel::{Client, StatItem};
use redb::{Database, TableDefinition};

use super::tree::with_small;
use crate::measure::{Bar, Bench, in_turns, time};
use crate::setup::{Server, Settings, bytes, connect};

const FILES: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("files");
/// Approximate bytes of a file in the metadata.
const ROW_BYTES: usize = 64;
/// Rows of one commit.
const ROWS: usize = 20_000;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let (server, tree) = with_small(settings, "recover")?;
    drop(server);
    let data = settings.on_disk("recover");
    let mut paths: Vec<String> = tree.paths().collect();
    paths.sort_unstable();
    let names = [
        "recover, until the first lookup is answered",
        "redb: the same rows in order, durable commits of 20,000",
    ];
    let sides = in_turns(settings.runs(), names, |_| {
        remove_dir_all(data.join("meta"))?;
        let server = Server::start(&data)?;
        let client = connect(&server.address)?;
        let (recovered, recovering) = time(|| recover(&client, &paths[0]))?;
        ensure!(recovered == u64::from(tree.files()), "recovered {recovered} files");
        drop(server);
        let file = settings.on_disk("rows.redb");
        let (_, inserting) = time(|| insert(&file, &paths))?;
        std::fs::remove_file(&file)?;
        Ok([recovering, inserting].map(|seconds| paths.len() as f64 / seconds))
    })?;
    let settings = format!("{} files of 4 KiB, empty metadata, chunks warm", paths.len());
    Ok(vec![Bench::new("recover", settings, "files/s", sides, Bar::AtLeast(300e3))])
}

fn recover(client: &Client, path: &str) -> Result<u64> {
    let request = RecoverRequest { dataset: None, since: None };
    let recovered = client.recover(request, &mut |_| {})?;
    let dataset = client.dataset(&"small".parse()?)?;
    let found = dataset.stat(&FilePath::new(path.to_owned())?)?;
    ensure!(matches!(found, StatItem::File(_)), "{path} is not there again");
    Ok(recovered.iter().map(|dataset| dataset.files).sum())
}

fn insert(file: &Path, paths: &[String]) -> Result<()> {
    let database = Database::create(file)?;
    let row = bytes(ROW_BYTES);
    for paths in paths.chunks(ROWS) {
        let transaction = database.begin_write()?;
        let mut table = transaction.open_table(FILES)?;
        for path in paths {
            table.insert(path.as_bytes(), row.as_slice())?;
        }
        drop(table);
        transaction.commit()?;
    }
    Ok(())
}
