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

use bytes::Bytes;
use dl_runtime::{Clock, SystemClock, since_boot, spawn};
use libdiesel::agent::MemberId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, mpsc};

use super::frame::{Answer, COMES, HEAD, Request, no_sense};
use super::handshake::{self, Circle};
use super::incoming::{Incoming, IncomingFiles};
use super::tls::{Fingerprint, Identity, Reader, Writer};

/// Chunks that come at the same time.
const TRANSFERS: usize = 2;

/// How long a try to connect may take.
const CONNECT: Duration = Duration::from_secs(2);

/// Between two tries to connect.
const AGAIN_MIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// How often the time of an answer is looked back at, and from how many on it is known.
const TIMES: usize = 32;
const TIMES_MIN: usize = 8;

/// How long a chunk may take to come: so many times the usual time, but at least so long; and as long while
/// the usual time is not known.
const HEDGE_FACTOR: u32 = 3;
const HEDGE_MIN: Duration = Duration::from_millis(100);
const HEDGE_UNKNOWN: Duration = Duration::from_secs(1);

/// How long a request waits for those before it.
const TURN: Duration = Duration::from_secs(5);

/// Between two questions for the chunks that the other agent keeps, which also show that it lives; how long
/// it may say nothing.
const LOOK: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(3);

/// How long files that come alone may take.
const FILES: Duration = Duration::from_millis(250);

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

/// With what another agent is called.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) circle: Circle,
    /// The id of this agent.
    pub(super) me: MemberId,
    /// The key of this agent, where it speaks TLS.
    pub(super) identity: Option<Arc<Identity>>,
    /// The certificate of the other agent, where that one speaks TLS.
    pub(super) fingerprint: Option<Fingerprint>,
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
    asks: Option<mpsc::Sender<Bytes>>,
    pending: HashMap<u32, Pending>,
    next: u32,
    /// How long the last chunks took, from the request to the last byte.
    times: VecDeque<Duration>,
    /// The least time for a chunk: doubled each time that one came soon after it was given up.
    least: Duration,
    /// The chunk that was given up last: its request, and until when it would have come soon, since boot.
    given_up: Option<(u32, Duration)>,
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
    what: What,
    events: mpsc::UnboundedSender<Event>,
}

/// What comes for a request.
#[derive(Debug)]
enum What {
    /// A chunk, or files of which it is known which come.
    Coming(Incoming),
    Files(IncomingFiles),
}

impl Pending {
    fn coming(&mut self) -> Option<&mut Incoming> {
        match &mut self.what {
            What::Coming(incoming) => Some(incoming),
            What::Files(_) => None,
        }
    }
}

#[derive(Debug)]
enum Event {
    /// The other agent fetches it.
    Wait,
    /// So many files are right.
    Right(usize),
    /// Where the files come to.
    Files(Vec<u32>),
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
            least: HEDGE_MIN,
            given_up: None,
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
            tried.await;
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
    async fn stay(self: Arc<Self>, way: Way) {
        let clock = SystemClock::new();
        let mut pause = AGAIN_MIN;
        loop {
            let why = match self.connect(&way).await {
                Ok((read, write)) => {
                    pause = AGAIN_MIN;
                    self.talk(read, write).await
                }
                Err(why) => why,
            };
            self.end(&why);
            clock.sleep(pause).await;
            pause = pause.saturating_mul(2).min(AGAIN_MAX);
        }
    }

    async fn connect(&self, way: &Way) -> io::Result<(Reader, Writer)> {
        let connecting = async {
            let both = match (&way.identity, way.fingerprint) {
                (Some(identity), Some(fingerprint)) => Some((identity, fingerprint)),
                (None, None) => None,
                (Some(_), None) => {
                    return Err(io::Error::other("it speaks no TLS; this agent does"));
                }
                (None, Some(_)) => {
                    return Err(io::Error::other("it speaks TLS; this agent does not"));
                }
            };
            let mut stream = TcpStream::connect(&self.address).await?;
            stream.set_nodelay(true)?;
            handshake::call(&mut stream, &way.circle, way.me, self.member).await?;
            match both {
                Some((identity, fingerprint)) => identity.call(stream, fingerprint).await,
                None => {
                    let (read, write) = stream.into_split();
                    Ok((Box::new(read) as Reader, Box::new(write) as Writer))
                }
            }
        };
        tokio::select! {
            connected = connecting => connected,
            () = SystemClock::new().sleep(CONNECT) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"))
            }
        }
    }

    /// Sends what is asked and takes what is answered, until the connection ends; why it ended.
    async fn talk(&self, read: Reader, write: Writer) -> io::Error {
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
    async fn look(&self, asks: mpsc::Sender<Bytes>) -> io::Error {
        loop {
            let generation = self.line().kept.generation;
            let request = Bytes::copy_from_slice(&Request::Kept { generation }.to_bytes());
            if asks.send(request).await.is_err() {
                return io::ErrorKind::BrokenPipe.into();
            }
            SystemClock::new().sleep(LOOK).await;
            if since_boot().saturating_sub(self.line().heard) > SILENCE {
                return io::Error::new(io::ErrorKind::TimedOut, "it gives no sign of life");
            }
        }
    }

    /// What the other agent keeps: from now on it can be asked.
    async fn hear_kept(&self, read: &mut Reader, mut told: Kept, length: u32) -> io::Result<()> {
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

    async fn listen(&self, mut read: Reader) -> io::Result<()> {
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
                Answer::Files { number, length } => {
                    let mut comes = [0; COMES];
                    read.read_exact(&mut comes).await?;
                    self.line().begin_files(number, length, &comes)?;
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
        read: &mut Reader,
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
        read: &mut Reader,
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
        match line.pending.get_mut(&number).and_then(Pending::coming) {
            Some(incoming) => {
                let polled = incoming.take(left, poll);
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
        let permit = tokio::select! {
            permit = self.transfers.acquire() => permit.ok(),
            () = clock.sleep(TURN) => None,
        };
        let (began, usual, least) = (since_boot(), self.usual(), self.line().least);
        let most = usual.map_or(HEDGE_UNKNOWN, |usual| (usual * HEDGE_FACTOR).max(least));
        if permit.is_none() {
            return Got::Broken { right: 0, why: "too many chunks come at the same time" };
        }
        let mut permit = permit;
        let request = |number| Request::Chunk { number, chunk }.to_bytes().to_vec();
        let asked = self.ask(request, What::Coming(incoming));
        let Some((number, mut events)) = asked else { return Got::Away };
        let giving_up = GivingUp { link: self, number };
        let (mut deadline, mut right, mut has_waited) = (began.saturating_add(most), 0, false);
        loop {
            let left = deadline.saturating_sub(since_boot());
            let event = tokio::select! {
                event = events.recv() => event,
                () = clock.sleep(left) => {
                    self.counts.slow.fetch_add(1, Ordering::Relaxed);
                    let soon = since_boot().saturating_add(most);
                    let right = giving_up.now(soon).unwrap_or(right);
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
                Some(Event::Files(_)) => {}
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

    /// Has files come alone: where each of them lies in its slot, `u32::MAX` for one that does not come.
    pub(crate) async fn files(&self, incoming: IncomingFiles) -> Option<Vec<u32>> {
        let request = |number| {
            let count = incoming.files.len() as u32;
            let mut request = Request::Files { number, count }.to_bytes().to_vec();
            let numbers = incoming.files.iter().flat_map(|(file, _)| file.to_le_bytes());
            request.extend(numbers);
            request
        };
        let request = &request;
        let (number, mut events) = self.ask(request, What::Files(incoming.clone()))?;
        let _giving_up = GivingUp { link: self, number };
        let mut places = None;
        let whole = async {
            loop {
                match events.recv().await {
                    Some(Event::Files(told)) => places = Some(told),
                    Some(Event::Whole) => return true,
                    Some(Event::Right(_) | Event::Wait) => {}
                    Some(Event::Damaged) => {
                        self.counts.damaged.fetch_add(1, Ordering::Relaxed);
                        return false;
                    }
                    Some(Event::Elsewhere) | None => return false,
                }
            }
        };
        let is_whole = tokio::select! {
            is_whole = whole => is_whole,
            () = SystemClock::new().sleep(FILES) => {
                self.counts.slow.fetch_add(1, Ordering::Relaxed);
                false
            }
        };
        places.filter(|_| is_whole)
    }

    /// Sends a request, by its number; none without a connection.
    fn ask(
        &self,
        request: impl Fn(u32) -> Vec<u8>,
        what: What,
    ) -> Option<(u32, mpsc::UnboundedReceiver<Event>)> {
        let mut line = self.line();
        let number = line.next;
        line.asks.as_ref()?.try_send(request(number).into()).ok()?;
        line.next = number.wrapping_add(1);
        let (events, told) = mpsc::unbounded_channel();
        line.pending.insert(number, Pending { what, events });
        Some((number, told))
    }
}

/// A request that is given up when its asker goes.
struct GivingUp<'a> {
    link: &'a Link,
    number: u32,
}

impl GivingUp<'_> {
    /// How many files are right, if the request was still open. It was given up too early if the rest comes
    /// until `soon`.
    fn now(self, soon: Duration) -> Option<usize> {
        let mut line = self.link.line();
        let mut pending = line.pending.remove(&self.number)?;
        line.given_up = Some((self.number, soon));
        Some(pending.coming()?.right())
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
    fn expect(&mut self, number: u32, offset: u32, length: u32) -> io::Result<()> {
        match self.pending.get_mut(&number).map(Pending::coming) {
            None => {
                self.learn(number);
                Ok(())
            }
            Some(Some(incoming)) if incoming.expects(offset, length) => Ok(()),
            Some(_) => Err(no_sense()),
        }
    }

    /// Bytes come of a request that was given up: if they come soon, its time was too short, as on a busy
    /// machine.
    fn learn(&mut self, number: u32) {
        if let Some((_, soon)) = self.given_up.take_if(|(of, _)| *of == number)
            && since_boot() < soon
        {
            self.least = self.least.saturating_mul(2).min(HEDGE_UNKNOWN);
        }
    }

    /// Files come, those whose bits are set: for a request that was given up, or as many bytes as they have.
    fn begin_files(&mut self, number: u32, length: u32, comes: &[u8]) -> io::Result<()> {
        let Some(pending) = self.pending.get_mut(&number) else { return Ok(()) };
        let What::Files(files) = &pending.what else { return Err(no_sense()) };
        let (incoming, places) = files.begin(comes);
        if incoming.left() != length {
            return Err(no_sense());
        }
        let _ = pending.events.send(Event::Files(places));
        pending.what = What::Coming(incoming);
        if length == 0 {
            self.close(number, Event::Whole);
        }
        Ok(())
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
        let Some(incoming) = pending.coming() else { return };
        let before = incoming.right();
        let is_right = incoming.check();
        let (right, is_whole) = (incoming.right(), incoming.is_whole());
        if right > before {
            let _ = pending.events.send(Event::Right(right));
        }
        match (is_right, is_whole) {
            (false, _) => self.close(number, Event::Damaged),
            (true, true) => self.close(number, Event::Whole),
            (true, false) => {}
        }
    }
}

/// Sends what is asked, until that fails.
async fn send(mut write: Writer, mut asked: mpsc::Receiver<Bytes>) -> io::Error {
    while let Some(request) = asked.recv().await {
        let sent = async { write.write_all(&request).await.and(write.flush().await) };
        if let Err(why) = sent.await {
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
    pub(super) fn new(member: MemberId, address: String, way: Way) -> Self {
        let link = Arc::new(Link::new(member, address));
        let task = spawn(Arc::clone(&link).stay(way));
        Self { link, task }
    }
}

impl Drop for Staying {
    fn drop(&mut self) {
        self.task.abort();
        self.link.end(&io::ErrorKind::NotConnected.into());
    }
}
