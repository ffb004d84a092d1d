//! The HTTP/2 settings of both ends: the largest frame, and the window before the first read.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_proto::{
    CLIENT_WINDOW_BYTES, FRAME_BYTES, SERVER_FRAME_BYTES, SERVER_STREAM_WINDOW_BYTES,
    SERVER_WINDOW_BYTES, STREAM_WINDOW_BYTES,
};
use dl_server::Limits;
use dl_tests::cluster::{Running, in_memory};
use libdiesel::{Client, ConnectOptions};
use tokio::runtime::Runtime;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types and settings (RFC 9113, 6).
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;

/// The default window of a connection.
const FIRST_WINDOW: u32 = 65_535;

/// The time limit for the other end's settings.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, PartialEq)]
struct Sizes {
    frame: u32,
    stream_window: u32,
    window: u32,
}

/// Reads the settings of the other end.
#[expect(clippy::big_endian_bytes, reason = "so HTTP/2 has it")]
fn announced(from: &mut TcpStream) -> Result<Sizes> {
    let (mut settings, mut window) = (BTreeMap::new(), None);
    while settings.is_empty() || window.is_none() {
        let mut head = [0; 9];
        from.read_exact(&mut head).with_context(|| format!("after {settings:?}, {window:?}"))?;
        let [a, b, c, kind, _, stream @ ..] = head;
        let mut body = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        from.read_exact(&mut body)?;
        if kind == SETTINGS {
            for setting in body.as_chunks::<6>().0 {
                let [a, b, value @ ..] = *setting;
                settings.insert(u16::from_be_bytes([a, b]), u32::from_be_bytes(value));
            }
        } else if kind == WINDOW_UPDATE && stream == [0; 4] {
            let more = u32::from_be_bytes(body.as_slice().try_into()?);
            window = Some(FIRST_WINDOW + more);
        }
    }
    let setting = |id| settings.get(&id).copied().with_context(|| format!("setting {id}"));
    Ok(Sizes {
        frame: setting(MAX_FRAME_SIZE)?,
        stream_window: setting(INITIAL_WINDOW_SIZE)?,
        window: window.context("a window")?,
    })
}

#[test]
fn a_server_announces_the_sizes_of_a_server() -> Result<()> {
    let runtime = Runtime::new()?;
    let (server, _) = runtime.block_on(Running::fresh(in_memory(Limits::default())))?;
    let mut client = TcpStream::connect(server.address())?;
    client.set_read_timeout(Some(TIMEOUT))?;
    client.write_all(PREFACE)?;
    client.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])?;
    let sizes = announced(&mut client)?;
    let wanted = Sizes {
        frame: SERVER_FRAME_BYTES,
        stream_window: SERVER_STREAM_WINDOW_BYTES,
        window: SERVER_WINDOW_BYTES,
    };
    ensure!(sizes == wanted, "{sizes:?}");
    Ok(())
}

#[test]
fn a_client_announces_the_sizes_of_a_client() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let options = ConnectOptions {
        servers: vec![listener.local_addr()?.to_string()],
        request_timeout: Duration::from_secs(1),
        ..ConnectOptions::default()
    };
    // The connection gets no answer, and the test does not wait for the client.
    std::thread::spawn(|| Client::connect(options));
    let (mut server, _) = listener.accept()?;
    server.set_read_timeout(Some(TIMEOUT))?;
    let mut preface = [0; PREFACE.len()];
    server.read_exact(&mut preface)?;
    ensure!(preface == PREFACE, "{preface:?}");
    let sizes = announced(&mut server)?;
    let wanted = Sizes {
        frame: FRAME_BYTES,
        stream_window: STREAM_WINDOW_BYTES,
        window: CLIENT_WINDOW_BYTES,
    };
    ensure!(sizes == wanted, "{sizes:?}");
    Ok(())
}
