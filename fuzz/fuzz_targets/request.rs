//! Feeds bytes to [`dl_fuse::fuzzing::Requests`], as requests of the kernel to the mount of a small
//! dataset.
//!
//! Must hold: any bytes get an answer without a panic, at most as long as the request asks for.
#![no_main]

use std::sync::{Arc, LazyLock, Mutex};

use dl_fuse::fuzzing::Requests;
use libdiesel::{Client, ConnectOptions, DatasetName};

const SNAPSHOT: &[u8] = include_bytes!("../../format/golden/v1/snapshot-many.bin");

static REQUESTS: LazyLock<Mutex<Requests>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder for the snapshot");
    let file = folder.path().join("snapshot");
    std::fs::write(&file, SNAPSHOT).expect("the snapshot is written");
    let client = Client::unconnected(ConnectOptions::default());
    let name = DatasetName::new("ds").expect("a legal name");
    let dataset = client.by_snapshot(&name, &file, None).expect("a golden file is good");
    let snapshot = dataset.snapshot().expect("it was opened by a snapshot");
    Mutex::new(Requests::new(Arc::clone(snapshot)))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    REQUESTS.lock().expect("a panic ends the target").answer(bytes);
});
