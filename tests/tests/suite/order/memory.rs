//! Memory use of an epoch.

use std::fs;

use anyhow::{Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::program::{Server, memory};
use dl_tests::{rounds, tell};
use libdiesel::{
    Attributes, ChunkShape, Client, ConnectOptions, FilePath, ShuffleOptions, SnapshotCache,
};

use super::scene::name;

const MIB: usize = 1 << 20;
/// Chunks of 4 MiB in a group.
const GROUP: u32 = 8;

/// Keeps S-43 and S-75: a dataset of six times two groups (torture: thirty times), with a reader slower than
/// the server and with a faster reader.
#[test]
fn heavy_an_epoch_holds_two_groups_and_no_more() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Server::start(&folder.path().join("data"))?;
    let servers = vec![server.address().to_owned()];
    let client = Client::connect(ConnectOptions { servers, ..ConnectOptions::default() })?;
    let dataset = client.create_dataset(&name()?, ChunkShape::default())?;
    let two_groups = 2 * GROUP as usize * 4 * MIB;
    let data = Dice::new(1).bytes(16 << 10);
    let files = rounds(6, 30) * two_groups / data.len();
    for file in 0..files {
        let path = FilePath::new(format!("{:04}/{file:06}", file / 1_000))?;
        dataset.put(&path, Attributes::default(), &data)?;
    }
    let _ = dataset.flush()?.check()?;
    let cache = SnapshotCache::new(folder.path().join("cache"), 1 << 30);
    let reader = client.dataset(&name()?)?.with_snapshot(&cache)?;
    for is_slow in [false, true] {
        // Resets the peak, VmHWM.
        fs::write("/proc/self/clear_refs", "5")?;
        let before = memory("self", &["VmHWM"])?;
        let epoch = reader.shuffle(ShuffleOptions::new(1, 0, GROUP))?;
        let mut count = 0;
        while let Some(file) = epoch.next()? {
            ensure!(file.bytes? == data, "{}", file.path);
            count += 1;
            if is_slow && count % 500 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(30));
            }
        }
        ensure!(count == files, "{count} of {files} files");
        let held = (memory("self", &["VmHWM"])?.saturating_sub(before)) as usize;
        tell(format_args!("{} MiB for two groups of {}", held / MIB, two_groups / 2 / MIB));
        ensure!(held < two_groups + two_groups / 4, "{} MiB", held / MIB);
    }
    server.stop()?;
    Ok(())
}
