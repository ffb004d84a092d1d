//! A faulty HTTP/1.1 proxy between a store and a real S3 server.
//!
//! Must hold: the faults depend only on the plan in the handles. A request is forwarded completely
//! and once, or not at all. Writes are forwarded in sequence, because the test servers check and
//! apply a conditional create in two steps.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dl_runtime::fault::{Fault, Faults, Rates};
use dl_runtime::{Clock, Random, SystemClock, locked};
use dl_store::Throttle;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::listen::Listening;
use crate::point::KillPoint;

/// The reply in place of the answer. [`Fault::Before`]: the request was not forwarded;
/// [`Fault::AnswerLost`]: the server has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultyAnswer {
    /// 500 Internal Server Error.
    Internal,
    /// 503 Slow Down.
    SlowDown,
    /// A closed connection.
    Dropped,
    /// The first half of the answer, then a closed connection; nothing where no answer exists.
    Cut,
    /// The first half of the answer, then silence.
    Stalled(Duration),
}

/// The proxy, stopped on drop. Fault plans are per method: `GET` (with `HEAD` and listings), `PUT`,
/// `DELETE`.
#[derive(Debug)]
pub struct Proxy {
    listening: Listening,
    faults: Faults<FaultyAnswer>,
    throttle: Arc<Mutex<Throttle>>,
    forgets: Arc<AtomicBool>,
    failed: Arc<AtomicU64>,
    point: KillPoint,
}

impl Proxy {
    /// Listens on a free port and forwards to `upstream`.
    ///
    /// # Errors
    /// When the port or the thread can't be had.
    pub fn start(upstream: SocketAddr, random: Arc<dyn Random>) -> Result<Self> {
        let (faults, throttle) = (Faults::new(random), Arc::<Mutex<Throttle>>::default());
        let (forgets, point) = (Arc::<AtomicBool>::default(), KillPoint::default());
        let failed = Arc::<AtomicU64>::default();
        let passing = Arc::new(Passing {
            upstream,
            faults: faults.clone(),
            throttle: Arc::clone(&throttle),
            forgets: Arc::clone(&forgets),
            failed: Arc::clone(&failed),
            point: point.clone(),
            clock: SystemClock::new(),
            line: Mutex::default(),
            writes: Semaphore::new(1),
        });
        let listening = Listening::start(move |client| {
            let passing = Arc::clone(&passing);
            async move {
                // A failed connection just ends, as on a bad network.
                let _ = passing.serve(client).await;
            }
        })?;
        Ok(Self { listening, faults, throttle, forgets, failed, point })
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// The plan of faults.
    pub fn faults(&self) -> &Faults<FaultyAnswer> {
        &self.faults
    }

    /// Sets the fault rates of all methods.
    pub fn set_rates(&self, rates: Option<Rates<FaultyAnswer>>) {
        for method in ["GET", "PUT", "DELETE"] {
            self.faults.set_rates(method, rates);
        }
    }

    /// Requests whose answer was replaced.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// The point that kills a process at a chosen write.
    pub fn point(&self) -> &KillPoint {
        &self.point
    }

    /// Forwards writes without their conditions from now on, as to a server without conditional
    /// writes.
    pub fn forget_conditions(&self) {
        self.forgets.store(true, Ordering::Relaxed);
    }

    /// Sets the latency of each request and the bandwidth of all bodies together.
    pub fn set_throttle(&self, throttle: Throttle) {
        *locked(&self.throttle) = throttle;
    }
}

#[derive(Debug)]
struct Passing {
    upstream: SocketAddr,
    faults: Faults<FaultyAnswer>,
    throttle: Arc<Mutex<Throttle>>,
    forgets: Arc<AtomicBool>,
    failed: Arc<AtomicU64>,
    point: KillPoint,
    clock: SystemClock,
    line: Mutex<Duration>,
    writes: Semaphore,
}

impl Passing {
    /// Serves the only request of a connection: each answer closes the connection.
    async fn serve(&self, mut client: TcpStream) -> Result<()> {
        let mut request = read_request(&mut client).await?;
        if self.forgets.load(Ordering::Relaxed) {
            forget(&mut request);
        }
        let method = match request.split(|byte| *byte == b' ').next() {
            Some(b"PUT") => "PUT",
            // Azure deletes in batches.
            Some(b"DELETE" | b"POST") => "DELETE",
            _ => "GET",
        };
        let throttle = *locked(&self.throttle);
        self.clock.sleep(throttle.latency).await;
        let fault = self.faults.next(method);
        let answer = match fault {
            Some(Fault::Before(_)) => Vec::new(),
            Some(Fault::Delay(delay)) => {
                self.clock.sleep(delay).await;
                self.pass_on(method, &request).await?
            }
            Some(Fault::AnswerLost(_)) | None => self.pass_on(method, &request).await?,
        };
        self.transfer(throttle, (request.len() + answer.len()) as u64).await;
        match fault {
            Some(Fault::Before(instead) | Fault::AnswerLost(instead)) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                self.answer(&mut client, instead, &answer).await
            }
            Some(Fault::Delay(_)) | None => Ok(client.write_all(&answer).await?),
        }
    }

    async fn pass_on(&self, method: &str, request: &[u8]) -> Result<Vec<u8>> {
        if method == "GET" {
            return self.exchange(request).await;
        }
        let _alone = self.writes.acquire().await?;
        let number = self.point.begin().context("the process was killed before this write")?;
        let answer = self.exchange(request).await?;
        ensure!(self.point.end(number), "the process was killed after this write");
        Ok(answer)
    }

    async fn exchange(&self, request: &[u8]) -> Result<Vec<u8>> {
        let mut server = TcpStream::connect(self.upstream).await?;
        let line = request.windows(2).position(|two| two == b"\r\n").context("a request line")?;
        let (line, rest) = request.split_at(line);
        server.write_all(line).await?;
        server.write_all(b"\r\nConnection: close").await?;
        // A server that refuses a head may close before the end of the body; its answer still
        // counts.
        let _ = server.write_all(rest).await;
        let mut answer = Vec::new();
        match server.read_to_end(&mut answer).await {
            // A server may reset the connection after its answer.
            Err(error) if error.kind() != ErrorKind::ConnectionReset => bail!(error),
            _ => Ok(answer),
        }
    }

    async fn answer(
        &self,
        client: &mut TcpStream,
        instead: FaultyAnswer,
        answer: &[u8],
    ) -> Result<()> {
        let half = answer.get(..answer.len() / 2).unwrap_or_default();
        match instead {
            FaultyAnswer::Internal => client.write_all(&error("500 Internal Server Error")).await?,
            FaultyAnswer::SlowDown => client.write_all(&error("503 Slow Down")).await?,
            FaultyAnswer::Dropped => {}
            FaultyAnswer::Cut => client.write_all(half).await?,
            FaultyAnswer::Stalled(silence) => {
                client.write_all(half).await?;
                client.flush().await?;
                self.clock.sleep(silence).await;
            }
        }
        Ok(())
    }

    /// Waits for the bandwidth that all bodies share.
    async fn transfer(&self, throttle: Throttle, bytes: u64) {
        let Some(rate) = throttle.bytes_per_second else { return };
        let now = self.clock.monotonic();
        let free_at = {
            let mut line = locked(&self.line);
            *line = now.max(*line) + Duration::from_secs_f64(bytes as f64 / rate.get() as f64);
            *line
        };
        self.clock.sleep(free_at.saturating_sub(now)).await;
    }
}

/// Disables the condition: overwrites the name of its header.
fn forget(request: &mut [u8]) {
    const CONDITION: &[u8] = b"if-none-match:";
    let found =
        request.windows(CONDITION.len()).position(|window| window.eq_ignore_ascii_case(CONDITION));
    if let Some(name) = found.and_then(|at| request.get_mut(at..at + CONDITION.len() - 1)) {
        name.fill(b'x');
    }
}

fn error(status: &str) -> Vec<u8> {
    let head = "Connection: close\r\nContent-Type: application/xml\r\nContent-Length: 0";
    format!("HTTP/1.1 {status}\r\n{head}\r\n\r\n").into_bytes()
}

/// Reads a head and its body, as long as the head declares.
async fn read_request(client: &mut TcpStream) -> Result<Vec<u8>> {
    const END: &[u8] = b"\r\n\r\n";
    let mut request = Vec::new();
    let head = loop {
        if let Some(end) = request.windows(END.len()).position(|window| window == END) {
            break end + END.len();
        }
        if client.read_buf(&mut request).await? == 0 {
            bail!("the client went away");
        }
    };
    let text = String::from_utf8_lossy(request.get(..head).unwrap_or_default()).to_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.map_or(Ok(0), |length| length.trim().parse::<usize>())?;
    while request.len() < head + length {
        if client.read_buf(&mut request).await? == 0 {
            bail!("the client went away");
        }
    }
    Ok(request)
}
