//! Answers to other agents of the job.
//!
//! Must hold: only members are answered; strangers at the door are few and are let go soon; what is sent
//! stays in its slot until it was sent; an agent that takes nothing loses its connection.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dl_runtime::{Clock, Shutdown, SystemClock, spawn};
use libdiesel::agent::MemberId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex as Turns, Notify};
use tokio::task::AbortHandle;

use super::address::PeerAddress;
use super::frame::{Answer, HEAD, KEPT_MAX, PIECE_MAX, Request, no_sense};
use super::handshake;
use crate::cache::Cache;
use crate::dataset::ChunkKey;
use crate::lent::{Asked, Lent};

/// Strangers at the door at the same time.
const STRANGERS_MAX: usize = 64;

/// Requests of one agent that are not answered.
const REQUESTS_MAX: usize = 64;

/// How long another agent may take for a piece.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two signs of life for a chunk that is on its way.
const SIGN: Duration = Duration::from_millis(500);

/// Where other agents connect.
#[derive(Debug)]
pub(crate) struct Door {
    listener: TcpListener,
    /// `HOST:PORT` as other machines reach it.
    pub(crate) address: String,
}

impl Door {
    /// Opens it where `at` says; none where the agent speaks to no other one.
    pub(crate) async fn open(at: &PeerAddress, servers: &[String]) -> io::Result<Option<Self>> {
        let opened = at.listen(servers).await?;
        Ok(opened.map(|(listener, address)| Self { listener, address }))
    }

    /// Lets agents in for as long as this one lives. Who proves itself too slowly goes for those who come later.
    pub(crate) async fn serve(self: Arc<Self>, cache: Arc<Cache>, me: MemberId, end: Shutdown) {
        let guest = Arc::new(Guest { cache, me, end });
        let mut strangers = VecDeque::new();
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(why) => {
                    tracing::warn!(%why, "another agent is not let in");
                    SystemClock::new().sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            strangers.retain(|one: &AbortHandle| !one.is_finished());
            if strangers.len() == STRANGERS_MAX
                && let Some(first) = strangers.pop_front()
            {
                first.abort();
            }
            let guest = Arc::clone(&guest);
            let hearing = spawn(async move {
                match guest.hear(stream).await {
                    Ok((stream, dataset)) => _ = spawn(guest.serve(stream, dataset)),
                    Err(why) => tracing::debug!(%why, "a stranger is not let in"),
                }
            });
            strangers.push_back(hearing.abort_handle());
        }
    }
}

/// What is needed to answer another agent.
struct Guest {
    cache: Arc<Cache>,
    me: MemberId,
    end: Shutdown,
}

/// Answers of one connection, in turns.
struct Line {
    write: Turns<OwnedWriteHalf>,
    open: AtomicUsize,
    /// Why an answer could not be sent.
    failed: Mutex<Option<io::Error>>,
    is_over: Notify,
}

impl Guest {
    /// Lets a member in; gives the dataset that it reads.
    async fn hear(&self, mut stream: TcpStream) -> io::Result<(TcpStream, usize)> {
        stream.set_nodelay(true)?;
        let circles = || {
            let opens = self.cache.state().datasets.clone();
            opens.iter().map(|open| open.peers.circle()).collect()
        };
        let (dataset, member) = handshake::hear(&mut stream, self.me, circles).await?;
        let open = self.cache.state().datasets.get(dataset).map(Arc::clone);
        if let Some(open) = open
            && !open.peers.knows(member)
        {
            open.peers.changed.notify_one();
        }
        Ok((stream, dataset))
    }

    async fn serve(self: Arc<Self>, stream: TcpStream, dataset: usize) {
        if let Err(why) = self.answer_all(stream, dataset).await {
            tracing::debug!(%why, "a connection of another agent ended");
        }
    }

    async fn answer_all(&self, stream: TcpStream, dataset: usize) -> io::Result<()> {
        let (mut read, write) = stream.into_split();
        let line = Arc::new(Line {
            write: Turns::new(write),
            open: AtomicUsize::new(0),
            failed: Mutex::new(None),
            is_over: Notify::new(),
        });
        loop {
            let mut head = [0; HEAD];
            tokio::select! {
                read = read.read_exact(&mut head) => { read?; }
                () = line.is_over.notified() => {
                    let failed = line.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
                    return Err(failed.unwrap_or_else(no_sense));
                }
                () = self.end.requested() => {
                    return line.send(Answer::Goodbye, &[]).await;
                }
            }
            let request = Request::from_bytes(head)?;
            if line.open.fetch_add(1, Ordering::Relaxed) >= REQUESTS_MAX {
                return Err(no_sense());
            }
            let (line, cache) = (Arc::clone(&line), Arc::clone(&self.cache));
            spawn(async move {
                let answered = match request {
                    Request::Chunk { number, chunk } => {
                        line.chunk(&cache, ChunkKey { dataset, chunk }, number).await
                    }
                    Request::Kept { generation } => line.kept(&cache, dataset, generation).await,
                };
                line.open.fetch_sub(1, Ordering::Relaxed);
                if let Err(why) = answered {
                    *line.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                    line.is_over.notify_one();
                }
            });
        }
    }
}

impl Line {
    /// Answers a request for a chunk.
    async fn chunk(&self, cache: &Arc<Cache>, key: ChunkKey, number: u32) -> io::Result<()> {
        let lent = match cache.lend(key) {
            Asked::Here(lent) => Some(lent),
            Asked::Elsewhere => None,
            Asked::Coming(mut coming) => loop {
                self.send(Answer::Wait { number }, &[]).await?;
                tokio::select! {
                    came = &mut coming => break came.ok(),
                    () = SystemClock::new().sleep(SIGN) => {}
                }
            },
        };
        match lent {
            Some(lent) => self.give(&lent, number).await,
            None => self.send(Answer::ReadElsewhere { number }, &[]).await,
        }
    }

    /// Tells what this agent keeps of a dataset.
    async fn kept(&self, cache: &Cache, dataset: usize, generation: u32) -> io::Result<()> {
        let (now, can_keep, bits) = cache.state().kept_bits(dataset, generation);
        let bits = if bits.len() > KEPT_MAX { Vec::new() } else { bits };
        let length = bits.len() as u32;
        self.send(Answer::Kept { generation: now, can_keep, length }, &bits).await
    }

    /// Sends a chunk piece by piece; answers to other requests may come in between.
    async fn give(&self, lent: &Lent, number: u32) -> io::Result<()> {
        let mut offset = lent.start();
        for piece in lent.bytes().chunks(PIECE_MAX) {
            let length = piece.len() as u32;
            self.send(Answer::Piece { number, offset, length }, piece).await?;
            offset = offset.saturating_add(length);
        }
        Ok(())
    }

    async fn send(&self, answer: Answer, bytes: &[u8]) -> io::Result<()> {
        let sending = async {
            let head = answer.to_bytes();
            let mut write = self.write.lock().await;
            let (mut slices, all) =
                ([IoSlice::new(&head), IoSlice::new(bytes)], HEAD + bytes.len());
            let (mut left, mut sent) = (&mut slices[..], 0);
            while sent < all {
                let more = write.write_vectored(left).await?;
                if more == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                sent += more;
                IoSlice::advance_slices(&mut left, more);
            }
            Ok(())
        };
        tokio::select! {
            sent = sending => sent,
            () = SystemClock::new().sleep(PATIENCE) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
