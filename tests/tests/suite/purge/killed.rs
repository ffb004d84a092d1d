//! A real dlserver on Redis and a bucket is killed at each write of a purge; another server purges
//! again.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::{MetaStore, Stop, redis_testing};
use dl_runtime::{Deadline, ManualClock, SeededRandom};
use dl_store::Store;
use dl_tests::cluster::clock;
use dl_tests::point::Side;
use dl_tests::program::{Process, Server, dl};
use dl_tests::proxy::Proxy;
use dl_tests::relay::Relay;
use dl_tests::rounds;
use dl_tests::s3::{Kind, S3, settings};
use dl_tests::wire::Wire;

use super::scene::{
    GRACE, HOUR, NAME, SETTLED, Writer, check, check_files, history, purge_all, serve, stored,
};

/// The time limit for quick steps.
const MOMENT: Duration = Duration::from_secs(60);

/// Redis, a bucket, and the proxies in front of them.
struct World {
    redis: redis_testing::Server,
    bucket: S3,
    proxy: Proxy,
    relay: Relay,
    data: tempfile::TempDir,
}

/// The data of a round.
struct Stage {
    url: String,
    store: Arc<dyn Store>,
    meta: Arc<dyn MetaStore>,
    writer: Writer,
}

impl World {
    async fn new() -> Result<Self> {
        let redis = redis_testing::Server::start(&[]).await;
        let bucket = S3::start(Kind::S3sFs)?;
        let proxy = Proxy::start(bucket.address(), Arc::new(SeededRandom::new(0)))?;
        let relay = Relay::start(redis.port(), proxy.point().clone())?;
        Ok(Self { redis, bucket, proxy, relay, data: tempfile::tempdir()? })
    }

    /// A dataset written two days ago and purged `purges` times, each time after its changes
    /// settled.
    async fn stage(&self, purges: u32) -> Result<Stage> {
        self.redis.ask(&["FLUSHALL"]).await;
        let url = self.bucket.fresh();
        let store = dl_store::open_with(&url, &settings(self.bucket.address())).await?;
        let (meta, _) = dl_meta::open(&self.redis.url(), clock()).await?;
        let time = self.time_before(48 * HOUR + purges * SETTLED)?;
        let (server, client) = serve(&store, &meta, &time, Stop::Clean).await?;
        let writer = history(&client, &time).await?;
        for _ in 0..purges {
            client.purge(NAME, GRACE).await?;
            time.advance(SETTLED);
        }
        drop(client);
        server.stop().await?;
        Ok(Stage { url, store, meta, writer })
    }

    fn time_before(&self, age: Duration) -> Result<Arc<ManualClock>> {
        let then = clock().now().checked_sub(age).context("the clock is set")?;
        Ok(Arc::new(ManualClock::new(then)))
    }

    /// A server with counted writes.
    fn start(&self, stage: &Stage) -> Result<Server> {
        let flags = ["--meta", &self.relay.url(), "--store", &stage.url];
        let variables = settings(self.proxy.address());
        Server::start_among(self.data.path(), "127.0.0.1:0", &flags, &variables)
    }

    /// Kills a server at a write of its purge; false if the purge ends before.
    fn kill_at(&self, stage: &Stage, number: u64, side: Side) -> Result<bool> {
        let mut server = self.start(stage)?;
        let point = self.proxy.point();
        point.arm(number, side, server.process().id());
        let mut purge = server.dlcmd()?;
        purge.args(["purge", "--grace", "15m", "dl://ds"]);
        purge.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut purge = Process::start(&mut purge)?;
        let deadline = Deadline::after(&*clock(), MOMENT);
        while !point.is_over() {
            if let Some(code) = purge.ended()? {
                ensure!(code == 0, "an undisturbed purge ended with {code}");
                break;
            }
            ensure!(!deadline.remaining(&*clock()).is_zero(), "neither killed nor done");
            std::thread::sleep(Duration::from_millis(2));
        }
        let was_killed = point.is_over();
        purge.kill()?;
        server.kill()?;
        point.disarm();
        Ok(was_killed)
    }

    /// Another server finds all files, purges, and verifies the dataset.
    async fn go_on(&self, stage: &Stage) -> Result<()> {
        let server = self.start(stage)?;
        let client = Wire::connect(server.address().parse()?).await?;
        let files = client.files(stage.writer.dataset).await?;
        ensure!(files == stage.writer.files, "other files after the restart");
        dl(&server, ["purge", "--grace", "15m", "dl://ds"])?.code(0)?;
        let files = client.files(stage.writer.dataset).await?;
        ensure!(files == stage.writer.files, "other files after the second purge");
        let deadline = Deadline::after(&*clock(), MOMENT);
        let told = loop {
            let told = dl(&server, ["verify", "--checksums", "dl://ds"])?.code(4)?.text();
            // Rows of an interrupted commit expire after two seconds.
            if !told.contains("was being written to") {
                break told;
            }
            ensure!(!deadline.remaining(&*clock()).is_zero(), "{told}");
            clock().sleep(Duration::from_millis(200)).await;
        };
        // The finding of the history's file and folder.
        ensure!(told.contains(" 1 finding") && told.contains("a file and a folder"), "{told}");
        server.stop()?;
        Ok(())
    }

    /// The final state after hours of undisturbed purges.
    async fn end(&self, stage: &Stage) -> Result<[u64; 3]> {
        let time = self.time_before(Duration::ZERO)?;
        time.advance(2 * SETTLED);
        let (server, client) = serve(&stage.store, &stage.meta, &time, Stop::Clean).await?;
        check_files(&stage.store, &client, &time, &stage.writer).await?;
        purge_all(&client, &time).await?;
        check(&stage.store, &client, &time, &stage.writer).await?;
        let left = stored(&stage.store, stage.writer.dataset).await?;
        drop(client);
        server.stop().await?;
        Ok(left)
    }

    async fn kill_everywhere(&self, purges: u32, step: usize, least: u64) -> Result<()> {
        let stage = self.stage(purges).await?;
        let end = self.end(&stage).await.context("undisturbed")?;
        // The state after n writes equals the state before write n + 1, so the sides alternate. An
        // odd step meets even and odd numbers.
        let sides = [Side::Before, Side::After].into_iter().cycle();
        for (done, side) in (0_u64..).step_by(step).zip(sides) {
            let number = match side {
                Side::Before => done + 1,
                Side::After => done,
            };
            let killed = self.kill_and_go_on(purges, number, side, end).await;
            if !killed.with_context(|| format!("{side:?} write {number}"))? {
                ensure!(number > least, "only {number} writes: the purge does too little");
                break;
            }
        }
        Ok(())
    }

    async fn kill_and_go_on(
        &self,
        purges: u32,
        number: u64,
        side: Side,
        end: [u64; 3],
    ) -> Result<bool> {
        let stage = self.stage(purges).await?;
        let was_killed = self.kill_at(&stage, number, side)?;
        self.go_on(&stage).await?;
        let left = self.end(&stage).await.context("at the end")?;
        ensure!(left == end, "{left:?} is left, undisturbed {end:?}");
        Ok(was_killed)
    }
}

/// Keeps S-27, S-01 and S-02: I1, I2 and Rule 4; the first purge moves live files.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_write_of_a_first_purge_loses_nothing() -> Result<()> {
    World::new().await?.kill_everywhere(0, rounds(5, 1), 20).await
}

/// Keeps S-27, S-01 and S-02: I1, I2 and Rule 4; the second purge removes moved chunks.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_write_of_a_second_purge_loses_nothing() -> Result<()> {
    World::new().await?.kill_everywhere(1, rounds(5, 1), 20).await
}
