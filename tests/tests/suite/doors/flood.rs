//! Thousands of idle connections, and slow connections that send single bytes.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::cluster::clock;
use dl_tests::http::{becomes_well, get};
use dl_tests::program::{Server, dl};
use dl_tests::scene::Scene;
use dl_tests::{rounds, tell};

/// The bytes sent one by one: beginnings of HTTP/2, of an HTTP/2 request, of HTTP/1.
const BEGINNINGS: [&[u8]; 3] = [
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\x40\0\x01\0\0\0\0\x01\x83\x86",
    b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Slow: ",
];

/// Keeps S-16, S-10 and S-66.
#[test]
fn thousands_of_idle_connections_block_no_client_heavy() -> Result<()> {
    let (_scene, server) = Scene::with_a_file()?;
    let (grpc, http) = (server.address().to_owned(), server.http().to_owned());
    let mut idle = Vec::new();
    for number in 0..rounds(3_000, 9_000) {
        let address = if number % 2 == 0 { &grpc } else { &http };
        let mut stream = TcpStream::connect(address).context("connect")?;
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        if number % 3 > 0 {
            // The server may have closed the connection.
            let _ = stream.write_all(BEGINNINGS[number / 2 % BEGINNINGS.len()]);
        }
        idle.push(stream);
    }
    let is_over = AtomicBool::new(false);
    let slowest = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for stream in idle.iter_mut().rev().take(500) {
                    let _ = stream.write_all(b"x");
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let asked = ask_all(&server);
        is_over.store(true, Ordering::Relaxed);
        asked
    })?;
    ensure!(slowest < Duration::from_secs(5), "a request waited for {slowest:?}");
    server.check_memory("server")?;
    tell(format_args!("{} connections, slowest answer {slowest:?}", idle.len()));
    let (_, text) = get(&http, "/metrics")?;
    ensure!(text.contains("diesel_connections{state=\"new\"} "), "{text}");
    drop(idle);
    server.stop().map(drop)
}

/// Sends requests to both ports during the flood; returns the longest wait.
fn ask_all(server: &Server) -> Result<Duration> {
    let clock = clock();
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        let began = clock.monotonic();
        ensure!(dl(server, ["cat", "dl://ds/a"])?.code(0)?.text() == "a file", "cat");
        becomes_well(server.http())?;
        slowest = slowest.max(clock.monotonic() - began);
        std::thread::sleep(Duration::from_millis(300));
    }
    Ok(slowest)
}
