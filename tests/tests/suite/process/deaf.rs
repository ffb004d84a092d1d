//! Readers that never look at their sockets, spoken in HTTP/2 frames by hand: a client library takes
//! what comes, if only to lay it aside.

#![expect(clippy::big_endian_bytes, reason = "the numbers in HTTP/2 frames are big-endian")]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use dl_format::DatasetId;
use dl_proto::pb::{self, read_item::Source};
use dl_server::Limits;
use dl_tests::cluster::clock;
use prost::Message;

use super::readers::impatient;
use super::stalled::headers;

/// Less than the time after which HTTP/2 gives up who answers no ping.
const PATIENCE: Duration = Duration::from_secs(15);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn whole_file(path: &'static str) -> pb::ReadItem {
    let source = Some(Source::Path(Bytes::from_static(path.as_bytes())));
    pb::ReadItem { source, ..pb::ReadItem::default() }
}

/// Asks for a file very often, with windows that hold all of it, and takes not a byte.
fn ask(address: SocketAddr, dataset: DatasetId) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    let dataset = Bytes::copy_from_slice(dataset.as_bytes());
    let items = vec![whole_file("a"); 100];
    let request = pb::ReadRequest { dataset, items, check_copies: false }.encode_to_vec();
    let message = [&[0][..], &(request.len() as u32).to_be_bytes(), &request].concat();
    let window = [&[0, 4][..], &0x7fff_ffff_u32.to_be_bytes()].concat();
    let frames = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &window),
        frame(8, 0, 0, &0x7fff_0000_u32.to_be_bytes()),
        frame(1, 4, 1, &headers("/diesel.v1.Diesel/Read")),
        frame(0, 1, 1, &message),
    ];
    stream.write_all(&frames.concat())?;
    Ok(stream)
}

/// Keeps S-16: also with answers to its pings under way, which a server sends before it reads on.
#[tokio::test(flavor = "multi_thread")]
async fn readers_that_never_look_at_their_sockets_lose_their_memory_to_others() -> Result<()> {
    let bytes = vec![7; 600_000];
    let limits = Limits { read_bytes: 4 << 20, ..Limits::default() };
    let (server, honest, dataset) = impatient(limits, &bytes).await?;
    // Together they have all the memory for reads.
    let mut deaf = vec![ask(server.address(), dataset)?, ask(server.address(), dataset)?];
    let until = clock().monotonic() + PATIENCE;
    while !deaf.is_empty() {
        ensure!(clock().monotonic() < until, "{} of them are still there", deaf.len());
        clock().sleep(Duration::from_millis(50)).await;
        deaf.retain_mut(|stream| stream.write_all(&frame(6, 0, 0, &[7; 8])).is_ok());
    }
    let request = pb::ReadRequest {
        dataset: Bytes::copy_from_slice(dataset.as_bytes()),
        items: vec![whole_file("a")],
        check_copies: false,
    };
    let mut answer = honest.stub().read(request).await?.into_inner();
    let mut came = 0;
    while let Some(reply) = answer.message().await? {
        came += reply.pieces.iter().map(|piece| piece.data.len()).sum::<usize>();
    }
    ensure!(came == bytes.len(), "{came} bytes");
    Ok(())
}
