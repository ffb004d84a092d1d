//! A question to an HTTP port, as a script asks it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::Deadline;

use crate::cluster::clock;

/// How long an answer may take to become another one.
const PATIENCE: Duration = Duration::from_secs(30);

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

/// Asks how a server is until it says so: what it said before holds for a second, and on a machine that is
/// busy a store may not answer in time once.
///
/// # Errors
/// With what it says when that does not happen within half a minute.
pub fn becomes(address: &str, is_so: impl Fn(u16, &str) -> bool) -> Result<()> {
    let deadline = Deadline::after(&*clock(), PATIENCE);
    loop {
        let (status, text) = get(address, "/healthz")?;
        if is_so(status, &text) {
            return Ok(());
        }
        ensure!(!deadline.remaining(&*clock()).is_zero(), "it says {status} {text}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The same for a server that is to be well.
///
/// # Errors
/// As [`becomes`].
pub fn becomes_well(address: &str) -> Result<()> {
    becomes(address, |status, text| (status, text) == (200, "ok\n"))
}

/// What a server's /metrics says of a sample, such as a counter without labels.
///
/// # Errors
/// As [`get`], and when there is no such sample.
pub fn sample(address: &str, name: &str) -> Result<f64> {
    let (_, text) = get(address, "/metrics")?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.with_context(|| format!("no {name} in {text}"))?;
    value.parse().with_context(|| format!("{name} is {value}"))
}
