//! Connections: who is let in, and for how long without asking anything.
//!
//! Must hold: connections that have shown nothing yet are few and end soon; when more come, the
//! oldest of them goes, so that whoever asks at once gets in. What they send before that is little,
//! and what all connections have sent and nobody has taken is bounded. A connection that takes not a
//! byte for as long as patience lasts is closed; while memory for answers is short, also one that
//! leaves some of it lying for that long. Its task wakes for that, whatever it waits for.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use dl_runtime::{BoxFuture, Clock};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::transport::server::Connected;

use crate::parts::Budget;
use crate::stalled::{PERIODS, Waiting};
use crate::unread::{Share, Unread};

/// How long a connection may be open without a request that was let through.
pub(crate) const NEWCOMER_PATIENCE: Duration = Duration::from_secs(20);

/// Such connections at once.
const NEWCOMERS_MAX: usize = 512;

/// Bytes that are read from one of them: more than a greeting and the headers of a request.
const NEWCOMER_BYTES: u64 = 64 << 10;

/// How long a client may take to end a connection after the server did.
const LINGER: Duration = Duration::from_secs(1);

/// Pause before a connection that must not be read from is looked at again.
const PAUSE: Duration = Duration::from_millis(10);

/// What a client that speaks plain HTTP/2 to a port with TLS is told: empty settings, then the end
/// of the connection, with the code INADEQUATE_SECURITY and words for people.
const SPEAK_TLS: &[u8] = b"\0\0\0\x04\0\0\0\0\0\
    \0\0\x2c\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0cthis port speaks TLS: write https://";

/// Lets connections in.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    guests: Arc<Guests>,
    clock: Arc<dyn Clock>,
    has_tls: bool,
    stalls: Stalls,
}

/// When a connection whose client takes nothing is closed.
#[derive(Debug, Clone)]
pub(crate) struct Stalls {
    /// How long something may wait to be taken.
    pub(crate) patience: Duration,
    /// Memory that must be short for it to matter.
    pub(crate) memory: Arc<[Budget]>,
}

/// What went through a door.
#[derive(Debug, Default)]
pub(crate) struct DoorCounts {
    /// Bytes that came, and that went.
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    /// Connections that were closed because others came, or because they said or took nothing.
    pub(crate) closed: AtomicU64,
}

#[derive(Debug)]
struct Guests {
    /// Most connections that have asked something.
    known_max: usize,
    state: Mutex<State>,
    counts: DoorCounts,
    unread: Arc<Unread>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Dropped, the sender closes the connection.
    newcomers: BTreeMap<u64, oneshot::Sender<()>>,
    known: HashSet<u64>,
}

/// A connection.
pub(crate) struct Guest {
    stream: TcpStream,
    ticket: Ticket,
    end: End,
    speaks: Speaks,
    clock: Arc<dyn Clock>,
    /// Bytes that came before it was let through.
    first_bytes: u64,
    paused: Option<BoxFuture<'static, ()>>,
    stalls: Stalls,
    /// The end of a part of their patience.
    turn: BoxFuture<'static, ()>,
    /// The end of their patience with a socket that is full; none while bytes go.
    full: Option<BoxFuture<'static, ()>>,
    /// The end of the wait for the client's end.
    linger: Option<BoxFuture<'static, ()>>,
    /// It was closed: what it waited for has come, and must not be asked again.
    is_over: bool,
}

/// What is known of what a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaks {
    /// Nothing came yet.
    Nothing,
    /// What it should.
    Well,
    /// Not TLS, and was told so.
    Plain,
}

/// What ends a newcomer.
struct End {
    closed: oneshot::Receiver<()>,
    late: BoxFuture<'static, ()>,
}

/// A connection, as its requests know it.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    guests: Arc<Guests>,
    number: u64,
    is_known: Arc<AtomicBool>,
    peer: Option<IpAddr>,
    share: Arc<Share>,
    waiting: Arc<Waiting>,
}

impl Stalls {
    /// For connections whose answers take no memory to speak of.
    pub(crate) fn never() -> Self {
        Self { patience: Duration::from_secs(1_000_000), memory: Arc::new([]) }
    }

    fn period(&self) -> Duration {
        self.patience / PERIODS
    }

    fn is_memory_short(&self) -> bool {
        self.memory.iter().any(Budget::is_short)
    }
}

impl Door {
    /// A door for at most `known_max` connections that ask things.
    pub(crate) fn new(
        known_max: usize,
        has_tls: bool,
        stalls: Stalls,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (state, counts, unread) = (Mutex::default(), DoorCounts::default(), Arc::default());
        let guests = Arc::new(Guests { known_max, state, counts, unread });
        Self { guests, clock, has_tls, stalls }
    }

    /// Lets a connection in, for a while.
    pub(crate) fn enter(&self, stream: TcpStream) -> Guest {
        let (sender, closed) = oneshot::channel();
        let mut state = self.guests.state();
        let number = state.next;
        state.next += 1;
        if state.newcomers.len() >= NEWCOMERS_MAX {
            state.newcomers.pop_first();
        }
        state.newcomers.insert(number, sender);
        drop(state);
        let peer = stream.peer_addr().ok().map(|address| address.ip());
        let (guests, is_known) = (Arc::clone(&self.guests), Arc::default());
        let share = Arc::new(Share::new(Arc::clone(&guests.unread)));
        let waiting = Arc::default();
        let ticket = Ticket { guests, number, is_known, peer, share, waiting };
        let end = End { closed, late: self.clock.sleep(NEWCOMER_PATIENCE) };
        let speaks = if self.has_tls { Speaks::Nothing } else { Speaks::Well };
        let (clock, stalls) = (Arc::clone(&self.clock), self.stalls.clone());
        let turn = clock.sleep(stalls.period());
        let (first_bytes, paused, full, linger, is_over) = (0, None, None, None, false);
        Guest {
            stream,
            ticket,
            end,
            speaks,
            clock,
            first_bytes,
            paused,
            stalls,
            turn,
            full,
            linger,
            is_over,
        }
    }

    /// What went through.
    pub(crate) fn counts(&self) -> &DoorCounts {
        &self.guests.counts
    }

    /// Bytes that came and that no request has taken.
    pub(crate) fn unread(&self) -> u64 {
        self.guests.unread.bytes()
    }

    /// Connections that have asked nothing yet, and that have.
    pub(crate) fn open(&self) -> (usize, usize) {
        let state = self.guests.state();
        (state.newcomers.len(), state.known.len())
    }
}

impl Guests {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// The other end.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// What the connection has of what nobody has taken.
    pub(crate) fn share(&self) -> Arc<Share> {
        Arc::clone(&self.share)
    }

    /// What the connection has of what its client has not taken.
    pub(crate) fn waiting(&self) -> Arc<Waiting> {
        Arc::clone(&self.waiting)
    }

    /// The connection has asked something that it may: from now on it may stay. False when too
    /// many stay already.
    pub(crate) fn keep(&self) -> bool {
        if self.is_known.load(Ordering::Acquire) {
            return true;
        }
        let mut state = self.guests.state();
        if state.known.contains(&self.number) {
            return true;
        }
        if state.known.len() >= self.guests.known_max {
            return false;
        }
        if state.newcomers.contains_key(&self.number) {
            state.known.insert(self.number);
            // First: the connection looks again as soon as the sender is gone.
            self.is_known.store(true, Ordering::Release);
            state.newcomers.remove(&self.number);
        }
        true
    }
}

impl Guest {
    /// Fails when it has to go: a newcomer, or one for whose client something waits while others
    /// wait for the memory.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.is_over {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if !self.ticket.is_known.load(Ordering::Acquire) {
            let is_closed = Pin::new(&mut self.end.closed).poll(context).is_ready();
            let is_late = !is_closed && self.end.late.as_mut().poll(context).is_ready();
            // Also let through: the sender is dropped then.
            if (is_closed || is_late) && !self.ticket.is_known.load(Ordering::Acquire) {
                return Err(self.close("it asks nothing"));
            }
        }
        while self.turn.as_mut().poll(context).is_ready() {
            self.turn = self.clock.sleep(self.stalls.period());
            if self.ticket.waiting.turn() && self.stalls.is_memory_short() {
                return Err(self.close("its client takes nothing and others want the memory"));
            }
        }
        Ok(())
    }

    fn close(&mut self, why: &'static str) -> io::Error {
        tracing::debug!(peer = ?self.ticket.peer, why, "a connection is closed");
        self.ticket.guests.counts.closed.fetch_add(1, Ordering::Relaxed);
        self.is_over = true;
        io::ErrorKind::ConnectionAborted.into()
    }

    /// What became of a write. One that waits fails in time: a connection that has something to
    /// send reads nothing until it is sent, and would look at no clock meanwhile.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.full = None;
            return done;
        }
        self.check(context)?;
        let full = self.full.get_or_insert_with(|| self.clock.sleep(self.stalls.patience));
        ready!(full.as_mut().poll(context));
        Poll::Ready(Err(self.close("its client takes nothing")))
    }

    /// Waits until more may be read.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let is_new =
                self.first_bytes > NEWCOMER_BYTES && !self.ticket.is_known.load(Ordering::Acquire);
            if !is_new && !self.ticket.share.is_full() {
                self.paused = None;
                return Poll::Ready(());
            }
            let paused = self.paused.get_or_insert_with(|| self.clock.sleep(PAUSE));
            ready!(paused.as_mut().poll(context));
            self.paused = None;
        }
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.check(context)?;
        ready!(this.poll_room(context));
        let before = buffer.filled().len();
        loop {
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            let read = buffer.filled().get(before..).unwrap_or_default();
            let counts = &this.ticket.guests.counts;
            let came = read.len() as u64;
            counts.received.fetch_add(came, Ordering::Relaxed);
            this.first_bytes = this.first_bytes.saturating_add(came);
            this.ticket.share.add(came);
            match (this.speaks, read) {
                (Speaks::Well, _) | (Speaks::Nothing, []) => return Poll::Ready(Ok(())),
                (Speaks::Nothing, [b'P', ..]) => {
                    // What can't be sent at once is not worth a wait.
                    let _ = this.stream.try_write(SPEAK_TLS);
                    this.speaks = Speaks::Plain;
                }
                (Speaks::Nothing, _) => {
                    this.speaks = Speaks::Well;
                    return Poll::Ready(Ok(()));
                }
                (Speaks::Plain, []) => {
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                (Speaks::Plain, _) => {}
            }
            // To close now, with bytes unread, would take the answer back.
            buffer.set_filled(before);
        }
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        let written = ready!(self.written(context, done))?;
        self.ticket.guests.counts.sent.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket holds nothing back, so that this says nothing of whether bytes go.
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Ends what is sent, and takes what still comes until the client has ended too: to close a socket
    /// with bytes unread would reset the connection, and take the end of an answer back.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
        if this.is_over {
            return Poll::Ready(Ok(()));
        }
        let linger = this.linger.get_or_insert_with(|| this.clock.sleep(LINGER));
        let mut unread = [0; 1024];
        while linger.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut unread);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer))?;
            if buffer.filled().is_empty() {
                break;
            }
        }
        this.is_over = true;
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        let written = ready!(self.written(context, done))?;
        self.ticket.guests.counts.sent.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl Connected for Guest {
    type ConnectInfo = Ticket;

    fn connect_info(&self) -> Ticket {
        self.ticket.clone()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut state = self.ticket.guests.state();
        state.newcomers.remove(&self.ticket.number);
        state.known.remove(&self.ticket.number);
    }
}

#[cfg(test)]
mod tests;
