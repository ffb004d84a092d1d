//! Damage to small but essential objects: the identity and the names.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Server, dl, run, server_command};

struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    /// The data of a stopped server, with datasets of equal files.
    fn new(datasets: &[&str]) -> Result<Self> {
        let scene = Self { folder: tempfile::tempdir()? };
        folder::fill(&scene.path("src"), 20, 2_000, &Dice::new(1))?;
        let server = scene.start()?;
        for name in datasets {
            let dataset = format!("dl://{name}");
            run(server.dlcmd()?.arg("put").arg(scene.path("src")).arg(dataset))?.code(0)?;
        }
        server.stop()?;
        Ok(scene)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&self) -> Result<Server> {
        Server::start(&self.path("data"))
    }

    /// Changes a byte of a stored file.
    fn damage(&self, path: &str) -> Result<()> {
        let source = fs::read(self.path("src").join(path))?;
        let begin = source.get(..source.len().min(64)).context("the file is empty")?;
        self.damage_at(begin).map(drop)
    }

    /// Changes the first of these bytes in the object that holds them; returns the object.
    fn damage_at(&self, begin: &[u8]) -> Result<PathBuf> {
        let chunks = self.path("data/chunks");
        for name in folder::read(&chunks)?.into_keys() {
            let object = chunks.join(OsStr::from_bytes(&name));
            let mut bytes = fs::read(&object)?;
            if let Some(at) = bytes.windows(begin.len()).position(|window| window == begin) {
                *bytes.get_mut(at).context("the position was found")? ^= 1;
                fs::write(&object, bytes)?;
                return Ok(object);
            }
        }
        anyhow::bail!("no object has these bytes")
    }

    /// Runs the commands printed by verify in order; returns its findings.
    fn obey(&self, server: &Server, verify: &[&str]) -> Result<String> {
        let found = dl(server, verify)?.code(4)?.text();
        let mut last = "";
        for command in found.split('`').skip(1).step_by(2) {
            if command == last {
                continue;
            }
            last = command;
            let mut dlcmd = server.dlcmd()?;
            for word in command.split(' ').skip(1) {
                match word {
                    "SRC" => dlcmd.arg(self.path("src")),
                    word => dlcmd.arg(word),
                };
            }
            run(&mut dlcmd)?.code(0).with_context(|| command.to_owned())?;
        }
        Ok(found)
    }

    fn compare(&self, server: &Server, dataset: &str) -> Result<()> {
        let got = self.path("got");
        run(server.dlcmd()?.arg("get").arg(format!("dl://{dataset}")).arg(&got))?.code(0)?;
        folder::compare(&self.path("src"), &got)?;
        Ok(fs::remove_dir_all(got)?)
    }
}

fn identity(data: &Path) -> PathBuf {
    data.join("chunks/identity")
}

/// Keeps S-05: Rule 6.
#[test]
fn a_lost_identity_is_restored_from_the_metadata() -> Result<()> {
    let scene = Scene::new(&["a", "b"])?;
    let object = identity(&scene.path("data"));
    let before = fs::read(&object)?;
    fs::remove_file(&object)?;
    let server = scene.start()?;
    for dataset in ["a", "b"] {
        scene.compare(&server, dataset)?;
    }
    let log = server.stop()?;
    ensure!(log.contains("identity"), "the log does not mention the identity: {log}");
    ensure!(fs::read(&object)? == before, "the identity of the store changed");
    Ok(())
}

/// Keeps S-05 and S-14: each start demands the removal of damaged objects; the chunks identify the
/// store.
#[test]
fn a_damaged_identity_and_name_cost_no_indexed_file() -> Result<()> {
    let scene = Scene::new(&["a", "k"])?;
    let data = scene.path("data");
    let object = identity(&data);
    let (before, name) = (fs::read(&object)?, data.join("chunks/names/k/00000001"));
    fs::write(&object, "no identity")?;
    fs::write(&name, "no name record")?;
    let mut server = server_command()?;
    server.args(["--listen", "127.0.0.1:0", "--data"]).arg(&data);
    let refused = run(&mut server)?.code(1)?;
    ensure!(refused.stderr.contains("`identity` is damaged: remove it"), "{}", refused.stderr);
    fs::remove_file(&object)?;
    let server = scene.start()?;
    ensure!(fs::read(&object)? == before, "the identity of the store changed");
    for dataset in ["a", "k"] {
        scene.compare(&server, dataset)?;
    }
    server.stop()?;
    fs::remove_file(&name)?;
    fs::remove_file(&object)?;
    let server = scene.start()?;
    dl(&server, ["recover", "dl://k"])?.code(0)?;
    dl(&server, ["verify", "dl://k"])?.code(0)?;
    for dataset in ["a", "k"] {
        scene.compare(&server, dataset)?;
    }
    Ok(())
}

/// Keeps S-05: Rule 6.
#[test]
fn a_store_without_identity_is_not_taken_for_empty() -> Result<()> {
    let scene = Scene::new(&["a"])?;
    fs::remove_file(identity(&scene.path("data")))?;
    fs::remove_dir_all(scene.path("data/meta"))?;
    for _ in 0..2 {
        let server = scene.start()?;
        for arguments in [&["ls", "dl://a"][..], &["datasets"]] {
            let refused = dl(&server, arguments)?.code(1)?;
            ensure!(refused.stderr.contains("dlcmd recover"), "{}", refused.stderr);
        }
        server.stop()?;
    }
    let server = scene.start()?;
    dl(&server, ["recover", "--all"])?.code(0)?;
    scene.compare(&server, "a")?;
    server.stop()?;
    scene.compare(&scene.start()?, "a")
}

/// Keeps S-05: Rule 6.
#[test]
fn metadata_of_another_store_are_refused() -> Result<()> {
    let (one, other) = (Scene::new(&["a"])?, Scene::new(&["a"])?);
    let object = identity(&one.path("data"));
    fs::remove_file(&object)?;
    let mut server = server_command()?;
    server.args(["--listen", "127.0.0.1:0", "--data"]).arg(other.path("data"));
    server.arg("--store").arg(one.path("data/chunks"));
    let refused = run(&mut server)?.code(1)?;
    ensure!(refused.stderr.contains("identity"), "{}", refused.stderr);
    ensure!(!refused.stderr.contains("is empty"), "not true: {}", refused.stderr);
    ensure!(!object.exists(), "the metadata were bound to this store");
    one.compare(&one.start()?, "a")
}

/// Keeps S-14.
#[test]
fn a_damaged_name_costs_its_dataset_and_no_other() -> Result<()> {
    let scene = Scene::new(&["a", "k", "z"])?;
    let data = scene.path("data");
    let whole = fs::read(data.join("chunks/names/k/00000001"))?;
    for wiped in [false, true] {
        fs::write(data.join("chunks/names/k/00000001"), "no name record")?;
        if wiped {
            fs::remove_dir_all(data.join("meta"))?;
        } else {
            // A kill, so that the next start rolls forward.
            scene.start()?.kill()?;
        }
        let server = scene.start()?;
        let partly = dl(&server, ["recover", "--all"])?.code(4)?;
        ensure!(partly.stderr.contains('k'), "{}", partly.stderr);
        for dataset in ["a", "z"] {
            scene.compare(&server, dataset)?;
        }
        let refused = dl(&server, ["ls", "dl://k"])?.code(1)?;
        ensure!(refused.stderr.contains("dataset k"), "{}", refused.stderr);
        for words in [&["datasets"][..], &["--json", "datasets"]] {
            // The metadata's remaining rows must be reported.
            let is_partly = wiped || words.len() > 1;
            let listed = dl(&server, words)?.code(if is_partly { 4 } else { 0 })?;
            let is_listed = |name: &str| listed.text().lines().any(|line| line.contains(name));
            ensure!(is_listed("a") && is_listed("z"), "{listed:?}");
            ensure!(listed.stderr.contains("put it back from a copy") == wiped, "{listed:?}");
        }
        let refused = run(server.dlcmd()?.arg("put").arg(scene.path("src")).arg("dl://k"))?;
        ensure!(refused.code == 1, "wiped {wiped}: {refused:?}");
        server.stop()?;

        fs::write(data.join("chunks/names/k/00000001"), &whole)?;
        let server = scene.start()?;
        dl(&server, ["recover", "--all"])?.code(0)?;
        scene.compare(&server, "k")?;
        server.stop()?;
    }
    Ok(())
}

/// Keeps S-14, S-29 and S-63: no rule decides between the copies, so both are reported and not
/// retried.
#[test]
fn a_copied_name_is_reported_and_costs_no_other_dataset() -> Result<()> {
    let scene = Scene::new(&["a", "b", "c"])?;
    let (data, names) = (scene.path("data"), scene.path("data/chunks/names"));
    let of_a = fs::read(names.join("a/00000001"))?;
    fs::create_dir(names.join("zz"))?;
    for (copy, original, mended) in [("zz", "b", None), ("a", "b", Some(&of_a))] {
        let copied = names.join(copy).join("00000001");
        fs::copy(names.join(original).join("00000001"), &copied)?;
        let server = scene.start()?;
        let told = dl(&server, ["recover", "--all"])?.code(4)?;
        let is_told = |name| {
            let object = format!("names/{name}/00000001 in the chunk store stands for the same");
            told.stderr.contains(&object)
        };
        ensure!(is_told(copy) && is_told(original), "{told:?}");
        // The metadata know the three names.
        for dataset in ["a", "b", "c"] {
            scene.compare(&server, dataset)?;
        }
        let found =
            dl(&server, ["verify", "dl://a"])?.code(if mended.is_some() { 4 } else { 0 })?;
        ensure!(
            mended.is_none() || found.text().contains("another dataset than the metadata has"),
            "{found:?}"
        );
        server.stop()?;

        fs::remove_dir_all(data.join("meta"))?;
        let server = scene.start()?;
        dl(&server, ["recover", "--all"])?.code(4)?;
        scene.compare(&server, "c")?;
        let listed = dl(&server, ["datasets"])?.code(4)?;
        ensure!(listed.stderr.contains("stands for the same dataset as another"), "{listed:?}");
        let refused = dl(&server, ["ls", &format!("dl://{copy}")])?.code(1)?;
        ensure!(refused.stderr.contains(copy), "{refused:?}");
        let refused = run(server.dlcmd()?.arg("put").arg(scene.path("src")).arg("dl://zz"))?;
        ensure!(refused.code == i32::from(mended.is_none()), "{refused:?}");
        match mended {
            Some(bytes) => fs::write(&copied, bytes)?,
            None => fs::remove_file(&copied)?,
        }
        dl(&server, ["recover", "--all"])?.code(0)?;
        for dataset in ["a", "b", "c"] {
            scene.compare(&server, dataset)?;
        }
        dl(&server, ["verify", "dl://a"])?.code(0)?;
        server.stop()?;
    }
    Ok(())
}

/// Keeps S-29: a chunk is moved away while the server has its file open.
#[test]
fn verify_finds_a_lost_chunk_despite_an_open_file() -> Result<()> {
    let scene = Scene::new(&["ds"])?;
    let server = scene.start()?;
    scene.compare(&server, "ds")?;
    dl(&server, ["verify", "dl://ds"])?.code(0)?;
    let chunks = scene.path("data/chunks");
    let objects = folder::read(&chunks)?;
    let chunk = objects.keys().find(|name| name.ends_with(b".c")).context("there is a chunk")?;
    fs::rename(chunks.join(OsStr::from_bytes(chunk)), scene.path("away"))?;
    let found = dl(&server, ["verify", "dl://ds"])?.code(4)?;
    ensure!(found.text().contains("is lost"), "{found:?}");
    let recovered = dl(&server, ["recover", "dl://ds"])?.code(4)?;
    ensure!(recovered.stderr.contains("not in the chunk store"), "{recovered:?}");
    Ok(())
}

/// Keeps S-14, S-29 and S-46: as long as the metadata know the lost name.
#[test]
fn a_lost_name_is_found_and_restored() -> Result<()> {
    let scene = Scene::new(&["a", "k"])?;
    let server = scene.start()?;
    fs::remove_dir_all(scene.path("data/chunks/names/k"))?;
    let found = dl(&server, ["verify", "dl://k"])?.code(4)?;
    ensure!(found.text().contains("its name is not in the chunk store"), "{found:?}");
    ensure!(found.text().contains("dlcmd recover dl://k"), "{found:?}");
    dl(&server, ["recover", "dl://k"])?.code(0)?;
    dl(&server, ["verify", "dl://k"])?.code(0)?;
    server.stop()?;
    fs::remove_dir_all(scene.path("data/meta"))?;
    let server = scene.start()?;
    dl(&server, ["recover", "--all"])?.code(0)?;
    scene.compare(&server, "k")?;
    scene.compare(&server, "a")
}

/// Keeps S-02: without a name a dataset is not repaired, so it is not complete.
#[test]
fn a_dataset_with_losses_is_refused_until_recovered() -> Result<()> {
    let scene = Scene::new(&["a", "k"])?;
    scene.start()?.kill()?;
    fs::remove_dir_all(scene.path("data/chunks/names/k"))?;
    let server = scene.start()?;
    scene.compare(&server, "a")?;
    let refused = dl(&server, ["ls", "dl://k"])?.code(1)?;
    ensure!(refused.stderr.contains("dlcmd recover"), "{}", refused.stderr);
    dl(&server, ["recover", "--all"])?.code(0)?;
    scene.compare(&server, "k")
}

/// Keeps S-03 (I3), S-29 and S-46: a part is lost, then all metadata about it.
#[test]
fn recover_and_verify_report_a_large_file_without_a_part() -> Result<()> {
    let (scene, server) = with_files(&["one"], true)?;
    let chunks = scene.path("data/chunks");
    let objects = folder::read(&chunks)?;
    // The last chunk of the file is smaller.
    let part = objects.iter().max_by_key(|(_, (bytes, ..))| bytes.len()).context("objects")?.0;
    fs::remove_file(chunks.join(OsStr::from_bytes(part)))?;
    server.stop()?;
    for _ in 0..2 {
        fs::remove_dir_all(scene.path("data/meta"))?;
        let server = scene.start()?;
        let recovered = dl(&server, ["recover", "--all"])?.code(4)?;
        ensure!(recovered.stderr.contains("1 large files lack parts"), "{recovered:?}");
        let found = dl(&server, ["verify", "dl://ds"])?.code(4)?;
        ensure!(found.text().contains("large is lost"), "{found:?}");
        let get = dl(&server, ["cat", "dl://ds/large"])?;
        ensure!(get.code != 0 && get.stderr.contains("or is lost"), "{get:?}");
        server.stop()?;
    }
    let server = scene.start()?;
    scene.obey(&server, &["verify", "dl://ds"])?;
    scene.compare(&server, "ds")
}

const VERIFY: [&str; 3] = ["verify", "--checksums", "dl://ds"];

/// A dataset `ds` with these files, an empty file, and a file of several parts if `is_large`.
fn with_files(names: &[&str], is_large: bool) -> Result<(Scene, Server)> {
    let scene = Scene { folder: tempfile::tempdir()? };
    for name in names {
        folder::write(&scene.path("src"), name, format!("{name} is stored in some chunk"))?;
    }
    folder::write(&scene.path("src"), "empty", "")?;
    if is_large {
        let words =
            (0u64..1_300_000).flat_map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
        folder::write(&scene.path("src"), "large", words.collect::<Vec<u8>>())?;
    }
    let server = scene.start()?;
    run(server.dlcmd()?.arg("put").arg(scene.path("src")).arg("dl://ds"))?.code(0)?;
    Ok((scene, server))
}

/// Keeps S-29 and S-55.
#[test]
fn the_command_printed_by_verify_repairs_damaged_bytes() -> Result<()> {
    let (scene, server) = with_files(&["one", "two", "three"], true)?;
    for path in ["one", "three", "large"] {
        scene.damage(path)?;
    }
    let found = scene.obey(&server, &VERIFY)?;
    let named = |path: &str| found.contains(&format!("{path} is damaged"));
    ensure!(["one", "three", "large"].into_iter().all(named) && !named("two"), "{found}");
    scene.compare(&server, "ds")?;
    dl(&server, VERIFY)?.code(0)?;
    let mut again = server.dlcmd()?;
    again.args(["--json", "put", "--checksum"]).arg(scene.path("src")).arg("dl://ds");
    let again = run(&mut again)?.code(0)?.text();
    ensure!(again.contains("\"files\":0"), "whole files were put again: {again}");
    Ok(())
}

/// Keeps S-29.
#[test]
fn the_command_printed_by_verify_replaces_a_lost_chunk() -> Result<()> {
    let (scene, server) = with_files(&["one", "two"], false)?;
    let chunks = scene.path("data/chunks");
    for name in folder::read(&chunks)?.into_keys().filter(|name| name.ends_with(b".c")) {
        fs::remove_file(chunks.join(OsStr::from_bytes(&name)))?;
    }
    let found = scene.obey(&server, &VERIFY)?;
    ensure!(
        ["empty", "one", "two"].iter().all(|path| found.contains(&format!("{path} is lost"))),
        "{found}"
    );
    scene.compare(&server, "ds")?;
    let left = scene.obey(&server, &VERIFY)?;
    ensure!(!left.contains("is lost") && left.contains("dlcmd purge"), "{left}");
    dl(&server, VERIFY)?.code(0)?;
    scene.compare(&server, "ds")
}

/// Keeps S-29, S-02 and S-55: the damage shows only after the loss of the metadata, too late for a
/// repair.
#[test]
fn the_command_printed_by_verify_repairs_damaged_headers() -> Result<()> {
    for has_large in [false, true] {
        let (scene, server) = with_files(&["one", "two"], has_large)?;
        let chunks = scene.path("data/chunks");
        let mut damaged = folder::read(&chunks)?;
        damaged.retain(|name, _| name.ends_with(b".c"));
        let objects: Vec<_> =
            damaged.keys().map(|name| chunks.join(OsStr::from_bytes(name))).collect();
        for object in &objects {
            let mut bytes = fs::read(object)?;
            *bytes.get_mut(100).context("a header is longer")? ^= 1;
            fs::write(object, bytes)?;
        }
        if !has_large {
            // The last header of a large file holds the places of its parts.
            scene.compare(&server, "ds")?;
        }
        scene.obey(&server, &VERIFY)?;
        let left = dl(&server, VERIFY)?.code(4)?.text();
        ensure!(left.contains("no file needs it") && !left.contains("--checksum"), "{left}");
        objects.iter().try_for_each(fs::remove_file)?;
        scene.obey(&server, &VERIFY)?;
        dl(&server, VERIFY)?.code(0)?;
        server.kill()?;
        fs::remove_dir_all(scene.path("data/meta"))?;
        let server = scene.start()?;
        dl(&server, ["recover", "--all"])?.code(0)?;
        scene.compare(&server, "ds").with_context(|| format!("large: {has_large}"))?;
    }
    Ok(())
}

/// Keeps S-29: after the loss of the metadata, a part with such a header is not adopted.
#[test]
fn verify_reads_the_headers_of_the_parts_of_large_files() -> Result<()> {
    let (scene, server) = with_files(&["one"], true)?;
    let chunks = scene.path("data/chunks");
    let mut damaged = 0;
    for (name, (mut bytes, ..)) in folder::read(&chunks)? {
        // The object kind, as in FORMAT.
        if name.ends_with(b".c") && bytes.get(10..12) == Some(&[2, 0]) {
            *bytes.get_mut(100).context("a header is longer")? ^= 1;
            fs::write(chunks.join(OsStr::from_bytes(&name)), bytes)?;
            damaged += 1;
        }
    }
    ensure!(damaged > 0, "the file has no parts");
    scene.compare(&server, "ds")?;
    let found = scene.obey(&server, &["verify", "dl://ds"])?;
    ensure!(found.contains("large is damaged in part") && !found.contains("one is"), "{found}");
    server.kill()?;
    fs::remove_dir_all(scene.path("data/meta"))?;
    let server = scene.start()?;
    dl(&server, ["recover", "--all"])?.code(4)?;
    scene.compare(&server, "ds")
}

/// Keeps S-14.
#[test]
fn a_large_file_ends_before_its_damaged_part() -> Result<()> {
    // All parts but the last have this length.
    const PART: usize = (4 << 20) - 4096;
    let whole = Dice::new(1).bytes(20_000_000);
    for number in [0, 2, whole.len() / PART] {
        let scene = Scene { folder: tempfile::tempdir()? };
        folder::write(&scene.path("src"), "large", &whole)?;
        folder::write(&scene.path("src"), "small", "and a small one")?;
        let server = scene.start()?;
        let put = |options: &[&str]| {
            let mut put = server.dlcmd()?;
            run(put.arg("put").args(options).arg(scene.path("src")).arg("dl://ds"))?.code(0)
        };
        put(&[])?;
        let (before, from) = whole.split_at(number * PART);
        let damaged = scene.damage_at(from.get(..64).context("the file is too short")?)?;
        let id =
            damaged.file_stem().context("an object has a name")?.to_string_lossy().into_owned();

        let cat = dl(&server, ["cat", "dl://ds/large"])?.code(1)?;
        ensure!(cat.stdout == before, "part {number}: {} bytes", cat.stdout.len());
        let got = scene.path("got");
        let get = run(server.dlcmd()?.args(["get", "dl://ds"]).arg(&got))?.code(4)?;
        ensure!(!got.join("large").exists() && got.join("small").exists(), "{get:?}");
        for told in [&cat.stderr, &get.stderr] {
            let is_told = told.contains(&id) && told.contains("dlcmd put --checksum");
            ensure!(is_told, "part {number}, {id}: {told}");
        }
        fs::remove_dir_all(got)?;
        put(&["--checksum"])?;
        scene.compare(&server, "ds")?;
    }
    Ok(())
}
