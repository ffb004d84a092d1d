//! The way to one other agent: a connection on which this one asks.
//!
//! Must hold: after a request was given up no byte of its answer is written into its slot; a connection that
//! says what makes no sense ends; each request ends by its deadline.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use dl_runtime::{Clock, SystemClock, since_boot, spawn};
use libdiesel::agent::MemberId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, Semaphore, mpsc};

use super::frame::{Answer, HEAD, Request, no_sense};
use super::handshake::{self, Circle};
use super::incoming::Incoming;

/// Chunks that come at the same time.
const TRANSFERS: usize = 2;

/// Between two tries to connect.
const AGAIN_MIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// How long a request waits for the first try to connect.
const FIRST_TRY: Duration = Duration::from_secs(1);

/// How often the time of an answer is looked back at, and from how many on it is known.
const TIMES: usize = 32;
const TIMES_MIN: usize = 8;

/// How long a chunk may take to come: so many times the usual time, but at least so long; and as long while
/// the usual time is not known.
const HEDGE_FACTOR: u32 = 3;
const HEDGE_MIN: Duration = Duration::from_millis(50);
const HEDGE_UNKNOWN: Duration = Duration::from_secs(1);

/// Between two questions for the chunks that the other agent keeps, which also show that it lives; how long
/// it may say nothing.
const LOOK: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(3);

/// How long an agent that fetches a chunk for this one may give no sign of life.
const SIGN: Duration = Duration::from_secs(2);

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Got {
    /// The chunk is in its slot, and right.
    Whole,
    /// The other agent does not have it and does not fetch it.
    Elsewhere,
    /// There is no connection.
    Away,
    /// It took too long, or broke off: so many files are right, and nothing more is written.
    Broken { right: usize, why: &'static str },
}

/// The way to another agent.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) member: MemberId,
    pub(crate) address: String,
    line: Mutex<Line>,
    transfers: Semaphore,
    /// A try to connect has ended.
    tried: Notify,
    pub(crate) counts: LinkCounts,
}

/// Counts of what came over a link.
#[derive(Debug, Default)]
pub(crate) struct LinkCounts {
    pub(crate) chunks: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Answers that were given up for their time.
    pub(crate) slow: AtomicU64,
    /// Answers with other bytes than those of the dataset.
    pub(crate) damaged: AtomicU64,
}

/// How a link stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Connecting,
    Up,
    Down(String),
    /// The other agent said that it ends.
    Gone,
}

#[derive(Debug)]
struct Line {
    phase: Phase,
    /// Since boot.
    since: Duration,
    asks: Option<mpsc::Sender<[u8; HEAD]>>,
    pending: HashMap<u32, Pending>,
    next: u32,
    /// How long the last chunks took, from the request to the last byte.
    times: VecDeque<Duration>,
    /// When the other agent said something, since boot.
    heard: Duration,
    kept: Kept,
}

/// The chunks that the other agent keeps, as it said last.
#[derive(Debug, Default)]
struct Kept {
    generation: u32,
    can_keep: bool,
    /// A bit for each chunk.
    bits: Vec<u8>,
}

impl Kept {
    fn holds(&self, chunk: u32) -> bool {
        let byte = self.bits.get(chunk as usize / 8);
        byte.is_some_and(|byte| byte & (1 << (chunk % 8)) != 0)
    }

    fn forget(&mut self, chunk: u32) {
        if let Some(byte) = self.bits.get_mut(chunk as usize / 8) {
            *byte &= !(1 << (chunk % 8));
        }
    }
}

#[derive(Debug)]
struct Pending {
    incoming: Incoming,
    events: mpsc::UnboundedSender<Event>,
}

#[derive(Debug)]
enum Event {
    /// The other agent fetches it.
    Wait,
    /// So many files are right.
    Right(usize),
    Whole,
    Elsewhere,
    Damaged,
}

impl Link {
    pub(crate) fn new(member: MemberId, address: String) -> Self {
        let line = Line {
            phase: Phase::Connecting,
            since: since_boot(),
            asks: None,
            pending: HashMap::new(),
            next: 0,
            times: VecDeque::new(),
            heard: since_boot(),
            kept: Kept::default(),
        };
        Self {
            member,
            address,
            line: Mutex::new(line),
            transfers: Semaphore::new(TRANSFERS),
            tried: Notify::new(),
            counts: LinkCounts::default(),
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the link stands, and since when.
    pub(crate) fn phase(&self) -> (Phase, Duration) {
        let line = self.line();
        (line.phase.clone(), line.since)
    }

    /// Whether it keeps a chunk, and whether it can keep more.
    pub(crate) fn keeps(&self, chunk: u32) -> (bool, bool) {
        let line = self.line();
        (line.kept.holds(chunk), line.kept.can_keep)
    }

    /// Waits until the first try to connect has ended, and it was heard what the other agent keeps.
    pub(crate) async fn tried(&self) {
        // From here on a try that ends is not missed.
        let tried = self.tried.notified();
        if self.phase().0 == Phase::Connecting {
            tokio::select! {
                () = tried => {}
                () = SystemClock::new().sleep(FIRST_TRY) => {}
            }
        }
    }

    /// The usual time of a chunk, where it is known.
    pub(crate) fn usual(&self) -> Option<Duration> {
        let times = self.line().times.clone();
        if times.len() < TIMES_MIN {
            return None;
        }
        let mut times = Vec::from(times);
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }

    /// Keeps the connection, again and again. Ends with the last group that has the link, which aborts it.
    pub(crate) async fn stay(self: Arc<Self>, circle: Circle, me: MemberId) {
        let clock = SystemClock::new();
        let mut pause = AGAIN_MIN;
        loop {
            let why = match self.connect(&circle, me).await {
                Ok(stream) => {
                    pause = AGAIN_MIN;
                    self.talk(stream).await
                }
                Err(why) => why,
            };
            self.end(&why);
            clock.sleep(pause).await;
            pause = pause.saturating_mul(2).min(AGAIN_MAX);
        }
    }

    async fn connect(&self, circle: &Circle, me: MemberId) -> io::Result<TcpStream> {
        let connecting = TcpStream::connect(&self.address);
        let mut stream = tokio::select! {
            connected = connecting => connected?,
            () = SystemClock::new().sleep(handshake::PATIENCE) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"));
            }
        };
        stream.set_nodelay(true)?;
        handshake::call(&mut stream, circle, me, self.member).await?;
        Ok(stream)
    }

    /// Sends what is asked and takes what is answered, until the connection ends; why it ended.
    async fn talk(&self, stream: TcpStream) -> io::Error {
        let (read, write) = stream.into_split();
        let (asks, asked) = mpsc::channel(64);
        {
            let mut line = self.line();
            line.asks = Some(asks.clone());
            (line.heard, line.kept) = (since_boot(), Kept::default());
        }
        tokio::select! {
            ended = self.listen(read) => ended.err().unwrap_or_else(no_sense),
            why = send(write, asked) => why,
            why = self.look(asks) => why,
        }
    }

    /// Asks again and again for what the other agent keeps, until it says nothing any more.
    async fn look(&self, asks: mpsc::Sender<[u8; HEAD]>) -> io::Error {
        loop {
            let generation = self.line().kept.generation;
            if asks.send(Request::Kept { generation }.to_bytes()).await.is_err() {
                return io::ErrorKind::BrokenPipe.into();
            }
            SystemClock::new().sleep(LOOK).await;
            if since_boot().saturating_sub(self.line().heard) > SILENCE {
                return io::Error::new(io::ErrorKind::TimedOut, "it gives no sign of life");
            }
        }
    }

    /// What the other agent keeps: from now on it can be asked.
    async fn hear_kept(
        &self,
        read: &mut OwnedReadHalf,
        mut told: Kept,
        length: u32,
    ) -> io::Result<()> {
        told.bits = vec![0; length as usize];
        read.read_exact(&mut told.bits).await?;
        let mut line = self.line();
        if length > 0 {
            line.kept.bits = told.bits;
        }
        (line.kept.generation, line.kept.can_keep) = (told.generation, told.can_keep);
        if line.phase != Phase::Up {
            line.turn(Phase::Up);
            self.tried.notify_waiters();
        }
        Ok(())
    }

    /// The connection ended: all that waits for it is told.
    fn end(&self, why: &io::Error) {
        {
            let mut line = self.line();
            line.asks = None;
            line.pending.clear();
            if line.phase != Phase::Gone {
                line.turn(Phase::Down(why.to_string()));
            }
        }
        tracing::debug!(peer = self.address, %why, "no connection to another agent");
        self.tried.notify_waiters();
    }

    async fn listen(&self, mut read: OwnedReadHalf) -> io::Result<()> {
        let mut rest = Vec::new();
        loop {
            let mut head = [0; HEAD];
            read.read_exact(&mut head).await?;
            self.line().heard = since_boot();
            match Answer::from_bytes(head)? {
                Answer::Piece { number, offset, length } => {
                    self.line().expect(number, offset, length)?;
                    self.take(&mut read, number, length as usize, &mut rest).await?;
                }
                Answer::Wait { number } => self.line().tell(number, Event::Wait),
                Answer::ReadElsewhere { number } => self.line().close(number, Event::Elsewhere),
                Answer::Kept { generation, can_keep, length } => {
                    let told = Kept { generation, can_keep, bits: Vec::new() };
                    self.hear_kept(&mut read, told, length).await?;
                }
                Answer::Goodbye => self.line().turn(Phase::Gone),
            }
        }
    }

    /// Takes the bytes behind a head to their slot, or nowhere for a request that was given up.
    async fn take(
        &self,
        read: &mut OwnedReadHalf,
        number: u32,
        length: usize,
        rest: &mut Vec<u8>,
    ) -> io::Result<()> {
        let mut left = length;
        while left > 0 {
            let came = poll_fn(|cx| self.poll_take(read, cx, number, left, rest)).await?;
            if came == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= came;
            self.line().check(number);
        }
        Ok(())
    }

    /// Reads what has come of a piece; nobody gives its request up meanwhile.
    fn poll_take(
        &self,
        read: &mut OwnedReadHalf,
        cx: &mut Context<'_>,
        number: u32,
        left: usize,
        rest: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let mut poll = |bytes: &mut [u8]| {
            let mut buffer = ReadBuf::new(bytes);
            let polled = Pin::new(&mut *read).poll_read(cx, &mut buffer);
            let came = buffer.filled().len();
            (polled.map_ok(|()| came), came)
        };
        let mut line = self.line();
        match line.pending.get_mut(&number) {
            Some(pending) => {
                let polled = pending.incoming.take(left, poll);
                polled.unwrap_or_else(|| Poll::Ready(Err(no_sense())))
            }
            None => {
                drop(line);
                rest.resize(left.min(64 << 10), 0);
                poll(rest).0
            }
        }
    }

    /// Has a chunk come into its slot. `is_right` is told how many files are right, again and again.
    pub(crate) async fn chunk(
        &self,
        chunk: u32,
        incoming: Incoming,
        is_right: impl Fn(usize),
    ) -> Got {
        let clock = SystemClock::new();
        let began = since_boot();
        let usual = self.usual();
        let most = usual.map_or(HEDGE_UNKNOWN, |usual| (usual * HEDGE_FACTOR).max(HEDGE_MIN));
        let permit = tokio::select! {
            permit = self.transfers.acquire() => permit.ok(),
            () = clock.sleep(most) => None,
        };
        if permit.is_none() {
            return Got::Broken { right: 0, why: "too many chunks come at the same time" };
        }
        let mut permit = permit;
        let Some((number, mut events)) = self.ask(chunk, incoming) else { return Got::Away };
        let giving_up = GivingUp { link: self, number };
        let (mut deadline, mut right, mut has_waited) = (began.saturating_add(most), 0, false);
        loop {
            let left = deadline.saturating_sub(since_boot());
            let event = tokio::select! {
                event = events.recv() => event,
                () = clock.sleep(left) => {
                    self.counts.slow.fetch_add(1, Ordering::Relaxed);
                    let right = giving_up.now().unwrap_or(right);
                    return Got::Broken { right, why: "it takes too long" };
                }
            };
            match event {
                Some(Event::Wait) => {
                    // It does not come yet: others may.
                    permit = None;
                    has_waited = true;
                    deadline = since_boot().saturating_add(SIGN.max(most));
                }
                Some(Event::Right(files)) => {
                    right = files;
                    is_right(right);
                }
                Some(Event::Whole) => {
                    drop(permit);
                    if !has_waited {
                        self.line().took(since_boot().saturating_sub(began));
                    }
                    return Got::Whole;
                }
                Some(Event::Elsewhere) => {
                    self.line().kept.forget(chunk);
                    return Got::Elsewhere;
                }
                Some(Event::Damaged) => {
                    self.counts.damaged.fetch_add(1, Ordering::Relaxed);
                    return Got::Broken { right, why: "its bytes are damaged" };
                }
                None => return Got::Broken { right, why: "the connection ended" },
            }
        }
    }

    /// Sends a request; none without a connection.
    fn ask(&self, chunk: u32, incoming: Incoming) -> Option<(u32, mpsc::UnboundedReceiver<Event>)> {
        let mut line = self.line();
        let number = line.next;
        line.asks.as_ref()?.try_send(Request::Chunk { number, chunk }.to_bytes()).ok()?;
        line.next = number.wrapping_add(1);
        let (events, told) = mpsc::unbounded_channel();
        line.pending.insert(number, Pending { incoming, events });
        Some((number, told))
    }
}

/// A request that is given up when its asker goes.
struct GivingUp<'a> {
    link: &'a Link,
    number: u32,
}

impl GivingUp<'_> {
    /// How many files are right, if the request was still open.
    fn now(self) -> Option<usize> {
        let pending = self.link.line().pending.remove(&self.number)?;
        Some(pending.incoming.right())
    }
}

impl Drop for GivingUp<'_> {
    fn drop(&mut self) {
        self.link.line().pending.remove(&self.number);
    }
}

impl Line {
    fn turn(&mut self, phase: Phase) {
        (self.phase, self.since) = (phase, since_boot());
    }

    fn took(&mut self, time: Duration) {
        self.times.truncate(TIMES - 1);
        self.times.push_front(time);
    }

    /// A piece comes: of a request that was given up, or the next one of its chunk.
    fn expect(&self, number: u32, offset: u32, length: u32) -> io::Result<()> {
        match self.pending.get(&number) {
            Some(pending) if !pending.incoming.expects(offset, length) => Err(no_sense()),
            _ => Ok(()),
        }
    }

    fn tell(&self, number: u32, event: Event) {
        if let Some(pending) = self.pending.get(&number) {
            let _ = pending.events.send(event);
        }
    }

    fn close(&mut self, number: u32, event: Event) {
        if let Some(pending) = self.pending.remove(&number) {
            let _ = pending.events.send(event);
        }
    }

    /// Checks the files of a chunk that are complete now.
    fn check(&mut self, number: u32) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        let before = pending.incoming.right();
        let is_right = pending.incoming.check();
        let right = pending.incoming.right();
        if right > before {
            let _ = pending.events.send(Event::Right(right));
        }
        match (is_right, pending.incoming.is_whole()) {
            (false, _) => self.close(number, Event::Damaged),
            (true, true) => self.close(number, Event::Whole),
            (true, false) => {}
        }
    }
}

/// Sends what is asked, until that fails.
async fn send(mut write: OwnedWriteHalf, mut asked: mpsc::Receiver<[u8; HEAD]>) -> io::Error {
    while let Some(request) = asked.recv().await {
        if let Err(why) = write.write_all(&request).await {
            return why;
        }
    }
    io::ErrorKind::BrokenPipe.into()
}

/// Keeps a link for as long as the handle lives.
#[derive(Debug)]
pub(crate) struct Staying {
    pub(crate) link: Arc<Link>,
    task: tokio::task::JoinHandle<()>,
}

impl Staying {
    pub(crate) fn new(member: MemberId, address: String, circle: Circle, me: MemberId) -> Self {
        let link = Arc::new(Link::new(member, address));
        let task = spawn(Arc::clone(&link).stay(circle, me));
        Self { link, task }
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        self.task.abort();
        self.link.end(&io::ErrorKind::NotConnected.into());
    }
}
