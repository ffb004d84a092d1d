//! Clients that never read their sockets, written as raw HTTP/2 frames: a client library always
//! reads, and answers pings.

#![expect(clippy::big_endian_bytes, reason = "the numbers in HTTP/2 frames are big-endian")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use dl_format::{DatasetId, FilePath};
use dl_proto::pb::{self, read_item::Source};
use dl_server::Limits;
use dl_tests::cluster::clock;
use dl_tests::http::sample;
use dl_tests::program::{Server, dl};
use dl_tests::scene::Scene;
use dl_tests::soon;
use prost::Message;

use super::readers::impatient;
use super::stalled::{PREFACE, frame, headers};

/// Less than the HTTP/2 ping time-out.
const TIMEOUT: Duration = Duration::from_secs(15);

/// A silent client gets a ping after this time, and is closed after the same time again.
const PING: Duration = Duration::from_secs(20);

/// Requests a file many times with large windows, and reads nothing.
fn ask(address: SocketAddr, dataset: DatasetId) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    let dataset = Bytes::copy_from_slice(dataset.as_bytes());
    let source = Some(Source::Path(Bytes::from_static(b"a")));
    let items = vec![pb::ReadItem { source, ..Default::default() }; 100];
    let request = pb::ReadRequest { dataset, items, ..Default::default() }.encode_to_vec();
    let message = [&[0][..], &(request.len() as u32).to_be_bytes(), &request].concat();
    let window = [&[0, 4][..], &0x7fff_ffff_u32.to_be_bytes()].concat();
    let frames = [
        PREFACE.to_vec(),
        frame(4, 0, 0, &window),
        frame(8, 0, 0, &0x7fff_0000_u32.to_be_bytes()),
        frame(1, 4, 1, &headers("/diesel.v1.Diesel/Read")),
        frame(0, 1, 1, &message),
    ];
    stream.write_all(&frames.concat())?;
    Ok(stream)
}

/// Keeps S-16: with ping answers of the server in flight, which come before the next read.
#[tokio::test(flavor = "multi_thread")]
async fn readers_with_idle_sockets_lose_their_memory() -> Result<()> {
    let bytes = vec![7; 600_000];
    let limits = Limits { read_bytes: 4 << 20, ..Limits::default() };
    let (server, honest, dataset) = impatient(limits, &bytes).await?;
    // Both connections together hold all the memory for reads.
    let mut deaf = vec![ask(server.address(), dataset)?, ask(server.address(), dataset)?];
    let until = clock().monotonic() + TIMEOUT;
    while !deaf.is_empty() {
        ensure!(clock().monotonic() < until, "{} of them are still there", deaf.len());
        clock().sleep(Duration::from_millis(50)).await;
        deaf.retain_mut(|stream| stream.write_all(&frame(6, 0, 0, &[7; 8])).is_ok());
    }
    let read = honest.read(dataset, &[FilePath::new("a")?]).await?;
    ensure!(read == [Some(bytes)], "other bytes");
    Ok(())
}

/// The count of open connections with requests.
fn known(server: &Server) -> Result<f64> {
    sample(server.http(), "diesel_connections{state=\"known\"}")
}

/// Keeps S-16: a client whose host was switched off, without a closed connection. The test waits 40
/// seconds.
#[test]
fn a_client_without_ping_answers_is_given_up() -> Result<()> {
    let (_scene, server) = Scene::with_a_file()?;
    let mut silent = TcpStream::connect(server.address())?;
    silent.set_read_timeout(Some(Duration::from_secs(5)))?;
    // A first request, so that the connection may stay.
    let frames = [
        PREFACE.to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &headers("/diesel.v1.Diesel/ListDatasets")),
        frame(0, 1, 1, &[0; 5]),
    ];
    let (clock, pause) = (clock(), Duration::from_millis(500));
    let began = clock.monotonic();
    silent.write_all(&frames.concat())?;
    soon("the second client is let in", || Ok(known(&server)? > 0.0))?;
    let took = loop {
        ensure!(dl(&server, ["cat", "dl://ds/a"])?.code(0)?.text() == "a file", "cat");
        // The second client has left again.
        std::thread::sleep(pause);
        let (open, took) = (known(&server)?, clock.monotonic() - began);
        if open == 0.0 {
            break took;
        }
        ensure!(took < 3 * PING, "{open} connections after {took:?}");
    };
    ensure!(took > 3 * PING / 2, "the connection was closed too soon, after {took:?}");
    let mut came = Vec::new();
    silent.read_to_end(&mut came).context("read to the end of the connection")?;
    // The beginning of a ping frame.
    let ping = [0_u8, 0, 8, 6, 0, 0, 0, 0, 0];
    ensure!(
        came.windows(ping.len()).any(|bytes| bytes == ping),
        "the client received no ping: {came:?}"
    );
    server.stop()?;
    Ok(())
}
