//! Servers and clients whose clocks are minutes apart, as processes of their own, over a Redis
//! Cluster and a bucket.
//!
//! Must hold: which of two writes wins, and what a recovery brings back, is the same as with one
//! clock.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use dl_meta::redis_testing::Cluster;
use dl_tests::program::{Server, dlcmd, run};
use dl_tests::rounds;
use dl_tests::s3::{Kind, S3, settings};
use tokio::runtime::Runtime;

/// Shifts what a process is told of the time of day.
const SHIFT: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int ended = next(clock, at);
    const char *off = getenv("CLOCK_OFF");
    if (!ended && clock == CLOCK_REALTIME && off) at->tv_sec += atol(off);
    return ended;
}
"#;

/// Seconds by which the clocks of the servers and of the clients are off. Client and server may be
/// 15 minutes apart.
const SERVERS: [i32; 2] = [420, -400];
const CLIENTS: [i32; 2] = [-440, 430];

/// The shift as a library; it needs the C compiler that the build needs, too.
fn shift(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("shift.c"), folder.join("shift.so"));
    fs::write(&source, SHIFT)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(&source).arg("-ldl");
    run(&mut compiler)?.code(0)?;
    Ok(library)
}

fn off(library: &Path, seconds: i32) -> Vec<(String, String)> {
    let variables =
        [("LD_PRELOAD", library.display().to_string()), ("CLOCK_OFF", seconds.to_string())];
    variables.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// Keeps S-17, S-22, S-01 and S-02.
#[test]
fn clocks_of_servers_and_clients_are_minutes_apart_while_redis_is_emptied() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let library = shift(scene.path())?;
    let runtime = Runtime::new()?;
    let redis = runtime.block_on(Cluster::start(3, 0));
    let bucket = S3::start(Kind::S3sFs)?;
    let store = bucket.fresh();
    let start = |(number, seconds): (usize, i32)| {
        let data = scene.path().join(format!("data{number}"));
        let flags = ["--meta", &redis.url(), "--store", &store];
        let set = [settings(bucket.address()), off(&library, seconds)].concat();
        Server::start_among(&data, "127.0.0.1:0", &flags, &set)
    };
    let servers = SERVERS.into_iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
    let told = |number: usize, arguments: &[&str]| {
        let mut command = dlcmd()?;
        command.envs(off(&library, CLIENTS[number % 2]));
        // Each client asks each server in turn.
        run(command.args(["--server", servers[number / 2 % 2].address()]).args(arguments))
    };
    let file = scene.path().join("file");
    let path = file.display().to_string();
    let read =
        |number| -> Result<String> { Ok(told(number, &["cat", "dl://ds/file"])?.code(0)?.text()) };
    for turn in 0..rounds(12, 60) {
        let (is_deleted, text) = (turn % 5 == 4, "x".repeat(turn + 1));
        if is_deleted {
            told(turn, &["rm", "dl://ds/file"])?.code(0)?;
        } else {
            fs::write(&file, &text)?;
            told(turn, &["put", &path, "dl://ds"])?.code(0)?;
        }
        if turn % 4 == 3 {
            match turn % 8 {
                3 => runtime.block_on(redis.flush()),
                _ => {
                    redis.servers()[turn % 3].kill();
                    runtime.block_on(redis.servers()[turn % 3].run());
                }
            }
            told(turn + 1, &["recover", "--all"])?.code(0)?;
        }
        for reader in [0, 2] {
            if is_deleted {
                told(reader, &["cat", "dl://ds/file"])?.code(3)?;
            } else {
                let there = read(reader)?;
                ensure!(there == text, "{turn}: the file has {} bytes", there.len());
            }
        }
    }
    Ok(())
}
