//! GET requests to a server's HTTP port.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::soon;

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
/// With the last answer, when `is_so` accepts none within a minute.
pub fn becomes(address: &str, is_so: impl Fn(u16, &str) -> bool) -> Result<()> {
    let mut last = None;
    let became = soon("the health changes", || {
        let (status, text) = last.insert(get(address, "/healthz")?);
        Ok(is_so(*status, text))
    });
    became.with_context(|| format!("GET /healthz still answers {last:?}"))
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
