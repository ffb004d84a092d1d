//! The server of a mount: threads that answer the requests of the kernel.
//!
//! Must hold: the server calls nothing that may enter its own mount. It has no state that the next
//! server lacks.

mod absent;
mod counts;
pub(crate) mod errno;
pub(crate) mod respond;

use std::io;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use dl_runtime::since_boot;
use libdiesel::{Dataset, Error};

use crate::abi::Request;
use crate::channel::{Channel, REQUEST_BYTES};
use crate::tree::Tree;
use absent::{AbsentRead, AbsentReads};
pub use counts::Counted;
use counts::Counts;
use respond::{Response, respond};

/// Reports the end of a thread, also by a panic.
struct EndOfThread(mpsc::Sender<io::Result<()>>);

impl Drop for EndOfThread {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.0.send(Err(io::Error::other("a thread of the mount panicked")));
        }
    }
}

/// A dataset version and its tree.
#[derive(Debug)]
pub(crate) struct Served {
    dataset: Dataset,
    tree: Tree,
    /// Time for a read of absent bytes.
    patience: Duration,
    absent: AbsentReads,
    pub(crate) counts: Counts,
}

impl Served {
    pub(crate) fn new(dataset: Dataset, tree: Tree, patience: Duration) -> Arc<Self> {
        let (absent, counts) = (AbsentReads::default(), Counts::default());
        Arc::new(Self { dataset, tree, patience, absent, counts })
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
            let unique = request.header.unique;
            self.counts.add_request(request.header.opcode);
            match respond(&self.tree, 0, &request, &mut out) {
                Response::Bytes => self.answer(channel, unique, &out),
                Response::Refused(why) => self.told(channel.refuse(unique, why)),
                Response::Read { file, offset, size } => {
                    self.read(channel, unique, file, (offset, size))
                }
                Response::Nothing => {}
                Response::End => return Ok(()),
            }
        }
        Ok(())
    }

    /// Answers a read: at once if the bytes are in memory.
    fn read(
        self: &Arc<Self>,
        channel: &Arc<Channel>,
        unique: u64,
        file: u32,
        (offset, size): (u64, u32),
    ) {
        let length = match self.tree.snapshot().place(file) {
            Ok(place) => place.length.saturating_sub(offset).min(size.into()) as usize,
            Err(error) => return self.told(channel.refuse(unique, errno::of(error.kind()))),
        };
        if length == 0 {
            return self.answer(channel, unique, &[]);
        }
        let range: Range<u64> = offset..offset + length as u64;
        let lent = |parts: &[&[u8]]| channel.answer(unique, parts);
        if let Some(answered) = self.dataset.lend_range_present(file, range, lent) {
            self.counts.add_hit(length);
            return self.told(answered);
        }
        self.counts.add_miss(length);
        let until = since_boot().saturating_add(self.patience);
        let channel = Arc::clone(channel);
        self.read_absent(AbsentRead { channel, unique, file, offset, length, until });
    }

    fn answer(&self, channel: &Channel, unique: u64, bytes: &[u8]) {
        let parts = [bytes];
        self.told(channel.answer(unique, if bytes.is_empty() { &[] } else { &parts }));
    }

    fn told(&self, answered: io::Result<()>) {
        if let Err(why) = answered {
            tracing::debug!(%why, "answer a request");
        }
    }

    /// Logs the failure of a file.
    fn tell(&self, file: u32, error: &Error) {
        let path = self.tree.snapshot().path(file).map(|path| path.to_string());
        let why = std::error::Error::source(error).map(ToString::to_string);
        let (path, why) = (path.unwrap_or_default(), why.unwrap_or_default());
        tracing::warn!(path, %error, why, "a read failed");
    }
}
