//! Crashes at each write of a purge, a power cut, and a purge by another server.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dl_meta::{EmbeddedOptions, FaultMeta, Memory, MetaStore, Stop, VolatileFile};
use dl_runtime::fault::{CutPoint, Faults};
use dl_runtime::{ManualClock, SeededRandom};
use dl_store::{Store, VolatileDisk};
use dl_tests::cluster::{Running, clock};
use dl_tests::dice::Dice;
use dl_tests::rounds;
use dl_tests::wire::Wire;

use super::scene::{
    GRACE, NAME, SETTLED, Writer, check, check_files, history, new_clock, purge_all, serve,
    small_chunks, stored,
};

/// The place of the metadata.
#[derive(Debug, Clone, Copy)]
enum Metadata {
    /// A separate store that survives the server.
    Survives,
    /// The server's disk: a power cut loses unsynced writes.
    OnDisk,
}

/// The surviving disks.
struct World {
    cut: CutPoint,
    disk: VolatileDisk,
    metadata: Metadata,
    memory: Arc<Memory>,
    file: VolatileFile,
    time: Arc<ManualClock>,
}

/// The dataset of a purge.
#[derive(Debug, Clone, Copy)]
enum Case {
    /// All work of a purge.
    Everything,
    /// Small chunks alone.
    Small,
}

/// A running server with its stores.
struct Life {
    server: Running,
    client: Wire,
    store: Arc<dyn Store>,
    meta: Arc<dyn MetaStore>,
}

impl World {
    fn new(metadata: Metadata) -> Self {
        let cut = CutPoint::new();
        Self {
            disk: VolatileDisk::new(cut.clone()),
            metadata,
            memory: Arc::new(Memory::new()),
            file: VolatileFile::new(cut.clone()),
            cut,
            time: new_clock(),
        }
    }

    async fn start(&self) -> Result<Life> {
        let (meta, stop): (Arc<dyn MetaStore>, Stop) = match self.metadata {
            Metadata::Survives => {
                let faults = Faults::new(Arc::new(SeededRandom::new(0)));
                let memory = Arc::<Memory>::clone(&self.memory);
                (Arc::new(FaultMeta::new(memory, clock(), faults, self.cut.clone())), Stop::Clean)
            }
            Metadata::OnDisk => {
                let options = EmbeddedOptions {
                    sync_interval: Duration::from_millis(3),
                    cache_bytes: 1 << 20,
                    ..EmbeddedOptions::default()
                };
                let (meta, stop) = self.file.open(options, clock()).await?;
                (Arc::new(meta), stop)
            }
        };
        let store = self.disk.open()?;
        let (server, client) = serve(&store, &meta, &self.time, stop).await?;
        Ok(Life { server, client, store, meta })
    }

    async fn stop(&self, life: Life) -> Result<()> {
        let Life { server, client, store, meta } = life;
        drop((client, store));
        server.stop().await?;
        meta.close().await?;
        drop(meta);
        self.wait_until_dead().await;
        Ok(())
    }

    async fn wait_until_dead(&self) {
        while self.file.is_open() {
            clock().sleep(Duration::from_millis(1)).await;
        }
    }

    async fn lose_power(&self, dice: &Dice) {
        self.wait_until_dead().await;
        self.disk.lose_power(|| dice.once_in(2));
        self.file.lose_power(dice.random());
        self.cut.disarm();
    }
}

/// A world after `purges` undisturbed purges: with one purge, the next purge removes objects and
/// drops tombstones.
async fn prepare(metadata: Metadata, case: Case, purges: u32) -> Result<(World, Writer)> {
    let world = World::new(metadata);
    let life = world.start().await?;
    let writer = match case {
        Case::Everything => history(&life.client, &world.time).await?,
        Case::Small => small_chunks(&life.client, &world.time).await?,
    };
    for _ in 0..purges {
        life.client.purge(NAME, GRACE).await?;
        world.time.advance(SETTLED);
    }
    world.stop(life).await?;
    Ok((world, writer))
}

/// The final state without a cut.
async fn undisturbed(metadata: Metadata, case: Case) -> Result<[u64; 3]> {
    let (world, writer) = prepare(metadata, case, 0).await?;
    let life = world.start().await?;
    purge_all(&life.client, &world.time).await?;
    check(&life.store, &life.client, &world.time, &writer).await?;
    stored(&life.store, writer.dataset).await
}

/// Cuts a purge at `point`; false if the purge ends before the cut.
async fn cut_at(
    point: u64,
    metadata: Metadata,
    case: Case,
    purges: u32,
    end: [u64; 3],
) -> Result<bool> {
    let dice = Dice::new(point);
    let (world, writer) = prepare(metadata, case, purges).await?;
    let life = world.start().await?;
    world.cut.arm(point);
    let purged = life.client.purge(NAME, GRACE).await;
    let was_cut = world.cut.is_cut();
    ensure!(was_cut || purged.is_ok(), "the purge ended with {purged:?}");
    drop(life);
    world.lose_power(&dice).await;

    let life = world.start().await?;
    check_files(&life.store, &life.client, &world.time, &writer).await.context("restarted")?;
    purge_all(&life.client, &world.time).await.context("purge again")?;
    check(&life.store, &life.client, &world.time, &writer).await.context("at the end")?;
    let found = life.client.verify(NAME, true).await?;
    ensure!(found.iter().all(|one| one.problem.contains("a file and a folder")), "{found:?}");
    let left = stored(&life.store, writer.dataset).await?;
    ensure!(left == end, "{left:?} is left, undisturbed {end:?}");
    world.stop(life).await?;
    Ok(was_cut)
}

async fn cut_everywhere(metadata: Metadata, case: Case, step: usize, least: u64) -> Result<()> {
    let end = undisturbed(metadata, case).await?;
    for purges in 0..3 {
        for point in (0..).step_by(step) {
            let was_cut = cut_at(point, metadata, case, purges, end).await;
            if !was_cut.with_context(|| format!("cut at point {point} of purge {purges}"))? {
                ensure!(
                    purges > 0 || point >= least,
                    "only {point} points: the purge does too little"
                );
                break;
            }
            if point > 10_000 {
                bail!("a purge has no end");
            }
        }
    }
    Ok(())
}

/// Keeps S-27, S-01 and S-02: I1, I2 and Rule 4.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_cut_at_any_write_loses_and_revives_nothing() -> Result<()> {
    cut_everywhere(Metadata::Survives, Case::Everything, 1, 60).await
}

/// Keeps S-27, S-01 and S-02: I1, I2, Rule 4 and Rule 10.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_cut_at_any_write_loses_nothing() -> Result<()> {
    cut_everywhere(Metadata::OnDisk, Case::Everything, rounds(3, 1), 60).await
}

/// Keeps S-27, S-01 and S-79: small chunks and their copies hold the same files at every moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_merge_of_small_chunks_cut_at_any_write_loses_nothing() -> Result<()> {
    cut_everywhere(Metadata::Survives, Case::Small, 1, 6).await?;
    cut_everywhere(Metadata::OnDisk, Case::Small, rounds(2, 1), 6).await
}
