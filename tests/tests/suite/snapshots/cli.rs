//! dlcmd with snapshots.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_tests::cluster::clock;
use dl_tests::folder;
use dl_tests::program::{Ended, dlcmd, run};
use libdiesel::{Client, ConnectOptions, Partition, ShuffleOptions, SnapshotCache};

use super::Workplace;

impl Workplace {
    /// A dataset `ds` of 40 files in three folders.
    fn with_40_files() -> Result<Self> {
        let scene = Self::start()?;
        for number in 0..40 {
            let path = format!("src/d{}/f{number}", number % 3);
            folder::write(scene.path(), &path, format!("file {number}"))?;
        }
        scene.dl(&["put", "src", "dl://ds"])?.code(0)?;
        Ok(scene)
    }

    /// Runs dlcmd with a snapshot whose age a server should confirm within a second. A busy server
    /// may be late, so the command is repeated.
    fn compared(&self, words: &[&str]) -> Result<Ended> {
        let mut tries = 0;
        loop {
            let ended = self.dl(words)?;
            tries += 1;
            if tries == 5 || !ended.stderr.contains("no server says") {
                return Ok(ended);
            }
        }
    }
}

#[test]
fn a_saved_snapshot_answers_as_the_server_does() -> Result<()> {
    let scene = Workplace::with_40_files()?;
    let saved = scene.dl(&["snapshot", "save", "dl://ds", "ds.snapshot"])?.code(0)?;
    ensure!(saved.text().contains("40 files"), "{saved:?}");
    let info = scene.dl(&["snapshot", "info", "ds.snapshot"])?.code(0)?.text();
    ensure!(info.contains("files:      40\n") && info.contains("type:       snapshot"), "{info}");
    let json = scene.dl(&["snapshot", "info", "ds.snapshot", "--json"])?.code(0)?.text();
    ensure!(json.contains(r#""type":"snapshot","schema":1"#), "{json}");
    for words in [
        &["ls", "dl://ds"][..],
        &["ls", "-lR", "dl://ds/d1"],
        &["ls", "-R", "--json", "dl://ds"],
        &["stat", "dl://ds/d0/f0"],
        &["stat", "dl://ds/d0"],
        &["du", "dl://ds"],
        &["du", "dl://ds/d2/"],
        &["cat", "dl://ds/d1/f1"],
    ] {
        let asked = scene.dl(words)?.code(0)?;
        let answered =
            scene.compared(&[words, &["--snapshot", "ds.snapshot"]].concat())?.code(0)?;
        ensure!(answered.text() == asked.text(), "{words:?}: {answered:?}");
        ensure!(answered.stderr.is_empty(), "{answered:?}");
        let mut alone = dlcmd()?;
        alone.args(["--server", "127.0.0.1:1", "--snapshot", "ds.snapshot"]);
        if words[0] == "cat" {
            let began = clock().monotonic();
            let refused = scene.command(alone, words)?.code(5)?;
            let took = clock().monotonic().saturating_sub(began);
            ensure!(took < Duration::from_secs(10), "{took:?} for {refused:?}");
            continue;
        }
        // Commands without file bytes need no server.
        let answered = scene.command(alone, words)?.code(0)?;
        ensure!(answered.text() == asked.text(), "{words:?}: {answered:?}");
        ensure!(answered.stderr.contains("is not known"), "{answered:?}");
    }
    for (words, servers_only) in [
        (&["stat", "dl://ds"][..], &["created: ", "objects: ", "small chunks: "][..]),
        (&["stat", "dl://ds", "--json"], &[r#""created":"#, r#""objects":"#, r#""small_chunk"#]),
    ] {
        let fields = |text: String| -> Vec<String> {
            let fields = text
                .split(['\n', ','])
                .filter(|field| servers_only.iter().all(|name| !field.starts_with(name)));
            fields.map(str::to_owned).collect()
        };
        let asked = fields(scene.dl(words)?.code(0)?.text());
        let answered = scene.dl(&[words, &["--snapshot", "ds.snapshot"]].concat())?.code(0)?.text();
        ensure!(fields(answered.clone()) == asked, "{answered} instead of {asked:?}");
        ensure!(servers_only.iter().all(|name| !answered.contains(name)), "{answered}");
    }
    scene.dl(&["get", "--snapshot", "ds.snapshot", "dl://ds", "got"])?.code(0)?;
    folder::compare(&scene.path().join("src"), &scene.path().join("got"))?;
    for words in [&["stat", "dl://ds/none"][..], &["ls", "dl://ds/none"], &["cat", "dl://ds/none"]]
    {
        scene.dl(&[words, &["--snapshot", "ds.snapshot"]].concat())?.code(3)?;
    }
    Ok(())
}

/// Keeps S-12.
#[test]
fn a_stale_snapshot_is_noted_and_a_foreign_snapshot_refused() -> Result<()> {
    let scene = Workplace::with_40_files()?;
    scene.dl(&["snapshot", "save", "dl://ds", "ds.snapshot"])?.code(0)?;
    scene.dl(&["rm", "dl://ds/d0/f0"])?.code(0)?;
    let stale = scene.compared(&["ls", "dl://ds/d0", "--snapshot", "ds.snapshot"])?.code(0)?;
    ensure!(stale.text().lines().any(|line| line == "f0"), "{stale:?}");
    ensure!(stale.stderr.contains("stale"), "{stale:?}");
    let quiet = scene.dl(&["-q", "ls", "dl://ds/d0", "--snapshot", "ds.snapshot"])?.code(0)?;
    ensure!(quiet.stderr.is_empty(), "{quiet:?}");

    scene.dl(&["put", "src", "dl://other"])?.code(0)?;
    let other = scene.compared(&["ls", "dl://other", "--snapshot", "ds.snapshot"])?.code(1)?;
    ensure!(other.stderr.contains("another dataset"), "{other:?}");
    let bytes = fs::read(scene.path().join("ds.snapshot"))?;
    for (bytes, why) in [(&bytes[..1_000], "snapshot length"), (&b"text"[..], "no snapshot")] {
        fs::write(scene.path().join("bad"), bytes)?;
        for words in [&["ls", "dl://ds", "--snapshot", "bad"][..], &["snapshot", "info", "bad"]] {
            let refused = scene.dl(words)?.code(1)?;
            ensure!(refused.stderr.contains("bad"), "{refused:?}");
            let is_told = refused.stderr.contains(why) || why == "no snapshot";
            ensure!(is_told, "{refused:?}");
        }
    }
    scene.dl(&["ls", "dl://ds", "--snapshot", "none"])?.code(1)?;
    scene.dl(&["rm", "dl://ds/d0/f3", "--snapshot", "ds.snapshot"])?.code(2)?;
    Ok(())
}

#[test]
fn shuffle_prints_each_file_once_with_any_cache() -> Result<()> {
    let scene = Workplace::with_40_files()?;
    let lines = |text: String| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    for folder in ["dl://ds", "dl://ds/d1"] {
        let order = scene.dl(&["shuffle", folder])?.code(0)?.text();
        let listed = scene.dl(&["ls", "-R", folder])?.code(0)?.text();
        ensure!(order.lines().count() == listed.lines().count(), "{order}");
        ensure!(lines(order) == lines(listed), "{folder}");
    }
    scene.dl(&["snapshot", "save", "dl://ds", "ds.snapshot"])?.code(0)?;
    let newest = scene.dl(&["shuffle", "dl://ds", "-0"])?.code(0)?.text();
    let mut alone = dlcmd()?;
    alone.args(["--server", "127.0.0.1:1", "--snapshot", "ds.snapshot"]);
    let saved = scene.command(alone, &["shuffle", "-0", "dl://ds"])?.code(0)?.text();
    ensure!(newest == saved && newest.ends_with('\0'), "{newest}");
    scene.dl(&["shuffle", "dl://ds/none"])?.code(3)?;
    scene.dl(&["shuffle", "dl://none"])?.code(3)?;
    scene.dl(&["shuffle", "dl://ds", "--group-size", "0"])?.code(2)?;
    let kept = fs::read_dir(scene.path().join("cache/diesel/snapshots"))?;
    ensure!(kept.count() > 0, "in the cache of the user");
    fs::write(scene.path().join("file"), b"in the way")?;
    let mut forbidden = scene.server.dlcmd()?;
    forbidden.args(["shuffle", "dl://ds", "-0"]).env("XDG_CACHE_HOME", scene.path().join("file"));
    let forbidden = run(&mut forbidden)?.code(0)?;
    ensure!(forbidden.text() == newest && forbidden.stderr.contains("memory"), "{forbidden:?}");
    // As under a service manager: without a home folder.
    for (name, value) in [("PATH", "/usr/bin"), ("HOME", "relative")] {
        let mut bare = scene.server.dlcmd()?;
        bare.env_clear().env(name, value);
        bare.args(["--server", scene.server.address(), "shuffle", "dl://ds", "-0"]);
        let bare = run(&mut bare)?.code(0)?;
        ensure!(bare.text() == newest && bare.stderr.contains("XDG_CACHE_HOME"), "{bare:?}");
        ensure!(bare.stderr.contains("in memory"), "{bare:?}");
    }
    Ok(())
}

#[test]
fn shuffle_continues_at_a_token_with_other_ranks() -> Result<()> {
    let scene = Workplace::with_40_files()?;
    let shuffle = |words: &[&str]| scene.dl(&[&["shuffle", "dl://ds"], words].concat());
    let alone = shuffle(&["--group-size", "3"])?.code(0)?.text();
    let alone: Vec<&str> = alone.lines().collect();
    // Four ranks have read six files each; two ranks continue.
    let dealt = ["--group-size", "3", "--global", "--world", "4", "--token", "6"];
    let token = shuffle(&dealt)?.code(0)?.text();
    let token = token.trim_end();
    for rank in ["0", "1"] {
        let words = ["--global", "--world", "2", "--rank", rank, "--resume", token];
        let rest = shuffle(&words)?.code(0)?.text();
        let expected = alone[24..].iter().skip(rank.parse()?).step_by(2);
        ensure!(rest.lines().eq(expected.copied()), "{rest}");
    }
    let token = token.replace("version=", "version=x");
    let other = shuffle(&["--resume", &token])?.code(2)?;
    ensure!(other.stderr.contains("has changed since"), "{}", other.stderr);
    for wrong in [["--world", "0"], ["--rank", "1"], ["--nodes", "2"], ["--resume", "order"]] {
        shuffle(&wrong)?.code(2)?;
    }
    let one = scene.dl(&["shuffle", &format!("dl://ds/{}", alone[0])])?.code(0)?.text();
    ensure!(one == format!("{}\n", alone[0]), "{one}");
    Ok(())
}

#[test]
fn shuffle_prints_the_files_and_tokens_of_libdiesel() -> Result<()> {
    let scene = Workplace::with_40_files()?;
    let servers = vec![scene.server.address().to_owned()];
    let client = Client::connect(ConnectOptions { servers, ..ConnectOptions::default() })?;
    let cache = SnapshotCache::new(scene.path().join("own"), 1 << 30);
    let dataset = client.dataset(&"ds".parse()?)?.with_snapshot(&cache)?;
    let printed = |words: &str| -> Result<String> {
        let words = format!("shuffle dl://ds --seed 5 --epoch 2 --group-size 3 {words}");
        Ok(scene.dl(&words.split(' ').collect::<Vec<_>>())?.code(0)?.text())
    };
    let (global, local) = (Partition::Global, Partition::Local { nodes: 2 });
    for (rank, world, partition, words) in [
        (0, 1, global, "--global"),
        (2, 4, global, "--global"),
        (0, 4, local, "--nodes 2"),
        (3, 4, local, "--nodes 2"),
    ] {
        let mut options = ShuffleOptions::new(5, 2, 3).of_rank(rank, world);
        options.order.partition = partition;
        let epoch = dataset.shuffle(options)?;
        let mut read = String::new();
        for number in epoch.cursor()? {
            read.push_str(&format!("{}\n", epoch.snapshot().path(number)?));
        }
        let words = format!("--world {world} {words}");
        ensure!(printed(&format!("{words} --rank {rank}"))? == read, "{words}");
        let token = printed(&format!("{words} --token 4"))?;
        ensure!(token.trim_end() == epoch.token(4).to_string(), "{words}: {token}");
    }
    Ok(())
}
