//! Answers to other agents of the job.
//!
//! Must hold: only members get answers. Unauthenticated connections are few and end soon. A chunk
//! stays in its slot until the answer was sent. An agent that takes no bytes loses its connection.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dl_format::MemberId;
use dl_runtime::{Clock, Shutdown, locked, spawn};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::cache::{Cache, ChunkReply};
use crate::descriptors::Descriptors;
use crate::peers::PeerAddress;
use crate::peers::frame::{
    Answer, COMES, HEAD, KEPT_MAX, PIECE_MAX, REQUESTS_MAX, Request, invalid_message,
};
use crate::peers::handshake::{self, within};
use crate::peers::tls::{Reader, Writer};
use crate::pins::PinnedFiles;
use crate::place::ChunkKey;

/// Maximum of unauthenticated connections.
const UNAUTHENTICATED_MAX: usize = 64;

/// Time limit of another agent for a piece.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for a connection without a request: agents request the list of kept chunks each
/// second.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Interval between two signs of life for a chunk being fetched.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// How long a request waits for a slot, and the interval of the attempts.
const SLOT_TIMEOUT: Duration = Duration::from_millis(200);
const SLOT_INTERVAL: Duration = Duration::from_millis(5);

/// Delay after a failed accept, for example without free descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The listening socket for other agents.
#[derive(Debug)]
pub(crate) struct PeerListener {
    listener: TcpListener,
    /// `HOST:PORT` as seen by other machines.
    pub(crate) address: String,
}

impl PeerListener {
    /// Listens at `at`; none if this agent is closed to others.
    pub(crate) async fn open(at: &PeerAddress, servers: &[String]) -> io::Result<Option<Self>> {
        let opened = at.listen(servers).await?;
        Ok(opened.map(|(listener, address)| Self { listener, address }))
    }

    /// Accepts connections for as long as the listener lives. At the limit, the oldest
    /// unauthenticated connection ends.
    pub(crate) async fn serve(self, cache: Arc<Cache>, me: MemberId, end: Shutdown) {
        let server = Arc::new(PeerServer { cache, me, end, sessions: Mutex::default() });
        let mut connecting_tasks = VecDeque::new();
        let descriptors = Descriptors::for_one_direction();
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(why) => {
                    tracing::warn!(%why, "accept a connection of another agent");
                    server.cache.clock.sleep(RETRY_DELAY).await;
                    continue;
                }
            };
            let Some(descriptor) = descriptors.take() else {
                tracing::debug!("a connection of another agent was closed for lack of descriptors");
                continue;
            };
            connecting_tasks.retain(|one: &AbortHandle| !one.is_finished());
            if connecting_tasks.len() == UNAUTHENTICATED_MAX
                && let Some(first) = connecting_tasks.pop_front()
            {
                first.abort();
            }
            let server = Arc::clone(&server);
            let connecting = spawn(async move {
                match server.authenticate(stream).await {
                    Ok((ends, peer)) => server.start_session(ends, peer, descriptor),
                    Err(why) => tracing::debug!(%why, "an unauthenticated connection was closed"),
                }
            });
            connecting_tasks.push_back(connecting.abort_handle());
        }
    }
}

/// Shared state of all connections of other agents.
struct PeerServer {
    cache: Arc<Cache>,
    me: MemberId,
    end: Shutdown,
    /// The connection of each member, by dataset.
    sessions: Mutex<HashMap<(usize, MemberId), AbortHandle>>,
}

/// An authenticated member, and its dataset.
struct Peer {
    member: MemberId,
    dataset: usize,
}

/// The answers on one connection, sent in turns.
struct Session {
    /// The other agent.
    member: MemberId,
    /// Only one answer is sent at a time.
    turn: Semaphore,
    /// None while an answer is sent, and after a partial answer.
    writer: Mutex<Option<Writer>>,
    /// The error of a failed answer.
    failed: Mutex<Option<io::Error>>,
    is_over: Notify,
    clock: Arc<dyn Clock>,
    /// The requests being answered, as far as the other agent has not cancelled them.
    wanted: Mutex<HashSet<u32>>,
}

impl PeerServer {
    /// Authenticates a member.
    async fn authenticate(&self, mut stream: TcpStream) -> io::Result<((Reader, Writer), Peer)> {
        stream.set_nodelay(true)?;
        let keys = || {
            let opens = self.cache.state().opens.clone();
            opens.keys()
        };
        let (dataset, member) =
            handshake::authenticate(&mut stream, self.me, keys, &*self.cache.clock).await?;
        let open = self.cache.state().opens.get(dataset).map(Arc::clone);
        let open = open.ok_or(io::ErrorKind::NotFound)?;
        let ends = match (open.peers.fingerprint_of(member), open.peers.identity()) {
            (_, None) => {
                let (read, write) = stream.into_split();
                (Box::new(read) as Reader, Box::new(write) as Writer)
            }
            (Some(Some(caller)), Some(identity)) => {
                within(&*self.cache.clock, handshake::TIMEOUT, identity.accept(stream, caller))
                    .await?
            }
            (known, Some(_)) => {
                // The member may have registered a moment ago.
                if known.is_none() {
                    open.peers.changed.notify_one();
                }
                return Err(io::Error::other("the servers know no certificate of the agent"));
            }
        };
        if open.peers.fingerprint_of(member).is_none() {
            open.peers.changed.notify_one();
        }
        Ok((ends, Peer { member, dataset }))
    }

    /// Answers a member from now on; the member's earlier connection ends.
    fn start_session(
        self: Arc<Self>,
        ends: (Reader, Writer),
        peer: Peer,
        descriptor: OwnedSemaphorePermit,
    ) {
        let key = (peer.dataset, peer.member);
        let served = Arc::clone(&self).serve(ends, peer);
        let serving = spawn(async move {
            served.await;
            drop(descriptor);
        });
        let mut sessions = locked(&self.sessions);
        sessions.retain(|_, server| !server.is_finished());
        if let Some(before) = sessions.insert(key, serving.abort_handle()) {
            before.abort();
        }
    }

    async fn serve(self: Arc<Self>, ends: (Reader, Writer), peer: Peer) {
        if let Err(why) = self.answer_all(ends, peer).await {
            tracing::debug!(%why, "a connection of another agent ended");
        }
    }

    async fn answer_all(
        &self,
        (mut read, write): (Reader, Writer),
        Peer { member, dataset }: Peer,
    ) -> io::Result<()> {
        let session = Arc::new(Session {
            member,
            turn: Semaphore::new(1),
            writer: Mutex::new(Some(write)),
            failed: Mutex::new(None),
            is_over: Notify::new(),
            clock: Arc::clone(&self.cache.clock),
            wanted: Mutex::default(),
        });
        // The number of open requests is limited: at the limit no request is read.
        let open = Arc::new(Semaphore::new(REQUESTS_MAX));
        loop {
            let next = async {
                let permit = Arc::clone(&open).acquire_owned().await.map_err(io::Error::other)?;
                Ok::<_, io::Error>((read_request(&mut read, &*self.cache.clock).await?, permit))
            };
            let (request, permit) = tokio::select! {
                next = next => next?,
                () = session.is_over.notified() => {
                    let failed = locked(&session.failed).take();
                    return Err(failed.unwrap_or_else(invalid_message));
                }
                () = self.end.requested() => {
                    return session.send(Answer::Goodbye, &[]).await;
                }
            };
            if let Request::Kept { generation } = request {
                session.kept(&self.cache, dataset, generation).await?;
                continue;
            }
            if let Request::Forget { number } = request {
                session.wanted().remove(&number);
                continue;
            }
            let mut files = Vec::new();
            if let Request::Files { count, .. } = request {
                files.resize(count as usize * size_of::<u32>(), 0);
                within(&*self.cache.clock, SEND_TIMEOUT, read.read_exact(&mut files)).await?;
            }
            if let Request::Chunk { number, .. } = request {
                session.wanted().insert(number);
            }
            let (session, cache) = (Arc::clone(&session), Arc::clone(&self.cache));
            spawn(async move {
                let answered = session.answer(&cache, dataset, request, &files).await;
                drop(permit);
                if let Err(why) = answered {
                    *locked(&session.failed) = Some(why);
                    session.is_over.notify_one();
                }
            });
        }
    }
}

/// Reads the head of the next request.
async fn read_request(read: &mut Reader, clock: &dyn Clock) -> io::Result<Request> {
    let mut head = [0; HEAD];
    tokio::select! {
        read = read.read_exact(&mut head) => { read?; }
        () = clock.sleep(SILENCE_MAX) => {
            let why = format!("no request for {} seconds", SILENCE_MAX.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
    }
    Request::from_bytes(head)
}

impl Session {
    /// Answers a request for a chunk or for files.
    async fn answer(
        &self,
        cache: &Arc<Cache>,
        dataset: usize,
        request: Request,
        files: &[u8],
    ) -> io::Result<()> {
        match request {
            Request::Chunk { number, chunk } => {
                let answered = self.chunk(cache, ChunkKey { dataset, chunk }, number).await;
                self.wanted().remove(&number);
                answered
            }
            Request::Files { number, .. } => self.files(cache, dataset, number, files).await,
            Request::Kept { .. } | Request::Forget { .. } => Ok(()),
        }
    }

    /// Answers a request for a chunk.
    async fn chunk(&self, cache: &Arc<Cache>, key: ChunkKey, number: u32) -> io::Result<()> {
        if !self.wanted().contains(&number) {
            return self.send(Answer::ReadElsewhere { number }, &[]).await;
        }
        let pinned = match self.reply(cache, key, number).await? {
            ChunkReply::Here(pinned) => Some(pinned),
            ChunkReply::Elsewhere | ChunkReply::Later => None,
            ChunkReply::Coming(mut coming) => loop {
                if !self.wanted().contains(&number) {
                    break None;
                }
                self.send(Answer::Wait { number }, &[]).await?;
                tokio::select! {
                    came = &mut coming => break came.ok(),
                    () = self.clock.sleep(HEARTBEAT_INTERVAL) => {}
                }
            },
        };
        match pinned {
            Some(pinned) => self.give(&pinned, number).await,
            None => self.send(Answer::ReadElsewhere { number }, &[]).await,
        }
    }

    /// The reply to a request for a chunk; one that needs a slot waits a while for it.
    async fn reply(
        &self,
        cache: &Arc<Cache>,
        key: ChunkKey,
        number: u32,
    ) -> io::Result<ChunkReply> {
        let began = self.clock.monotonic();
        let (until, mut next_sign) = (began.saturating_add(SLOT_TIMEOUT), began);
        loop {
            let (reply, now) = (cache.reply_to_peer(key, self.member), self.clock.monotonic());
            let may_wait = now < until && self.wanted().contains(&number);
            if !matches!(reply, ChunkReply::Later) || !may_wait {
                return Ok(reply);
            }
            if now >= next_sign {
                self.send(Answer::Wait { number }, &[]).await?;
                next_sign = now.saturating_add(HEARTBEAT_INTERVAL);
            }
            self.clock.sleep(SLOT_INTERVAL).await;
        }
    }

    /// Reports the chunks of a dataset kept by this agent.
    async fn kept(&self, cache: &Cache, dataset: usize, generation: u32) -> io::Result<()> {
        let (is_known, (now, can_keep, bits)) = {
            let state = cache.state();
            let open = state.opens.get(dataset);
            // Before the list: a member that is known loses no chunk to a fetch after the list.
            let is_known = open.is_some_and(|open| open.peers.knows(self.member));
            (is_known, state.kept_bits(dataset, generation))
        };
        let bits = if bits.len() > KEPT_MAX { Vec::new() } else { bits };
        let length = bits.len() as u32;
        self.send(Answer::Kept { generation: now, can_keep, is_known, length }, &bits).await
    }

    /// Sends a chunk piece by piece, until the request is cancelled; answers to other requests may
    /// come in between.
    async fn give(&self, pinned: &PinnedFiles, number: u32) -> io::Result<()> {
        for (start, bytes) in pinned.bytes().flatten() {
            let mut offset = start;
            for piece in bytes.chunks(PIECE_MAX) {
                if !self.wanted().contains(&number) {
                    return self.send(Answer::ReadElsewhere { number }, &[]).await;
                }
                let length = piece.len() as u32;
                self.send(Answer::Piece { number, offset, length }, piece).await?;
                offset = offset.saturating_add(length);
            }
        }
        Ok(())
    }

    /// Sends the requested files found in memory or on a local disk.
    async fn files(
        &self,
        cache: &Arc<Cache>,
        dataset: usize,
        number: u32,
        files: &[u8],
    ) -> io::Result<()> {
        let numbers = || files.as_chunks().0.iter().map(|number| u32::from_le_bytes(*number));
        let mut of_disks = cache.pin_files_of_disks(dataset, numbers()).await;
        let of_memory = cache.state().pin_files(dataset, numbers());
        let mut found = vec![None; numbers().len()];
        for pinned in of_memory.iter().chain(of_disks.iter().map(|(pinned, _)| pinned)) {
            for (file, bytes) in found.iter_mut().zip(pinned.bytes()) {
                *file = file.or(bytes.map(|(_, bytes)| bytes));
            }
        }
        let mut comes = [0; COMES];
        for (index, _) in found.iter().enumerate().filter(|(_, file)| file.is_some()) {
            comes.get_mut(index / 8).into_iter().for_each(|byte| *byte |= 1 << (index % 8));
        }
        let bytes: Vec<&[u8]> = found.into_iter().flatten().collect();
        let length = bytes.iter().map(|bytes| bytes.len() as u32).sum();
        let head = Answer::Files { number, length }.to_bytes();
        let parts = [&head[..], &comes].into_iter().chain(bytes);
        let sent = self.send_all(&mut parts.map(IoSlice::new).collect::<Vec<_>>()).await;
        if of_disks.take().is_some() {
            // The slot is free.
            cache.moved.notify_one();
        }
        sent
    }

    async fn send(&self, answer: Answer, bytes: &[u8]) -> io::Result<()> {
        let head = answer.to_bytes();
        self.send_all(&mut [IoSlice::new(&head), IoSlice::new(bytes)]).await
    }

    /// Sends all slices without other answers in between.
    async fn send_all(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        within(&*self.clock, SEND_TIMEOUT, async {
            let _turn = self.turn.acquire().await.map_err(io::Error::other)?;
            let writer = self.writer().take();
            let mut writer = writer.ok_or(io::ErrorKind::BrokenPipe)?;
            write_all(&mut writer, slices).await?;
            *self.writer() = Some(writer);
            Ok(())
        })
        .await
    }

    fn wanted(&self) -> MutexGuard<'_, HashSet<u32>> {
        locked(&self.wanted)
    }

    fn writer(&self) -> MutexGuard<'_, Option<Writer>> {
        locked(&self.writer)
    }
}

async fn write_all(writer: &mut Writer, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    let mut left: usize = slices.iter().map(|slice| slice.len()).sum();
    if !writer.is_write_vectored() && slices.len() > 2 {
        let joined: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        writer.write_all(&joined).await?;
        return writer.flush().await;
    }
    while left > 0 {
        let sent = writer.write_vectored(slices).await?;
        if sent == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        left -= sent;
        IoSlice::advance_slices(&mut slices, sent);
    }
    writer.flush().await
}
