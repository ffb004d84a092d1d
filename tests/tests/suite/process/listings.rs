//! Long listings, listings of long paths, and listings without a reader.

use std::io::Read;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use dl_tests::program::{Server, dl, run};
use dl_tests::{folder, tell};

/// More files than fit into a message with paths of this length.
const FILES: usize = 4_500;

/// Keeps S-08 and S-10: with concurrent listings whose readers pause.
#[test]
fn heavy_many_long_paths_need_bounded_memory() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let mut server = Server::start(&scene.path().join("data"))?;
    let source = scene.path().join("src");
    for number in 0..FILES {
        folder::write(&source, format!("{}{number:05}", "m".repeat(200)), "x")?;
    }
    let deep = vec!["d".repeat(255); 15].join("/");
    run(server.dlcmd()?.arg("put").arg(&source).arg(format!("dl://long/{deep}")))?.code(0)?;
    let listed = dl(&server, ["ls", "-R", "dl://long"])?.code(0)?.text();
    ensure!(listed.lines().count() == FILES, "{} lines", listed.lines().count());
    let measured = dl(&server, ["du", "dl://long"])?.code(0)?.text();
    ensure!(measured.contains(&FILES.to_string()), "{measured}");

    let mut waiting = Vec::new();
    for number in 0..40 {
        // A pipe without a reader stops the listing.
        let mut command = server.dlcmd()?;
        command.args(["ls", "-lR", "dl://long"]).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start listing {number}"))?;
        waiting.push((child.stdout.take().context("a pipe")?, child));
    }
    std::thread::sleep(std::time::Duration::from_secs(3));
    let readers: Vec<_> = waiting
        .into_iter()
        .map(|(mut pipe, mut child)| {
            std::thread::spawn(move || -> Result<usize> {
                let mut text = String::new();
                pipe.read_to_string(&mut text)?;
                ensure!(child.wait()?.success(), "a listing failed");
                Ok(text.lines().count())
            })
        })
        .collect();
    for reader in readers {
        let lines = reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
        ensure!(lines == FILES, "{lines} lines");
    }
    let peak = server.process().peak_memory().context("the server runs")?;
    tell(format_args!("dlserver with 40 listings of long paths: at most {} MiB", peak >> 20));
    ensure!(peak < 256 << 20, "{} MiB", peak >> 20);

    dl(&server, ["rm", "-r", &format!("dl://long/{}", "d".repeat(255))])?.code(0)?;
    ensure!(dl(&server, ["ls", "-R", "dl://long"])?.code(0)?.stdout.is_empty(), "after rm -r");
    Ok(())
}
