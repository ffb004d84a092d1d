//! GET requests to a server's HTTP port.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::Deadline;

use crate::cluster::clock;

/// The longest wait for an expected answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The status and the body of a GET.
///
/// # Errors
/// When the server does not answer within 15 seconds.
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

/// Repeats `GET /healthz` until `is_so` accepts the answer. A server caches its health for a
/// second, and a store on a busy machine may time out.
///
/// # Errors
/// With the last answer, when `is_so` accepts none within half a minute.
pub fn becomes(address: &str, is_so: impl Fn(u16, &str) -> bool) -> Result<()> {
    let deadline = Deadline::after(&*clock(), PATIENCE);
    loop {
        let (status, text) = get(address, "/healthz")?;
        if is_so(status, &text) {
            return Ok(());
        }
        ensure!(
            !deadline.remaining(&*clock()).is_zero(),
            "GET /healthz still answers {status} {text}"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Waits until the server reports good health.
///
/// # Errors
/// As [`becomes`].
pub fn becomes_well(address: &str) -> Result<()> {
    becomes(address, |status, text| (status, text) == (200, "ok\n"))
}

/// The value of a sample in `/metrics`, for example of a counter without labels.
///
/// # Errors
/// As [`get`], or when the sample is missing.
pub fn sample(address: &str, name: &str) -> Result<f64> {
    let (_, text) = get(address, "/metrics")?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.with_context(|| format!("no {name} in {text}"))?;
    value.parse().with_context(|| format!("{name} is {value}"))
}
