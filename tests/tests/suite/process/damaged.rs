//! Damage to small but essential objects: the identity and the names.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Server, dl, run};
use dl_tests::scene::Scene;

const IDENTITY: &str = "data/chunks/identity";
const NAME_OF_K: &str = "data/chunks/names/k/00000001";
const VERIFY: [&str; 3] = ["verify", "--checksums", "dl://ds"];

/// The data of a stopped server, with datasets of equal files.
fn with_datasets(names: &[&str]) -> Result<Scene> {
    let scene = Scene::filled(20, 2_000)?;
    let server = scene.start()?;
    names.iter().try_for_each(|name| server.put(scene.src(), format!("dl://{name}")))?;
    server.stop()?;
    Ok(scene)
}

/// A dataset `ds` with these files, an empty file, and a file of several parts if `is_large`.
fn with_files(names: &[&str], is_large: bool) -> Result<(Scene, Server)> {
    let scene = Scene::new()?;
    for name in names {
        folder::write(&scene.src(), name, format!("{name} is stored in some chunk"))?;
    }
    folder::write(&scene.src(), "empty", "")?;
    if is_large {
        folder::write(&scene.src(), "large", Dice::new(1).bytes(10_400_000))?;
    }
    let server = scene.start()?;
    server.put(scene.src(), "dl://ds")?;
    Ok((scene, server))
}

/// Compares datasets with the source files.
fn compare(scene: &Scene, server: &Server, names: &[&str]) -> Result<()> {
    names.iter().try_for_each(|name| server.compare(format!("dl://{name}"), &scene.src()))
}

/// Changes the first of these bytes in the object that holds them; returns the object.
fn damage(scene: &Scene, begin: &[u8]) -> Result<PathBuf> {
    for object in scene.objects()? {
        let mut bytes = fs::read(&object)?;
        if let Some(at) = bytes.windows(begin.len()).position(|window| window == begin) {
            flip(&object, &mut bytes, at)?;
            return Ok(object);
        }
    }
    bail!("no object has these bytes")
}

fn flip(object: &Path, bytes: &mut [u8], at: usize) -> Result<()> {
    *bytes.get_mut(at).context("the object is longer")? ^= 1;
    Ok(fs::write(object, bytes)?)
}

/// Runs the commands printed by verify in order; returns its findings.
fn obey(scene: &Scene, server: &Server, verify: &[&str]) -> Result<String> {
    let found = dl(server, verify)?.code(4)?.text();
    let mut commands: Vec<_> = found.split('`').skip(1).step_by(2).collect();
    commands.dedup();
    for command in commands {
        let words = command.split(' ').skip(1).map(|word| match word {
            "SRC" => scene.src(),
            word => word.into(),
        });
        run(server.dlcmd()?.args(words))?.code(0).with_context(|| command.to_owned())?;
    }
    Ok(found)
}

/// Keeps S-05 (Rule 6) and S-14: each start demands the removal of damaged objects; the chunks identify the
/// store.
#[test]
fn a_damaged_identity_and_name_cost_no_indexed_file() -> Result<()> {
    let scene = with_datasets(&["a", "k"])?;
    let (object, name) = (scene.path(IDENTITY), scene.path(NAME_OF_K));
    let before = fs::read(&object)?;
    fs::write(&object, "no identity")?;
    fs::write(&name, "no name record")?;
    let refused = scene.fails(1, &[])?;
    ensure!(refused.contains("`identity` is damaged: remove it"), "{refused}");
    fs::remove_file(&object)?;
    let server = scene.start()?;
    ensure!(fs::read(&object)? == before, "the identity of the store changed");
    compare(&scene, &server, &["a", "k"])?;
    let log = server.stop()?;
    ensure!(log.contains("identity"), "the log does not mention the identity: {log}");
    fs::remove_file(&name)?;
    fs::remove_file(&object)?;
    let server = scene.start()?;
    dl(&server, ["recover", "dl://k"])?.code(0)?;
    dl(&server, ["verify", "dl://k"])?.code(0)?;
    compare(&scene, &server, &["a", "k"])?;
    Ok(())
}

/// Keeps S-05: Rule 6.
#[test]
fn a_store_without_identity_is_not_taken_for_empty() -> Result<()> {
    let scene = with_datasets(&["a"])?;
    fs::remove_file(scene.path(IDENTITY))?;
    scene.lose_metadata()?;
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
    compare(&scene, &server, &["a"])?;
    server.stop()?;
    compare(&scene, &scene.start()?, &["a"])
}

/// Keeps S-14.
#[test]
fn a_damaged_name_costs_its_dataset_and_no_other() -> Result<()> {
    let scene = with_datasets(&["a", "k", "z"])?;
    let whole = fs::read(scene.path(NAME_OF_K))?;
    for wiped in [false, true] {
        fs::write(scene.path(NAME_OF_K), "no name record")?;
        if wiped {
            scene.lose_metadata()?;
        } else {
            // A kill, so that the next start rolls forward.
            scene.start()?.kill()?;
        }
        let server = scene.start()?;
        let partly = dl(&server, ["recover", "--all"])?.code(4)?;
        ensure!(partly.stderr.contains('k'), "{}", partly.stderr);
        compare(&scene, &server, &["a", "z"])?;
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
        let refused = run(server.dlcmd()?.arg("put").arg(scene.src()).arg("dl://k"))?;
        ensure!(refused.code == 1, "wiped {wiped}: {refused:?}");
        server.stop()?;

        fs::write(scene.path(NAME_OF_K), &whole)?;
        let server = scene.start()?;
        dl(&server, ["recover", "--all"])?.code(0)?;
        compare(&scene, &server, &["k"])?;
        server.stop()?;
    }
    Ok(())
}

/// Keeps S-14, S-29 and S-63: no rule decides between the copies, so both are reported and not
/// retried.
#[test]
fn a_copied_name_is_reported_and_costs_no_other_dataset() -> Result<()> {
    let scene = with_datasets(&["a", "b", "c"])?;
    let names = scene.path("data/chunks/names");
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
        compare(&scene, &server, &["a", "b", "c"])?;
        let found =
            dl(&server, ["verify", "dl://a"])?.code(if mended.is_some() { 4 } else { 0 })?;
        ensure!(
            mended.is_none() || found.text().contains("another dataset than the metadata has"),
            "{found:?}"
        );
        server.stop()?;

        scene.lose_metadata()?;
        let server = scene.start()?;
        dl(&server, ["recover", "--all"])?.code(4)?;
        compare(&scene, &server, &["c"])?;
        let listed = dl(&server, ["datasets"])?.code(4)?;
        ensure!(listed.stderr.contains("stands for the same dataset as another"), "{listed:?}");
        let refused = dl(&server, ["ls", &format!("dl://{copy}")])?.code(1)?;
        ensure!(refused.stderr.contains(copy), "{refused:?}");
        let refused = run(server.dlcmd()?.arg("put").arg(scene.src()).arg("dl://zz"))?;
        ensure!(refused.code == i32::from(mended.is_none()), "{refused:?}");
        match mended {
            Some(bytes) => fs::write(&copied, bytes)?,
            None => fs::remove_file(&copied)?,
        }
        dl(&server, ["recover", "--all"])?.code(0)?;
        compare(&scene, &server, &["a", "b", "c"])?;
        dl(&server, ["verify", "dl://a"])?.code(0)?;
        server.stop()?;
    }
    Ok(())
}

/// Keeps S-14, S-29 and S-46: as long as the metadata know the lost name.
#[test]
fn a_lost_name_is_found_and_restored() -> Result<()> {
    let scene = with_datasets(&["a", "k"])?;
    let server = scene.start()?;
    fs::remove_dir_all(scene.path("data/chunks/names/k"))?;
    let found = dl(&server, ["verify", "dl://k"])?.code(4)?;
    ensure!(found.text().contains("its name is not in the chunk store"), "{found:?}");
    ensure!(found.text().contains("dlcmd recover dl://k"), "{found:?}");
    dl(&server, ["recover", "dl://k"])?.code(0)?;
    dl(&server, ["verify", "dl://k"])?.code(0)?;
    server.stop()?;
    scene.lose_metadata()?;
    let server = scene.start()?;
    dl(&server, ["recover", "--all"])?.code(0)?;
    compare(&scene, &server, &["k"])?;
    compare(&scene, &server, &["a"])
}

/// Keeps S-03 (I3), S-29 and S-46: a part is lost, then all metadata about it.
#[test]
fn recover_and_verify_report_a_large_file_without_a_part() -> Result<()> {
    let (scene, server) = with_files(&["one"], true)?;
    // The last chunk of the file is smaller.
    let length = |path: &PathBuf| fs::metadata(path).map_or(0, |found| found.len());
    fs::remove_file(scene.objects()?.into_iter().max_by_key(length).context("objects")?)?;
    server.stop()?;
    for _ in 0..2 {
        scene.lose_metadata()?;
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
    obey(&scene, &server, &["verify", "dl://ds"])?;
    compare(&scene, &server, &["ds"])
}

/// Keeps S-29 and S-55.
#[test]
fn the_command_printed_by_verify_repairs_damaged_bytes() -> Result<()> {
    let (scene, server) = with_files(&["one", "two", "three"], true)?;
    for path in ["one", "three", "large"] {
        let bytes = fs::read(scene.src().join(path))?;
        damage(&scene, bytes.get(..64).unwrap_or(&bytes))?;
    }
    let found = obey(&scene, &server, &VERIFY)?;
    let named = |path: &str| found.contains(&format!("{path} is damaged"));
    ensure!(["one", "three", "large"].into_iter().all(named) && !named("two"), "{found}");
    compare(&scene, &server, &["ds"])?;
    dl(&server, VERIFY)?.code(0)?;
    let mut again = server.dlcmd()?;
    again.args(["--json", "put", "--checksum"]).arg(scene.src()).arg("dl://ds");
    let again = run(&mut again)?.code(0)?.text();
    ensure!(again.contains("\"files\":0"), "whole files were put again: {again}");
    Ok(())
}

/// Keeps S-29 and S-46.
#[test]
fn the_command_printed_by_verify_replaces_a_lost_chunk() -> Result<()> {
    let (scene, server) = with_files(&["one", "two"], false)?;
    // The server opens the files of the chunks.
    compare(&scene, &server, &["ds"])?;
    scene.objects()?.iter().try_for_each(fs::remove_file)?;
    let recovered = dl(&server, ["recover", "dl://ds"])?.code(4)?;
    ensure!(recovered.stderr.contains("not in the chunk store"), "{recovered:?}");
    let found = obey(&scene, &server, &VERIFY)?;
    ensure!(
        ["empty", "one", "two"].iter().all(|path| found.contains(&format!("{path} is lost"))),
        "{found}"
    );
    compare(&scene, &server, &["ds"])?;
    let left = obey(&scene, &server, &VERIFY)?;
    ensure!(!left.contains("is lost") && left.contains("dlcmd purge"), "{left}");
    dl(&server, VERIFY)?.code(0)?;
    compare(&scene, &server, &["ds"])
}

/// Keeps S-29, S-02 and S-55: the damage shows only after the loss of the metadata, too late for a
/// repair.
#[test]
fn the_command_printed_by_verify_repairs_damaged_headers() -> Result<()> {
    for has_large in [false, true] {
        let (scene, server) = with_files(&["one", "two"], has_large)?;
        let objects = scene.objects()?;
        for object in &objects {
            flip(object, &mut fs::read(object)?, 100)?;
        }
        if !has_large {
            // The last header of a large file holds the places of its parts.
            compare(&scene, &server, &["ds"])?;
        }
        obey(&scene, &server, &VERIFY)?;
        let left = dl(&server, VERIFY)?.code(4)?.text();
        ensure!(left.contains("no file needs it") && !left.contains("--checksum"), "{left}");
        objects.iter().try_for_each(fs::remove_file)?;
        obey(&scene, &server, &VERIFY)?;
        dl(&server, VERIFY)?.code(0)?;
        server.kill()?;
        scene.lose_metadata()?;
        let server = scene.start()?;
        dl(&server, ["recover", "--all"])?.code(0)?;
        compare(&scene, &server, &["ds"]).with_context(|| format!("large: {has_large}"))?;
    }
    Ok(())
}

/// Keeps S-29: after the loss of the metadata, a part with such a header is not adopted.
#[test]
fn verify_reads_the_headers_of_the_parts_of_large_files() -> Result<()> {
    let (scene, server) = with_files(&["one"], true)?;
    let mut damaged = 0;
    for object in scene.objects()? {
        let mut bytes = fs::read(&object)?;
        // The object kind, as in FORMAT.
        if bytes.get(10..12) == Some(&[2, 0]) {
            flip(&object, &mut bytes, 100)?;
            damaged += 1;
        }
    }
    ensure!(damaged > 0, "the file has no parts");
    compare(&scene, &server, &["ds"])?;
    let found = obey(&scene, &server, &["verify", "dl://ds"])?;
    ensure!(found.contains("large is damaged in part") && !found.contains("one is"), "{found}");
    server.kill()?;
    scene.lose_metadata()?;
    let server = scene.start()?;
    dl(&server, ["recover", "--all"])?.code(4)?;
    compare(&scene, &server, &["ds"])
}

/// Keeps S-14.
#[test]
fn a_large_file_ends_before_its_damaged_part() -> Result<()> {
    // All parts but the last have this length.
    const PART: usize = (4 << 20) - 4096;
    let whole = Dice::new(1).bytes(20_000_000);
    for number in [0, 2, whole.len() / PART] {
        let scene = Scene::new()?;
        folder::write(&scene.src(), "large", &whole)?;
        folder::write(&scene.src(), "small", "and a small one")?;
        let server = scene.start()?;
        let put = |options: &[&str]| {
            let mut put = server.dlcmd()?;
            run(put.arg("put").args(options).arg(scene.src()).arg("dl://ds"))?.code(0)
        };
        put(&[])?;
        let (before, from) = whole.split_at(number * PART);
        let damaged = damage(&scene, from.get(..64).context("the file is too short")?)?;
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
        compare(&scene, &server, &["ds"])?;
    }
    Ok(())
}
