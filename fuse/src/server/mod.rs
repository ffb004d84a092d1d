//! The server of a mount: threads that answer the requests of the kernel.
//!
//! Must hold: the server calls nothing that may enter its own mount. It has no state that the next
//! server lacks.

mod absent;
mod counts;
pub(crate) mod errno;
pub(crate) mod respond;
mod versions;

use std::io;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use dl_runtime::since_boot;
use libdiesel::Error;
use rustix::io::Errno;

use crate::abi::{Operation, Request};
use crate::channel::{Channel, REQUEST_BYTES};
use absent::{AbsentRead, AbsentReads};
pub use counts::Counted;
use counts::Counts;
use respond::{Response, respond};
pub(crate) use versions::{Version, Versions};

/// Reports the end of a thread, also by a panic.
struct EndOfThread(mpsc::Sender<io::Result<()>>);

impl Drop for EndOfThread {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.0.send(Err(io::Error::other("a thread of the mount panicked")));
        }
    }
}

/// The state of a server.
#[derive(Debug)]
pub(crate) struct Served {
    versions: ArcSwap<Versions>,
    /// Time for a read of absent bytes.
    patience: Duration,
    absent: AbsentReads,
    pub(crate) counts: Counts,
}

/// A read, and where its answer goes.
struct Read<'a> {
    channel: &'a Arc<Channel>,
    unique: u64,
    file: u32,
    offset: u64,
    size: u32,
}

impl Served {
    pub(crate) fn new(versions: Versions, patience: Duration) -> Arc<Self> {
        let (absent, counts) = (AbsentReads::default(), Counts::default());
        Arc::new(Self { versions: ArcSwap::from_pointee(versions), patience, absent, counts })
    }

    /// The versions now.
    pub(crate) fn versions(&self) -> Arc<Versions> {
        self.versions.load_full()
    }

    /// Shows other versions to later requests.
    pub(crate) fn show(&self, versions: Versions) {
        self.versions.store(Arc::new(versions));
    }

    /// The numbers of the server since its start.
    pub(crate) fn counted(&self) -> Counted {
        self.counts.counted(self.absent.queued())
    }

    /// Answers all requests until the end of the mount: a thread for each channel.
    pub(crate) fn run(self: &Arc<Self>, channels: Vec<Channel>) -> io::Result<()> {
        let (sender, ends) = mpsc::channel();
        for channel in channels {
            let (served, end) = (Arc::clone(self), EndOfThread(sender.clone()));
            let named = thread::Builder::new().name("answer".to_owned());
            named.spawn(move || {
                let answered = served.answer_all(&Arc::new(channel));
                // The receiver is gone after the end of another thread.
                let _ = end.0.send(answered);
            })?;
        }
        drop(sender);
        // The first end counts: of the mount, or of a thread whose requests the next server gets.
        let ended = ends.recv();
        ended.unwrap_or_else(|_| Err(io::Error::other("the threads of the mount panicked")))
    }

    fn answer_all(self: &Arc<Self>, channel: &Arc<Channel>) -> io::Result<()> {
        let (mut buffer, mut out) = (vec![0; REQUEST_BYTES], Vec::new());
        while let Some(length) = channel.next(&mut buffer)? {
            let Some(request) = Request::of(buffer.get(..length).unwrap_or_default()) else {
                return Err(io::Error::other("a request without a header"));
            };
            self.counts.add_request(request.header.opcode);
            if !self.answer_one(channel, &request, &mut out) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Answers a request; false at the end of the mount.
    fn answer_one(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let (unique, versions) = (request.header.unique, self.versions.load());
        let Some(version) = versions.of(request.header.node) else {
            // A notice gets no answer.
            if !matches!(request.operation, Operation::Notice) {
                self.log(channel.refuse(unique, Errno::STALE));
            }
            return true;
        };
        match respond(&version.tree, request, out) {
            Response::Bytes => self.answer(channel, unique, out),
            Response::Refused(why) => self.log(channel.refuse(unique, why)),
            Response::Read { file, offset, size } => {
                self.read(version, &Read { channel, unique, file, offset, size });
            }
            Response::Nothing => {}
            Response::End => return false,
        }
        true
    }

    /// Answers a read: at once if the bytes are in memory.
    fn read(self: &Arc<Self>, version: &Arc<Version>, read: &Read<'_>) {
        let Read { channel, unique, file, offset, size } = *read;
        let length = match version.tree.snapshot().place(file) {
            Ok(place) => place.length.saturating_sub(offset).min(size.into()) as usize,
            Err(error) => return self.log(channel.refuse(unique, errno::of(error.kind()))),
        };
        if length == 0 {
            return self.answer(channel, unique, &[]);
        }
        let range: Range<u64> = offset..offset + length as u64;
        let lent = |parts: &[&[u8]]| channel.answer(unique, parts);
        if let Some(answered) = version.dataset.lend_range_present(file, range, lent) {
            self.counts.add_hit(length);
            return self.log(answered);
        }
        self.counts.add_miss(length);
        let until = since_boot().saturating_add(self.patience);
        let (version, channel) = (Arc::clone(version), Arc::clone(channel));
        self.read_absent(AbsentRead { version, channel, unique, file, offset, length, until });
    }

    fn answer(&self, channel: &Channel, unique: u64, bytes: &[u8]) {
        let parts = [bytes];
        self.log(channel.answer(unique, if bytes.is_empty() { &[] } else { &parts }));
    }

    /// Logs an answer that the kernel did not take.
    fn log(&self, answered: io::Result<()>) {
        if let Err(why) = answered {
            tracing::debug!(%why, "answer a request");
        }
    }

    /// Logs the failure of a file.
    fn log_failure(&self, version: &Version, file: u32, error: &Error) {
        let path = version.tree.snapshot().path(file).map(|path| path.to_string());
        let why = std::error::Error::source(error).map(ToString::to_string);
        let (path, why) = (path.unwrap_or_default(), why.unwrap_or_default());
        tracing::warn!(path, %error, why, "a read failed");
    }
}
