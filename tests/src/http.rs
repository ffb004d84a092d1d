//! A question to an HTTP port, as a script asks it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};

/// The status and the body that a GET is answered with.
///
/// # Errors
/// When nobody answers within 15 seconds.
pub fn get(address: &str, path: &str) -> Result<(u16, String)> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(15)))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).with_context(|| format!("read http://{address}{path}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a head")?;
    let status = head.split(' ').nth(1).context("an answer has a status")?.parse()?;
    Ok((status, body.to_owned()))
}
