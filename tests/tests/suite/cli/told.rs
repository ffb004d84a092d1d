//! Error messages for probable mistakes.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use dl_tests::program::{Process, dlcmd, run, run_with_stdin};
use dl_tests::{folder, skip};

use super::common::Scene;

#[test]
fn get_of_a_folder_onto_a_file_names_the_remedy() -> Result<()> {
    let scene = Scene::with(&[("a", "1")])?;
    fs::write(scene.path("plain"), "as it was")?;
    for target in ["plain", "plain/below"] {
        let refused = scene.dl(["get", "dl://ds", target])?.code(1)?;
        ensure!(refused.stderr.contains("plain is a file"), "{}", refused.stderr);
        ensure!(refused.stderr.contains("move it away"), "{}", refused.stderr);
    }
    ensure!(fs::read(scene.path("plain"))? == b"as it was", "the file was changed");
    Ok(())
}

#[test]
fn put_from_an_address_is_wrong_usage_and_names_get() -> Result<()> {
    let scene = Scene::with(&[("a", "1")])?;
    let refused = scene.dl(["put", "dl://ds", "dl://copy"])?.code(2)?;
    ensure!(refused.stderr.contains("dlcmd get"), "{}", refused.stderr);
    scene.dl(["ls", "dl://copy"])?.code(3)?;
    Ok(())
}

#[test]
fn a_variable_without_utf_8_is_refused_by_name() -> Result<()> {
    for name in ["DIESEL_SERVER", "DIESEL_USER", "DIESEL_KEY"] {
        let value = OsStr::from_bytes(b"127.0.0.1:1\xff");
        let refused = run(dlcmd()?.args(["ls", "dl://ds"]).env(name, value))?.code(2)?;
        ensure!(refused.stderr.contains(name), "{}", refused.stderr);
        ensure!(!refused.stderr.contains("127.0.0.1"), "{}", refused.stderr);
    }
    Ok(())
}

#[test]
fn an_unsupported_time_is_reported_once() -> Result<()> {
    let scene = Scene::with(&[("a", "1")])?;
    let year_2300 = SystemTime::UNIX_EPOCH + Duration::from_secs(330 * 365 * 24 * 60 * 60);
    for name in ["far/b", "far/c"] {
        folder::write(&scene.path(""), name, name)?;
        fs::File::open(scene.path(name))?.set_modified(year_2300)?;
        if fs::metadata(scene.path(name))?.modified()? != year_2300 {
            return skip("the file system here keeps no such time");
        }
    }
    let put = scene.dl(["put", "far", "dl://far"])?.code(0)?;
    ensure!(put.stderr.matches("2262").count() == 1, "{}", put.stderr);
    Ok(())
}

#[test]
fn wrong_usage_ends_with_2_and_shows_the_required_words() -> Result<()> {
    for (arguments, usage) in [
        (&["cat"][..], "Usage: dlcmd cat <dl://DS/PATH>"),
        (&["recover"], "<dl://DS|--all>"),
        (&["recover", "--all", "dl://one"], "<dl://DS|--all>"),
        (&["purge"], "<dl://DS|--all>"),
        (&["purge", "--all", "dl://one"], "<dl://DS|--all>"),
    ] {
        let refused = run(dlcmd()?.args(arguments))?.code(2)?;
        ensure!(refused.stderr.contains(usage) && refused.stdout.is_empty(), "{refused:?}");
    }
    Ok(())
}

#[test]
fn a_foreign_server_is_recognized() -> Result<()> {
    let answers: [&'static [u8]; 4] = [
        b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
        b"<html>no HTTP at all</html>",
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
        b"-ERR unknown command 'PRI'\r\n",
    ];
    for answer in answers {
        let other = TcpListener::bind("127.0.0.1:0")?;
        let address = other.local_addr()?.to_string();
        std::thread::spawn(move || {
            for mut stream in other.incoming().flatten() {
                // dlcmd may close the connection early.
                let _ = stream.read(&mut [0; 24]);
                let _ = stream.write_all(answer);
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            }
        });
        let asked = run(dlcmd()?.args(["--server", &address, "ls", "dl://ds"]))?.code(5)?;
        ensure!(asked.stderr.contains("this is no dlserver"), "{}", asked.stderr);
    }
    Ok(())
}

#[test]
fn addresses_of_servers_may_have_spaces_between_them() -> Result<()> {
    let scene = Scene::with(&[("a", "1")])?;
    let address = scene.server.address();
    let servers = format!(" {address}, {address} ");
    run(dlcmd()?.args(["--server", &servers, "ls", "dl://ds"]))?.code(0)?;
    run(dlcmd()?.args(["ls", "dl://ds"]).env("DIESEL_SERVER", &servers))?.code(0)?;
    for empty in ["", " ", "a:1,", "a:1, ,b:1"] {
        run(dlcmd()?.args(["--server", empty, "ls", "dl://ds"]))?.code(2)?;
        run(dlcmd()?.args(["ls", "dl://ds"]).env("DIESEL_SERVER", empty))?.code(2)?;
    }
    Ok(())
}

#[test]
fn a_list_of_which_nothing_is_there_makes_no_dataset() -> Result<()> {
    let scene = Scene::new()?;
    scene.write("a", "1")?;
    let mut put = scene.command(["put", "-", "dl://ds"])?;
    let missing = run_with_stdin(&mut put, b"src/none\nsrc/neither\n")?.code(4)?;
    ensure!(missing.stderr.contains("src/neither"), "{}", missing.stderr);
    scene.dl(["ls", "dl://ds"])?.code(3)?;
    // Existing files are stored, missing files are named.
    let mut put = scene.command(["put", "-", "dl://ds"])?;
    let partly = run_with_stdin(&mut put, b"src/none\nsrc/a\n")?.code(4)?;
    ensure!(partly.stderr.contains("src/none"), "{}", partly.stderr);
    ensure!(scene.listed("dl://ds")? == "src/a\n", "the rest");
    // A closed stdout does not change the result.
    let mut put = scene.command(["put", "-", "dl://ds"])?;
    put.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut put = put.spawn()?;
    drop(put.stdout.take());
    put.stdin.take().context("stdin is a pipe")?.write_all(b"src/none\nsrc/a\n")?;
    let ended = put.wait()?;
    ensure!(ended.code() == Some(4), "{ended:?}");
    Ok(())
}

#[test]
fn a_put_reports_the_deletion_of_its_dataset() -> Result<()> {
    let scene = Scene::new()?;
    scene.write("small", "1")?;
    fs::File::create(scene.path("src/zeros"))?.set_len(40 << 30)?;
    let errors = scene.path("errors");
    let mut put = scene.command(["put", "src", "dl://ds"])?;
    let mut put = Process::start(put.stdout(Stdio::null()).stderr(fs::File::create(&errors)?))?;
    let is_there = || Ok::<_, anyhow::Error>(scene.dl(["datasets"])?.text() == "ds\n");
    for _ in 0..100 {
        if is_there()? {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(300));
    scene.dl(["delete-dataset", "dl://ds"])?.code(0)?;
    let code = put.wait(Duration::from_secs(30))?;
    let said = fs::read_to_string(errors)?;
    ensure!(code == 3 && said.contains("dl://ds was deleted meanwhile"), "{code}: {said}");
    ensure!(!said.contains("recover") && !said.contains("goes on from there"), "{said}");
    Ok(())
}

#[test]
fn a_full_stdout_is_a_failure_for_help_and_version_as_well() -> Result<()> {
    for arguments in
        [&["--help"][..], &["ls", "--help"], &["-V"], &["man"], &["completions", "zsh"]]
    {
        let full = fs::File::options().write(true).open("/dev/full")?;
        let mut command = dlcmd()?;
        let child = command.args(arguments).stdout(full).stderr(Stdio::piped()).spawn()?;
        let ended = child.wait_with_output()?;
        ensure!(ended.status.code() == Some(1), "{arguments:?}: {ended:?}");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(said.contains("No space left"), "{arguments:?}: {said}");
        // A closed pager is no failure.
        let mut command = dlcmd()?;
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        drop(child.stdout.take());
        let ended = child.wait_with_output()?;
        ensure!(ended.status.success() && ended.stderr.is_empty(), "{arguments:?}: {ended:?}");
    }
    Ok(())
}
