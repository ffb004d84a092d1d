//! A server counts the files of a dataset only for requests that ask for counts.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_meta::{FaultMeta, Kind, Memory, Stop};
use dl_runtime::SeededRandom;
use dl_runtime::fault::{CutPoint, Faults, Rates};
use dl_server::prepare;
use dl_tests::cluster::{Cluster, clock, parts};
use libdiesel::{Attributes, ChunkShape, Counts, DatasetName, DirPath, FilePath};

#[test]
fn only_requests_for_counts_make_a_server_count() -> Result<()> {
    let mut cluster = Cluster::new()?;
    let store = cluster.run(dl_store::open("memory:"))?;
    let faults = Faults::new(Arc::new(SeededRandom::new(1)));
    let meta = FaultMeta::new(Arc::new(Memory::new()), clock(), faults.clone(), CutPoint::new());
    let parts = parts(store, Arc::new(meta));
    cluster.run(prepare(&parts, Stop::Fresh))?;
    cluster.start(&parts, 1)?;
    let (client, name) = (cluster.client()?, DatasetName::new("pets")?);
    let refused = Rates {
        before: 1.0,
        answer_lost: 0.0,
        delay: 0.0,
        longest_delay: Duration::ZERO,
        error: Kind::Denied,
    };
    faults.set_rates("dataset", Some(refused));
    let path = FilePath::new(&b"a"[..])?;
    for round in 1..=2 {
        let dataset = client.create_dataset(&name, ChunkShape::default())?;
        dataset.put(&path, Attributes { mode: 0o644, mtime: 1 }, b"cat")?;
        let _ = dataset.flush()?.check()?;
        let opened = client.dataset(&name)?;
        ensure!(opened.info().objects == round, "{:?}", opened.info());
        ensure!(opened.info().counts == Counts::Unasked, "{:?}", opened.info());
        ensure!(opened.info() == &opened.refresh()?, "{:?}", opened.info());
        ensure!(opened.get(&path)? == b"cat"[..], "a file");
        ensure!(opened.list(&DirPath::ROOT, true, false)?.count() == 1, "a listing");
        ensure!(client.dataset_names()?.found == [name.clone()], "the names");
        ensure!(
            opened.count().is_err() && client.datasets().is_err(),
            "a count was answered without counting"
        );
    }
    faults.set_rates("dataset", None);
    let counts = Counts::Known { files: 1, bytes: 3 };
    ensure!(client.dataset(&name)?.count()?.counts == counts, "the counts of a dataset");
    ensure!(client.datasets()?.found.iter().all(|info| info.counts == counts), "of all");
    faults.set_rates("dataset", Some(refused));
    ensure!(client.delete_dataset(&name)?.removed == 2, "the objects of both puts");
    Ok(())
}
