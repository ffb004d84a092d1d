//! Servers with shared metadata in a real Redis Cluster and a shared chunk folder.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::redis_testing::Cluster;
use dl_runtime::Deadline;
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::http::{becomes, becomes_well, get};
use dl_tests::program::{Process, Server, dl, dlcmd, run};

const PATIENCE: Duration = Duration::from_secs(100);

fn start(cluster: &Cluster, data: &Path) -> Result<Server> {
    Server::start_with(data, "127.0.0.1:0", &["--meta", &cluster.url()])
}

/// A dlcmd command with these servers.
fn to(servers: &[&Server]) -> Result<Command> {
    let addresses: Vec<_> = servers.iter().map(|server| server.address()).collect();
    let mut command = dlcmd()?;
    command.args(["--server", &addresses.join(",")]);
    Ok(command)
}

fn compare(server: &Server, dataset: &str, source: &Path, got: &Path) -> Result<()> {
    run(server.dlcmd()?.arg("get").arg(dataset).arg(got))?.code(0)?;
    folder::compare(source, got)?;
    Ok(fs::remove_dir_all(got)?)
}

/// Keeps S-01 and S-07: a server sees changes of another server, even after its death.
#[tokio::test(flavor = "multi_thread")]
async fn any_server_answers_after_the_death_of_another() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    let got = scene.path().join("got");
    folder::fill(&source, 3_000, 20_000, &Dice::new(1))?;
    let cluster = Cluster::start(3, 0).await;
    let (first, second) = (start(&cluster, &data)?, start(&cluster, &data)?);
    run(first.dlcmd()?.arg("put").arg(&source).arg("dl://one"))?.code(0)?;
    compare(&second, "dl://one", &source, &got)?;
    dl(&second, ["rm", "dl://one/000/000000.bin"])?.code(0)?;
    dl(&first, ["cat", "dl://one/000/000000.bin"])?.code(3)?;

    let mut put = to(&[&first, &second])?;
    put.arg("put").arg(&source).arg("dl://two").stdin(Stdio::null());
    let stored = || folder::bytes_under(&data.join("chunks"));
    let (before, deadline) = (stored()?, Deadline::after(&*clock(), PATIENCE));
    let mut put = Process::start(put.stdout(Stdio::null()).stderr(Stdio::null()))?;
    while stored()? < before + (1 << 20) {
        ensure!(!deadline.remaining(&*clock()).is_zero(), "put stores nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    first.kill()?;
    ensure!(put.wait(PATIENCE)? == 0, "the put failed");
    compare(&second, "dl://two", &source, &got)?;
    dl(&second, ["delete-dataset", "dl://two"])?.code(0)?;
    ensure!(dl(&second, ["datasets"])?.code(0)?.text() == "one\n", "datasets differ");
    second.stop()?;
    Ok(())
}

/// Keeps S-02 and S-05: the servers rebuild a lost shard; after a loss of the identity an
/// administrator recovers.
#[tokio::test(flavor = "multi_thread")]
async fn datasets_lost_by_redis_are_refused_until_rebuilt() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    let got = scene.path().join("got");
    folder::fill(&source, 1_000, 20_000, &Dice::new(1))?;
    let cluster = Cluster::start(3, 0).await;
    let (first, second) = (start(&cluster, &data)?, start(&cluster, &data)?);
    run(first.dlcmd()?.arg("put").arg(&source).arg("dl://all"))?.code(0)?;
    for forgetful in [0..1, 1..2, 0..3] {
        for redis in &cluster.servers()[forgetful.clone()] {
            redis.text(&["FLUSHALL"]).await;
        }
        // dlcmd waits for the rebuild by the servers.
        let has_identity = forgetful == (1..2);
        for server in [&first, &second] {
            let listed = run(server.dlcmd()?.args(["ls", "-R", "dl://all"]))?;
            if has_identity {
                ensure!(listed.code(0)?.text().lines().count() == 1_000, "not all are listed");
            } else {
                ensure!(listed.code == 1 && listed.stderr.contains("recover"), "{listed:?}");
            }
        }
        if !has_identity {
            dl(&second, ["recover", "--all"])?.code(0)?;
        }
        for server in [&first, &second] {
            compare(server, "dl://all", &source, &got)?;
        }
    }
    first.stop()?;
    second.stop()?;
    Ok(())
}

/// Keeps S-02 and S-39: lost rows without a sign of the loss.
#[tokio::test(flavor = "multi_thread")]
async fn a_requested_recovery_restores_unnoticed_losses() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    let got = scene.path().join("got");
    folder::fill(&source, 300, 2_000, &Dice::new(1))?;
    let cluster = Cluster::start(3, 0).await;
    let server = start(&cluster, &data)?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://all"))?.code(0)?;
    let remove_all = async |is_lost: &dyn Fn(&str) -> bool| -> Result<()> {
        let mut removed = 0;
        for redis in cluster.servers() {
            let all = "return table.concat(redis.call('KEYS', '*'), '\\n')";
            let keys = redis.text(&["EVAL", all, "0"]).await;
            for key in keys.lines().filter(|key| is_lost(key)) {
                redis.text(&["DEL", key]).await;
                removed += 1;
            }
        }
        ensure!(removed > 0, "there is no such key");
        Ok(())
    };
    let remove = async |lost: &str| remove_all(&|key| key.contains(lost)).await;
    for lost in ["}:d:", "}:x:"] {
        dl(&server, ["rm", "dl://all/000/000000.bin"])?;
        remove(lost).await?;
        let found = dl(&server, ["verify", "dl://all"])?.code(4)?;
        ensure!(found.text().contains("run `dlcmd recover dl://all`"), "{}", found.text());
        dl(&server, ["recover", "dl://all"])?.code(0)?;
        dl(&server, ["verify", "dl://all"])?.code(0)?;
    }
    // The row of a folder; its files are still found by path.
    let folder = scene.path().join("deep/a/b");
    folder::fill(&folder, 10, 100, &Dice::new(2))?;
    run(server.dlcmd()?.arg("put").arg(scene.path().join("deep")).arg("dl://deep"))?.code(0)?;
    dl(&server, ["verify", "dl://deep"])?.code(0)?;
    let id = dl(&server, ["--json", "stat", "dl://deep"])?.code(0)?;
    let id: serde_json::Value = serde_json::from_slice(&id.stdout)?;
    let id = id["id"].as_str().context("a dataset has an id")?.to_owned();
    remove_all(&|key| key.contains(&format!(":d:{id}:")) && key.ends_with(":0:")).await?;
    let found = dl(&server, ["verify", "dl://deep"])?.code(4)?;
    ensure!(found.text().contains("lists 0 files"), "{}", found.text());
    dl(&server, ["recover", "dl://deep"])?.code(0)?;
    dl(&server, ["verify", "dl://deep"])?.code(0)?;
    dl(&server, ["delete-dataset", "dl://deep"])?.code(0)?;
    // The rows of a log, regardless of its counts.
    remove("}:log:").await?;
    dl(&server, ["recover", "--all"])?.code(0)?;
    dl(&server, ["verify", "dl://all"])?.code(0)?;
    // The rows of all names.
    remove("}:names").await?;
    dl(&server, ["ls", "dl://all"])?.code(1)?;
    dl(&server, ["recover", "dl://all"])?.code(0)?;
    dl(&server, ["verify", "dl://all"])?.code(0)?;
    // All signs of the loss, and the identity of the chunk store.
    for lost in ["}:d:", "}:identity", "}:mark"] {
        remove(lost).await?;
    }
    dl(&server, ["recover", "--all"])?.code(0)?;
    dl(&server, ["verify", "dl://all"])?.code(0)?;
    fs::remove_file(source.join("000/000000.bin"))?;
    compare(&server, "dl://all", &source, &got)?;
    server.stop()?;
    Ok(())
}

/// Keeps S-32 and S-05: `/healthz` and the metrics report a loss, and the command that repairs it.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_of_metadata_is_reported_with_the_remedy() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source) = (scene.path().join("data"), scene.path().join("src"));
    folder::fill(&source, 200, 1_000, &Dice::new(1))?;
    let cluster = Cluster::start(3, 0).await;
    let flags = ["--meta", &cluster.url(), "--http", "127.0.0.1:0"];
    let server = Server::start_with(&data, "127.0.0.1:0", &flags)?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://all"))?.code(0)?;
    let is_counted = || -> Result<bool> {
        let (_, metrics) = get(server.http(), "/metrics")?;
        Ok(metrics.contains("diesel_meta_losses{extent=\"all\"} 1"))
    };
    let is_lost = |status, text: &str| status == 503 && text.contains("run `dlcmd recover --all`");
    becomes_well(server.http())?;
    ensure!(!is_counted()?, "the metrics report a loss from the start");
    for forgetful in [0..1, 0..3] {
        for redis in &cluster.servers()[forgetful] {
            redis.text(&["FLUSHALL"]).await;
        }
        becomes(server.http(), is_lost)?;
        ensure!(is_counted()?, "the metrics report no loss");
        dl(&server, ["recover", "--all"])?.code(0)?;
        becomes_well(server.http())?;
        ensure!(!is_counted()?, "the metrics still report the loss");
    }
    // An alert stays while the state is unknown.
    for redis in cluster.servers() {
        redis.text(&["FLUSHALL"]).await;
    }
    becomes(server.http(), is_lost)?;
    ensure!(is_counted()?, "the metrics report no loss");
    cluster.servers().iter().for_each(|redis| redis.kill());
    let names_one = |text: &str| {
        cluster.servers().iter().any(|redis| text.contains(&format!("127.0.0.1:{}", redis.port())))
    };
    becomes(server.http(), |status, text| {
        status == 503 && !is_lost(status, text) && names_one(text)
    })?;
    ensure!(is_counted()?, "the metrics no longer report the loss");
    server.stop()?;
    Ok(())
}

/// Keeps S-02 and S-05: each node in turn is emptied, whatever its part of the dataset.
#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_with_partial_metadata_is_not_whole() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (data, source, got) =
        (scene.path().join("data"), scene.path().join("src"), scene.path().join("got"));
    folder::fill(&source, 200, 1_000, &Dice::new(1))?;
    let cluster = Cluster::start(3, 0).await;
    let server = Server::start_with(&data, "127.0.0.1:0", &["--meta", &cluster.url()])?;
    for name in ["dl://ds", "dl://other"] {
        run(server.dlcmd()?.arg("put").arg(&source).arg(name))?.code(0)?;
    }
    let name = data.join("chunks/names/ds/00000001");
    let kept = fs::read(&name)?;
    let mut refused = 0;
    for redis in cluster.servers() {
        fs::remove_file(&name)?;
        redis.text(&["FLUSHALL"]).await;
        let first = dl(&server, ["recover", "--all"])?;
        compare(&server, "dl://other", &source, &got)?;
        // Without a noticed loss, the name returns at once.
        if first.code != 0 {
            refused += 1;
            ensure!(first.code == 4, "{first:?}");
            if first.stderr.contains("put its name back") {
                fs::write(&name, &kept)?;
            }
            let refused = dl(&server, ["stat", "dl://ds/none"])?.code(1)?;
            ensure!(refused.stderr.contains("dlcmd recover"), "{refused:?}");
            dl(&server, ["recover", "--all"])?.code(0)?;
        }
        ensure!(fs::read(&name)? == kept, "its name stands for something else");
        dl(&server, ["verify", "dl://ds"])?.code(0)?;
        compare(&server, "dl://ds", &source, &got)?;
    }
    ensure!(refused > 0, "no loss was ever seen");
    server.stop()?;
    Ok(())
}
