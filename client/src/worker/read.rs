//! Reads of files by number out of shared memory.
//!
//! Must hold: bytes are copied or borrowed under a pin. A handle is attached again within some
//! seconds after it lost its agent; meanwhile the caller is told to read elsewhere. A child of a
//! fork has a connection of its own.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};
use bytes::Bytes;
use dl_runtime::since_boot;

use super::attach::{Attached, Attacher};
use super::fork;
use super::gather::Batch;
use super::layout::{Gauge, Pinned};
use super::message::{Begin, ToAgent, milliseconds};
use crate::error::Error;
use crate::process::PerProcess;
use crate::snapshot::{FilePlace, Snapshot};

/// Between two tries to attach.
const AGAIN: Duration = Duration::from_secs(2);

/// Files that are prepared together before the first of them is copied.
const TOGETHER: usize = 64;

/// Reads files of one dataset version through the agent of this node.
#[derive(Debug)]
pub(crate) struct Worker {
    attacher: Attacher,
    snapshot: Arc<Snapshot>,
    here: PerProcess<Here>,
}

/// An attachment for the time of a read.
type AttachedNow = Guard<Option<Arc<Attached>>>;

/// Lines of the processor's cache that are brought of each file of a batch: a copy is fast once it has
/// begun; of a view nobody knows what is read.
const COPIED: usize = 8;
const VIEWED: usize = 1;

/// What one process has.
#[derive(Debug, Default)]
struct Here {
    attached: ArcSwapOption<Attached>,
    /// The order that is read, for the next agent.
    begun: Mutex<Option<Begin>>,
    /// Files of the rank that were read.
    position: AtomicU64,
    /// When to try to attach again: milliseconds since boot.
    again: AtomicU64,
}

/// The bytes of a file where they lie in the cache. The chunk stays there as long as this lives: keep
/// it for short. In a child of a fork it is valid too.
#[derive(Debug, Clone)]
pub struct View(Viewed);

#[derive(Debug, Clone)]
enum Viewed {
    Shared { pin: Pin, offset: u32, length: usize },
    Copied(Bytes),
}

/// A pin that lasts for longer than a call.
#[derive(Debug)]
struct Pin {
    attached: Arc<Attached>,
    slot: u32,
}

impl Worker {
    /// For a snapshot whose agent was attached just now; or was not, then it is tried again in a while.
    pub(crate) fn new(
        attacher: Attacher,
        snapshot: Arc<Snapshot>,
        attached: Option<Attached>,
    ) -> Self {
        let worker = Self { attacher, snapshot, here: PerProcess::new() };
        if let Ok(here) = worker.here() {
            let again = since_boot().saturating_add(AGAIN);
            here.again.store(milliseconds(again), Ordering::Relaxed);
            here.set(attached);
        }
        worker
    }

    fn here(&self) -> Result<&Here, Error> {
        self.here.get_or_make(|| Ok(Here::default()))
    }

    /// What it reads.
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The attachment of this process, if it has one.
    pub(super) fn attached_now(&self) -> Option<Arc<Attached>> {
        Guard::into_inner(self.here.get()?.get())
    }

    /// The attachment of this process; attaches where it is time to.
    #[inline]
    pub(super) fn attached(&self) -> AttachedNow {
        let Ok(here) = self.here() else { return Guard::from_inner(None) };
        let attached = here.get();
        if attached.is_some() { attached } else { self.attach_again(here) }
    }

    #[cold]
    fn attach_again(&self, here: &Here) -> AttachedNow {
        let now = milliseconds(since_boot());
        let next = now.saturating_add(milliseconds(AGAIN));
        // One thread tries; the others read elsewhere meanwhile.
        let again = here.again.load(Ordering::Relaxed);
        let order = Ordering::Relaxed;
        if again > now || here.again.compare_exchange(again, next, order, order).is_err() {
            return Guard::from_inner(None);
        }
        let attached = self.attacher.attach_again().and_then(|(attached, file)| {
            let snapshot = Snapshot::map_sealed(&file, "the agent's snapshot".as_ref())?;
            snapshot.check_is(self.snapshot.dataset(), self.snapshot.version())?;
            Ok(attached)
        });
        match attached {
            Ok(attached) => {
                let begun = here.begun.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(begun) = begun {
                    let position = here.position.load(Ordering::Relaxed);
                    tell(&attached, Begin { position, ..begun });
                }
                here.set(Some(attached));
            }
            Err(error) => tracing::debug!(why = error.chain(), "no agent can be attached"),
        }
        here.get()
    }

    /// A file in memory; none when it has to be read elsewhere.
    pub(crate) fn read(&self, number: u32) -> Option<Bytes> {
        match self.place(number) {
            Some(place) => self.lend_at(number, place, Vec::new, Bytes::copy_from_slice),
            None => self.read_large(number).map(Bytes::from),
        }
    }

    /// Copies a file to the beginning of `buffer`; gives its length, none when it has to be read
    /// elsewhere.
    #[inline]
    pub(crate) fn read_into(&self, number: u32, buffer: &mut [u8]) -> Option<usize> {
        let Some(place) = self.place(number) else {
            return self.read_large_into(number, buffer);
        };
        self.lend_at(number, place, Vec::new, |bytes| {
            buffer.get_mut(..bytes.len())?.copy_from_slice(bytes);
            Some(bytes.len())
        })?
    }

    /// Hands the bytes of a file over while they are pinned; none when the file has to be read elsewhere.
    /// `hints` gives chunks that are read next, and is called where the agent has to be asked.
    pub(crate) fn lend<T>(
        &self,
        number: u32,
        hints: impl FnOnce() -> Vec<u32>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        self.lend_at(number, self.place(number)?, hints, take)
    }

    #[inline]
    fn lend_at<T>(
        &self,
        number: u32,
        place: FilePlace,
        hints: impl FnOnce() -> Vec<u32>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        let attached = self.attached();
        let attached = attached.as_ref()?;
        let (numbers, places) = ([number], [place]);
        let mut batch = Batch::new(attached, &numbers, &places);
        let (pinned, place) = self.pin_of(attached, &mut batch, 0, number, place, hints)?;
        let taken = take(pinned.bytes(place.offset, place.length as usize)?);
        count(attached, place);
        Some(taken)
    }

    /// Copies files one behind the other into `buffer`, and calls `took` for each with its index and its
    /// bytes there; ends before the first that does not fit or has to be read elsewhere. Gives how many
    /// were copied.
    pub(crate) fn read_many_into(
        &self,
        numbers: &[u32],
        buffer: &mut [u8],
        mut took: impl FnMut(usize, std::ops::Range<usize>),
    ) -> usize {
        let attached = self.attached();
        let Some(attached) = attached.as_ref() else { return 0 };
        let (mut done, mut end) = (0, 0);
        for together in numbers.chunks(TOGETHER) {
            let places = self.prepare(attached, together, COPIED);
            let mut batch = Batch::new(attached, together, &places);
            for (index, (number, place)) in together.iter().zip(places).enumerate() {
                let hints = || places.iter().skip(index + 1).map(|place| place.chunk).collect();
                let copied = match place {
                    FilePlace::NOWHERE => self.copy_large(*number, buffer, end),
                    place => self
                        .pin_of(attached, &mut batch, index, *number, place, hints)
                        .and_then(|pinned| copy(attached, pinned, buffer, end)),
                };
                let Some(to) = copied else { return done };
                took(done, end..to);
                (done, end) = (done + 1, to);
            }
        }
        done
    }

    #[cold]
    fn copy_large(&self, number: u32, buffer: &mut [u8], from: usize) -> Option<usize> {
        let length = self.read_large_into(number, buffer.get_mut(from..)?)?;
        from.checked_add(length)
    }

    /// Appends views of files to `views`; ends before the first that has to be read elsewhere.
    pub(crate) fn view_many(&self, numbers: &[u32], views: &mut Vec<View>) {
        let attached = self.attached();
        let Some(attached) = attached.as_ref() else { return };
        for together in numbers.chunks(TOGETHER) {
            let places = self.prepare(attached, together, VIEWED);
            let mut batch = Batch::new(attached, together, &places);
            for (index, number) in together.iter().enumerate() {
                let hints = || places.iter().skip(index + 1).map(|place| place.chunk).collect();
                let view = self.view_at(attached, &mut batch, (index, *number), hints);
                let Some(view) = view else { return };
                views.push(view);
            }
        }
    }

    /// Hands over files that lie in memory now, and waits for nothing; ends before the first file that is
    /// absent. Gives how many were handed over.
    pub(crate) fn lend_present(&self, numbers: &[u32], mut take: impl FnMut(&[u8])) -> usize {
        self.for_present(numbers, COPIED, |attached, place, pinned| {
            take(pinned.bytes(place.offset, place.length as usize)?);
            count(attached, place);
            Some(())
        })
    }

    /// Appends views of files that lie in memory now, and waits for nothing; ends before the first file
    /// that is absent.
    pub(crate) fn view_present(&self, numbers: &[u32], views: &mut Vec<View>) {
        self.for_present(numbers, VIEWED, |attached, place, pinned| {
            views.push(keep(attached, place, pinned)?);
            count(attached, place);
            Some(())
        });
    }

    #[inline]
    fn for_present(
        &self,
        numbers: &[u32],
        lines: usize,
        mut take: impl FnMut(&Arc<Attached>, FilePlace, Pinned<'_>) -> Option<()>,
    ) -> usize {
        let attached = self.here.get().map(Here::get);
        let Some(attached) = attached.as_ref().and_then(|attached| attached.as_ref()) else {
            return 0;
        };
        if let [number] = *numbers {
            let pin = |place: FilePlace| Some((place, attached.maps.pin(place.chunk)?));
            let pinned = self.place(number).and_then(pin);
            return usize::from(
                pinned.and_then(|(place, pinned)| take(attached, place, pinned)).is_some(),
            );
        }
        let mut done = 0;
        for together in numbers.chunks(TOGETHER) {
            for place in self.prepare(attached, together, lines).into_iter().take(together.len()) {
                let pinned = attached.maps.pin(place.chunk);
                if pinned.and_then(|pinned| take(attached, place, pinned)).is_none() {
                    return done;
                }
                done += 1;
            }
        }
        done
    }

    /// Whether this process reads through an agent now; attaches where it is time to.
    pub(crate) fn is_attached(&self) -> bool {
        self.attached().is_some()
    }

    /// The bytes of a file where they lie; a copy where this connection holds enough already.
    pub(crate) fn view(&self, number: u32) -> Option<View> {
        let (numbers, places) = ([number], [self.place(number).unwrap_or(FilePlace::NOWHERE)]);
        let attached = self.attached();
        let attached = attached.as_ref()?;
        let mut batch = Batch::new(attached, &numbers, &places);
        self.view_at(attached, &mut batch, (0, number), Vec::new)
    }

    #[inline]
    fn view_at<'a>(
        &self,
        attached: &'a Arc<Attached>,
        batch: &mut Batch<'a, '_>,
        (index, number): (usize, u32),
        hints: impl FnOnce() -> Vec<u32>,
    ) -> Option<View> {
        let place = batch.place(index);
        if place == FilePlace::NOWHERE {
            return self.read_large(number).map(|bytes| View::of(bytes.into()));
        }
        let (pinned, place) = self.pin_of(attached, batch, index, number, place, hints)?;
        let view = keep(attached, place, pinned)?;
        count(attached, place);
        Some(view)
    }

    /// Where files lie that are read together; the processor brings their first bytes meanwhile.
    #[inline]
    fn prepare(
        &self,
        attached: &Attached,
        together: &[u32],
        lines: usize,
    ) -> [FilePlace; TOGETHER] {
        self.snapshot.bring(together);
        let mut places = [FilePlace::NOWHERE; TOGETHER];
        for (place, number) in places.iter_mut().zip(together) {
            *place = self.place(*number).unwrap_or(FilePlace::NOWHERE);
            attached.maps.prefetch(place.chunk, place.offset, lines);
        }
        places
    }

    /// Where a file lies as a whole in one chunk; none for one that was cut into parts.
    #[inline]
    fn place(&self, number: u32) -> Option<FilePlace> {
        let place = self.snapshot.place(number).ok()?;
        let end = u64::from(place.offset).checked_add(place.length)?;
        (end <= u64::from(self.snapshot.shape().size())).then_some(place)
    }

    /// Pins a file of a batch, with its place in the slot: that in its chunk, unless it comes without the
    /// chunk. Asks the agent when it is absent.
    #[inline]
    fn pin_of<'a>(
        &self,
        attached: &'a Attached,
        batch: &mut Batch<'a, '_>,
        index: usize,
        number: u32,
        place: FilePlace,
        hints: impl FnOnce() -> Vec<u32>,
    ) -> Option<(Pinned<'a>, FilePlace)> {
        if let Some(pinned) = attached.maps.pin(place.chunk) {
            return Some((pinned, place));
        }
        let alone = batch.file(index);
        alone.or_else(|| Some((self.miss(attached, number, place, &hints())?, place)))
    }

    /// Pins the chunk of a file; asks the agent when it is absent.
    #[inline]
    pub(super) fn pin<'a>(
        &self,
        attached: &'a Attached,
        number: u32,
        place: FilePlace,
        hints: impl FnOnce() -> Vec<u32>,
    ) -> Option<Pinned<'a>> {
        match attached.maps.pin(place.chunk) {
            Some(pinned) => Some(pinned),
            None => self.miss(attached, number, place, &hints()),
        }
    }

    #[cold]
    fn miss<'a>(
        &self,
        attached: &'a Attached,
        number: u32,
        place: FilePlace,
        hints: &[u32],
    ) -> Option<Pinned<'a>> {
        attached.maps.pins.add(Gauge::Misses, 1);
        let pinned = attached.want(place.chunk, number, hints);
        if pinned.is_none() {
            attached.maps.pins.add(Gauge::Fallbacks, 1);
            attached.maps.pins.add(Gauge::FallbackBytes, place.length);
            if attached.is_over()
                && let Ok(here) = self.here()
            {
                here.set(None);
            }
        }
        pinned
    }

    /// Tells the agent that this process reads along no order any more.
    pub(super) fn end(&self) {
        let Some(here) = self.here.get() else { return };
        *here.begun.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(attached) = here.get().as_ref()
            && let Some(line) = attached.line()
        {
            let _ = line.socket.send(&ToAgent::End, &[], Duration::ZERO);
        }
    }

    /// Tells the agent along which order this process reads from now on.
    pub(super) fn begin(&self, begin: Begin) {
        let Ok(here) = self.here() else { return };
        here.position.store(begin.position, Ordering::Relaxed);
        *here.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(begin.clone());
        if let Some(attached) = here.get().as_ref() {
            tell(attached, begin);
        }
    }

    /// Notes how many files of the rank were read.
    #[inline]
    pub(super) fn reached(&self, position: u64) {
        let Some(here) = self.here.get() else { return };
        here.position.store(position, Ordering::Relaxed);
        if let Some(attached) = here.get().as_ref() {
            attached.maps.pins.set(Gauge::Position, position);
        }
    }
}

/// Copies a pinned file to a place in a buffer; gives where it ends there.
#[inline]
fn copy(
    attached: &Attached,
    (pinned, place): (Pinned<'_>, FilePlace),
    buffer: &mut [u8],
    from: usize,
) -> Option<usize> {
    let bytes = pinned.bytes(place.offset, place.length as usize)?;
    let to = from.checked_add(bytes.len())?;
    buffer.get_mut(from..to)?.copy_from_slice(bytes);
    count(attached, place);
    Some(to)
}

/// A view of a file in a pinned slot.
#[inline]
fn keep(attached: &Arc<Attached>, place: FilePlace, pinned: Pinned<'_>) -> Option<View> {
    let bytes = pinned.bytes(place.offset, place.length as usize)?;
    let (offset, length) = (place.offset, bytes.len());
    if !attached.may_view(pinned.slot()) {
        return Some(View(Viewed::Copied(Bytes::copy_from_slice(bytes))));
    }
    let slot = attached.keep_for_view(pinned);
    let pin = Pin { attached: Arc::clone(attached), slot };
    Some(View(Viewed::Shared { pin, offset, length }))
}

/// Tells an agent along which order this process reads. One that is not told fetches nothing ahead.
fn tell(attached: &Attached, begin: Begin) {
    attached.maps.pins.set(Gauge::Position, begin.position);
    let Some(line) = attached.line() else { return };
    let sent = line.socket.send(&ToAgent::Begin(begin), &[], attached.patience);
    if let Err(why) = sent {
        tracing::debug!(%why, "the agent can't be told of an order");
    }
}

/// Counts a file that was read from memory.
#[inline]
pub(super) fn count(attached: &Attached, place: FilePlace) {
    attached.maps.pins.add(Gauge::Hits, 1);
    attached.maps.pins.add(Gauge::HitBytes, place.length);
}

impl Here {
    #[inline]
    fn get(&self) -> AttachedNow {
        self.attached.load()
    }

    fn set(&self, attached: Option<Attached>) {
        let attached = attached.map(Arc::new);
        attached.iter().for_each(fork::watch);
        self.attached.store(attached);
    }
}

impl View {
    /// A view of bytes that lie in no cache.
    pub(crate) fn of(bytes: Bytes) -> Self {
        Self(Viewed::Copied(bytes))
    }
}

impl From<Bytes> for View {
    fn from(bytes: Bytes) -> Self {
        Self::of(bytes)
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Viewed::Shared { pin, offset, length } => {
                let maps = &pin.attached.maps;
                maps.pinned_bytes(pin.slot, *offset, *length).unwrap_or_default()
            }
            Viewed::Copied(bytes) => bytes,
        }
    }
}

impl Clone for Pin {
    fn clone(&self) -> Self {
        self.attached.share_view(self.slot);
        Self { attached: Arc::clone(&self.attached), slot: self.slot }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.attached.drop_view(self.slot);
    }
}
