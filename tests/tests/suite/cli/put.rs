//! Contract of `put`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use dl_tests::folder;
use dl_tests::program::{Process, run, run_with_stdin};
use dl_tests::skip;

use super::common::Scene;

#[test]
fn put_of_folders_ignores_slashes_and_lands_under_the_target() -> Result<()> {
    let scene = Scene::with(&[("a", "1"), ("d/b", "2")])?;
    for (source, dataset) in [("src/", "dl://slash"), ("./src/.", "dl://dot")] {
        scene.dl(["put", source, dataset])?.code(0)?;
        ensure!(scene.listed(dataset)? == "a\nd/b\n", "{source}");
    }
    scene.dl(["put", "src/a", "src/d", "dl://several/x/y"])?.code(0)?;
    ensure!(scene.listed("dl://several")? == "x/y/a\nx/y/b\n", "several sources");
    Ok(())
}

#[test]
fn put_of_a_file_stores_at_the_path_or_in_a_folder() -> Result<()> {
    let scene = Scene::new()?;
    scene.write("h/labels.csv", "old")?;
    scene.write("h/train/x", "1")?;
    scene.write("labels.csv", "new")?;
    for (target, listed) in [
        ("dl://new", "labels.csv\n"),
        ("dl://new/", "labels.csv\n"),
        ("dl://new/other.csv", "labels.csv\nother.csv\n"),
        ("dl://deep/a/b.csv", "a/b.csv\n"),
        ("dl://slash/a/", "a/labels.csv\n"),
        ("dl://old/labels.csv", "labels.csv\ntrain/x\n"),
        ("dl://old/train", "labels.csv\ntrain/labels.csv\ntrain/x\n"),
        ("dl://old/train/x", "labels.csv\ntrain/labels.csv\ntrain/x\n"),
    ] {
        if target == "dl://old/labels.csv" {
            scene.dl(["put", "src/h", "dl://old"])?.code(0)?;
        }
        scene.dl(["put", "src/labels.csv", target])?.code(0)?;
        let dataset = target.split('/').take(3).collect::<Vec<_>>().join("/");
        ensure!(scene.listed(&dataset)? == listed, "{target}: {}", scene.listed(&dataset)?);
    }
    for path in ["dl://old/labels.csv", "dl://old/train/labels.csv", "dl://old/train/x"] {
        ensure!(scene.dl(["cat", path])?.code(0)?.text() == "new", "{path} was not replaced");
    }
    let again = scene.dl(["--json", "put", "src/labels.csv", "dl://old/train/x"])?.code(0)?.text();
    ensure!(again.contains("\"unchanged\":1"), "{again}");
    scene.dl(["rm", "-r", "dl://old/labels.csv"])?.code(0)?;
    ensure!(
        !scene.listed("dl://old")?.starts_with("labels.csv"),
        "rm left a file below labels.csv"
    );
    Ok(())
}

#[test]
fn put_reads_paths_from_stdin_and_stores_each_as_given() -> Result<()> {
    let scene = Scene::new()?;
    scene.write("d/b", "1")?;
    scene.write("new\nline", "2")?;
    run_with_stdin(&mut scene.command(["put", "-", "dl://lines"])?, b"src/d/b\n")?.code(0)?;
    ensure!(scene.listed("dl://lines")? == "src/d/b\n", "lines");
    let list = b"src/d/b\0src/new\nline\0";
    run_with_stdin(&mut scene.command(["put", "-0", "-", "dl://nul"])?, list)?.code(0)?;
    ensure!(scene.listed("dl://nul")? == "src/d/b\nsrc/new\\x0Aline\n", "NUL");
    Ok(())
}

#[test]
fn put_skips_files_with_equal_size_and_time() -> Result<()> {
    let scene = Scene::with(&[("a", "1"), ("b", "2")])?;
    let again = scene.dl(["--json", "put", "src", "dl://ds"])?.code(0)?.text();
    ensure!(again.contains("\"files\":0") && again.contains("\"unchanged\":2"), "{again}");
    scene.write("b", "3")?;
    let again = scene.dl(["--json", "put", "src", "dl://ds"])?.code(0)?.text();
    ensure!(again.contains("\"files\":1") && again.contains("\"unchanged\":1"), "{again}");
    ensure!(scene.dl(["cat", "dl://ds/b"])?.code(0)?.text() == "3", "the new contents");
    Ok(())
}

#[test]
fn put_with_checksum_finds_a_change_of_equal_size_and_time() -> Result<()> {
    let scene = Scene::with(&[("a", "1")])?;
    age_file(&scene, "src/a")?;
    scene.dl(["put", "src", "dl://ds"])?.code(0)?;
    let time = fs::metadata(scene.path("src/a"))?.modified()?;
    scene.write("a", "2")?;
    set_time(&scene, "src/a", time)?;
    scene.dl(["put", "src", "dl://ds"])?.code(0)?;
    ensure!(scene.dl(["cat", "dl://ds/a"])?.code(0)?.text() == "1", "skipped by size and time");
    scene.dl(["put", "--checksum", "src", "dl://ds"])?.code(0)?;
    ensure!(scene.dl(["cat", "dl://ds/a"])?.code(0)?.text() == "2", "found by its checksum");
    Ok(())
}

fn set_time(scene: &Scene, path: &str, time: SystemTime) -> Result<()> {
    Ok(fs::File::options().write(true).open(scene.path(path))?.set_modified(time)?)
}

/// Makes a file old enough that its modification time reveals changes.
fn age_file(scene: &Scene, path: &str) -> Result<()> {
    let time = fs::metadata(scene.path(path))?.modified()? - Duration::from_secs(60);
    set_time(scene, path, time)
}

#[test]
fn put_stores_a_file_again_whose_mode_alone_has_changed() -> Result<()> {
    let scene = Scene::new()?;
    scene.write("a", "1")?;
    age_file(&scene, "src/a")?;
    for (flag, mode) in [("--quiet", 0o600), ("--quiet", 0o755), ("--checksum", 0o644)] {
        fs::set_permissions(scene.path("src/a"), fs::Permissions::from_mode(mode))?;
        for files in [1, 0] {
            let put = scene.dl(["--json", "put", flag, "src", "dl://ds"])?.code(0)?.text();
            ensure!(put.contains(&format!("\"files\":{files},")), "{mode:o}: {put}");
        }
        let stored = scene.dl(["--json", "stat", "dl://ds/a"])?.code(0)?.text();
        ensure!(stored.contains(&format!("\"mode\":\"{mode:04o}\"")), "{stored}");
    }
    Ok(())
}

/// A change of equal size and time, as through a memory mapping.
#[test]
fn put_reads_a_recently_modified_file_again() -> Result<()> {
    let scene = Scene::new()?;
    scene.write("a", "1")?;
    scene.dl(["put", "src", "dl://ds"])?.code(0)?;
    let time = fs::metadata(scene.path("src/a"))?.modified()?;
    std::thread::sleep(Duration::from_millis(2_500));
    for (text, files) in [("2", 1), ("2", 0)] {
        scene.write("a", text)?;
        set_time(&scene, "src/a", time)?;
        let put = scene.dl(["--json", "put", "src", "dl://ds"])?.code(0)?.text();
        ensure!(put.contains(&format!("\"files\":{files},")), "{put}");
        ensure!(put.contains(&format!("\"unchanged\":{}", 1 - files)), "{put}");
        ensure!(scene.dl(["cat", "dl://ds/a"])?.code(0)?.text() == text, "{text}");
    }
    Ok(())
}

/// The small file waits in a chunk while the large file is read. The chunk's header must not cover
/// a later change.
#[test]
fn put_stores_the_last_state_of_a_silently_changed_file() -> Result<()> {
    let scene = Scene::new()?;
    fs::create_dir(scene.path("src"))?;
    fs::File::create(scene.path("src/zeros"))?.set_len(1 << 30)?;
    age_file(&scene, "src/zeros")?;
    scene.write("a", "1")?;
    // Old enough to be trusted after the large file is stored, but not at the time of the read.
    let time = fs::metadata(scene.path("src/a"))?.modified()? - Duration::from_millis(1_500);
    set_time(&scene, "src/a", time)?;
    let mut put = scene.command(["put", "--threads", "1", "src/a", "src/zeros", "dl://ds"])?;
    let mut put = Process::start(put.stdout(Stdio::null()))?;
    std::thread::sleep(Duration::from_millis(300));
    scene.write("a", "2")?;
    set_time(&scene, "src/a", time)?;
    let code = put.wait(Duration::from_secs(120))?;
    ensure!(code == 0, "put ended with {code}");
    scene.dl(["put", "src/a", "dl://ds"])?.code(0)?;
    ensure!(scene.dl(["cat", "dl://ds/a"])?.code(0)?.text() == "2", "the file was stored torn");
    Ok(())
}

#[test]
fn put_follows_all_links_when_asked_to_and_says_so_otherwise() -> Result<()> {
    let scene = Scene::new()?;
    for (path, text) in [("hf/blobs/1", "weights"), ("hf/more/deep/2", "more")] {
        folder::write(&scene.path(""), path, text)?;
    }
    fs::create_dir(scene.path("hf/snap"))?;
    symlink("../blobs/1", scene.path("hf/snap/f"))?;
    symlink("../more", scene.path("hf/snap/folder"))?;
    symlink("..", scene.path("hf/more/loop"))?;
    let quiet = scene.dl(["--quiet", "put", "hf/snap", "dl://x"])?.code(4)?;
    ensure!(quiet.stderr.contains("--follow") && quiet.stderr.contains("snap/f"), "{quiet:?}");
    ensure!(quiet.text().contains("2 skipped"), "{quiet:?}");
    for _ in 0..2 {
        let put = scene.dl(["put", "--follow", "hf/snap", "dl://x"])?.code(0)?;
        ensure!(put.stderr.contains("loop"), "{put:?}");
        let listed = scene.listed("dl://x")?;
        ensure!(listed.starts_with("f\nfolder/deep/2\n"), "{listed}");
    }
    ensure!(scene.dl(["cat", "dl://x/f"])?.code(0)?.text() == "weights", "cat");
    Ok(())
}

#[test]
fn put_ends_with_4_if_a_named_source_or_all_were_skipped() -> Result<()> {
    let scene = Scene::new()?;
    scene.write("a", "1")?;
    fs::create_dir_all(scene.path("links"))?;
    symlink("/etc/hostname", scene.path("links/out"))?;
    for name in ["pipe", "links/pipe"] {
        ensure!(Command::new("mkfifo").arg(scene.path(name)).status()?.success(), "mkfifo");
    }
    let data = scene.path("data").display().to_string();
    for (sources, told) in [
        (&["pipe"][..], "skipped pipe: it is a named pipe"),
        (&["pipe", "src"], "skipped pipe: it is a named pipe"),
        (&["links"], "skipped links/out"),
        (&[&data], "holds the data of a dlserver"),
        (&["src", &data], "holds the data of a dlserver"),
    ] {
        let mut put = scene.command(["--quiet", "put"])?;
        let put = run(put.args(sources).arg("dl://ds"))?.code(4);
        let put = put.with_context(|| format!("{sources:?}"))?;
        ensure!(put.stderr.contains(told), "{sources:?}: {put:?}");
    }
    // Skipped files below a source, or beside unchanged files, are reported without a failure.
    fs::rename(scene.path("links"), scene.path("src/links"))?;
    for _ in 0..2 {
        let put = scene.dl(["put", "src", "dl://ds"])?.code(0)?;
        ensure!(put.stderr.contains("src/links/pipe"), "{put:?}");
    }
    Ok(())
}

/// Keeps S-56.
#[test]
fn put_skips_and_get_removes_leftovers_of_a_killed_get() -> Result<()> {
    let scene = Scene::with(&[("d/a", "1")])?;
    let run = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let left =
        format!(".dlcmd-{}89abcdef-7.tmp", run.get(..8).context("a UUID has eight digits first")?);
    scene.write(&format!("d/{left}"), "half")?;
    let list = format!("src/d/{left}\nsrc/d/a\n");
    let mut from_list = scene.command(["--json", "put", "-", "dl://ds"])?;
    let puts = [
        run_with_stdin(&mut from_list, list.as_bytes())?,
        scene.dl(["--json", "put", "src", "dl://new"])?,
        scene.dl(["--json", "put", "src", "dl://ds"])?,
    ];
    for put in puts {
        let put = put.code(0)?;
        ensure!(put.stderr.contains(&left) && put.text().contains("\"skipped\":1,"), "{put:?}");
    }
    let listed = scene.listed("dl://ds")?;
    ensure!(listed == "d/a\nsrc/d/a\n", "{listed}");
    fs::remove_file(scene.path("src/d/a"))?;
    scene.dl(["get", "dl://ds/d", "src/d"])?.code(0)?;
    ensure!(!scene.path("src/d").join(&left).exists(), "the leftover still exists");
    Ok(())
}

#[test]
fn put_of_an_unreadable_file_stores_the_rest_and_ends_with_4() -> Result<()> {
    let scene = Scene::new()?;
    scene.write("a", "1")?;
    scene.write("secret", "2")?;
    fs::set_permissions(scene.path("src/secret"), fs::Permissions::from_mode(0o000))?;
    let put = scene.command(["put", "src", "dl://ds"])?;
    let put = if fs::File::open(scene.path("src/secret")).is_err() {
        scene.dl(["put", "src", "dl://ds"])?
    } else {
        // Root can read every file; an unprivileged user runs this put.
        for folder in ["", "src"] {
            fs::set_permissions(scene.path(folder), fs::Permissions::from_mode(0o755))?;
        }
        let mut other = Command::new("setpriv");
        other.args(["--reuid", "65534", "--clear-groups"]).arg(put.get_program());
        other.args(put.get_args()).current_dir(scene.path(""));
        match run(&mut other) {
            Ok(put) if !put.stderr.contains("setpriv") => put,
            refused => {
                return skip(format_args!("this can't be tried as another user: {refused:?}"));
            }
        }
    };
    let put = put.code(4)?;
    ensure!(put.stderr.contains("secret"), "{}", put.stderr);
    ensure!(scene.listed("dl://ds")? == "a\n", "the rest");
    Ok(())
}

#[test]
fn put_takes_more_named_files_than_file_descriptors() -> Result<()> {
    let scene = Scene::new()?;
    let names: Vec<String> = (0..600).map(|number| format!("src/{number}")).collect();
    for name in &names {
        folder::write(&scene.path(""), name, name)?;
    }
    let put = scene.command(["put"])?;
    let mut few = Command::new("sh");
    few.args(["-c", "ulimit -n 128; exec \"$@\"", "sh"]).arg(put.get_program());
    few.args(put.get_args()).args(&names).arg("dl://ds").current_dir(scene.path(""));
    run(&mut few)?.code(0)?;
    ensure!(scene.listed("dl://ds")?.lines().count() == names.len(), "the count of stored files");
    Ok(())
}
