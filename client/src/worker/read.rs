//! Reads of files by number from shared memory.
//!
//! Must hold: bytes are copied or borrowed under a pin. After the loss of its agent, a handle
//! attaches again within seconds; until then the caller reads from the servers. A child of a fork
//! has its own connection.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};
use bytes::Bytes;
use dl_node::{Begin, Gauge, Pinned, ToAgent, copy_bytes, copy_of, milliseconds};
use dl_runtime::{locked, since_boot};

use super::attach::{Attached, Attacher, pause_after};
use super::fork;
use super::gather::Batch;
use crate::error::Error;
use crate::process::PerProcess;
use crate::snapshot::{FilePlace, Snapshot};

/// A file of a quarter of a chunk and more comes with its chunk.
const LARGE_PART: u64 = 4;

/// Files prepared as a group before the first copy.
const BATCH_SIZE: usize = 64;

/// Reads files of a dataset version through the agent of the node.
#[derive(Debug)]
pub(crate) struct AgentReader {
    attacher: Attacher,
    snapshot: Arc<Snapshot>,
    state: PerProcess<ProcessState>,
    /// The time of the next attempt to attach: milliseconds since boot. A child of a fork goes on
    /// with the time of its parent.
    again: AtomicU64,
    /// Whether an obstacle was noted.
    pub(super) has_noted: AtomicBool,
}

/// An attachment for the time of a read.
type AttachedNow = Guard<Option<Arc<Attached>>>;

/// Cache lines prefetched for each file of a group: enough lines to start a copy, and a single line
/// for a view, whose use is unknown.
const COPIED: usize = 8;
const VIEWED: usize = 1;

#[derive(Debug, Default)]
struct ProcessState {
    attached: ArcSwapOption<Attached>,
    /// The current order, for the next agent.
    begun: Mutex<Option<Begin>>,
    /// The number of files read of the rank.
    position: AtomicU64,
}

/// The bytes of a file, in the cache. The chunk stays in the cache while the view lives: keep a
/// view only for a short time. A view is valid in a child of a fork, too.
#[derive(Debug, Clone)]
pub struct View(Viewed);

#[derive(Debug, Clone)]
enum Viewed {
    Shared { pin: Pin, offset: u32, length: usize },
    Copied(Bytes),
}

/// A pin beyond a single call.
#[derive(Debug)]
struct Pin {
    attached: Arc<Attached>,
    slot: u32,
}

impl AgentReader {
    /// A worker for a snapshot, with its attachment or the time that the failed attempt to attach
    /// took: the next attempt follows after a while.
    pub(crate) fn new(
        attacher: Attacher,
        snapshot: Arc<Snapshot>,
        attached: Result<Attached, Duration>,
    ) -> Self {
        let attacher = attacher.of_version(Arc::clone(&snapshot));
        let again = AtomicU64::new(0);
        let (state, has_noted) = (PerProcess::new(), AtomicBool::new(false));
        let worker = Self { attacher, snapshot, state, again, has_noted };
        match (attached, worker.state()) {
            (Ok(attached), Ok(state)) => state.set(Some(attached)),
            (Err(took), _) => worker.attach_after(took),
            (Ok(_), Err(_)) => {}
        }
        worker
    }

    /// Sets the time of the next attempt to attach, after a failed attempt.
    fn attach_after(&self, took: Duration) {
        let again = since_boot().saturating_add(pause_after(took));
        self.again.store(milliseconds(again), Ordering::Relaxed);
    }

    fn state(&self) -> Result<&ProcessState, Error> {
        self.state.get_or_make(|| Ok(ProcessState::default()))
    }

    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The attachment of the process, if any.
    pub(super) fn attached_now(&self) -> Option<Arc<Attached>> {
        Guard::into_inner(self.state.get()?.get())
    }

    /// The attachment of the process; attaches if due.
    #[inline]
    pub(super) fn attached(&self) -> AttachedNow {
        let Ok(state) = self.state() else { return Guard::from_inner(None) };
        let attached = state.get();
        if attached.is_some() { attached } else { self.attach_again(state) }
    }

    #[cold]
    fn attach_again(&self, state: &ProcessState) -> AttachedNow {
        let began = since_boot();
        // A single thread attaches; the other threads read from the servers meanwhile.
        let again = self.again.load(Ordering::Relaxed);
        let next = milliseconds(began.saturating_add(pause_after(Duration::ZERO)));
        let order = Ordering::Relaxed;
        if again > milliseconds(began)
            || self.again.compare_exchange(again, next, order, order).is_err()
        {
            return Guard::from_inner(None);
        }
        match self.attacher.attach_again() {
            Ok((attached, _)) => {
                let begun = locked(&state.begun).clone();
                if let Some(begun) = begun {
                    let position = state.position.load(Ordering::Relaxed);
                    announce(&attached, Begin { position, ..begun });
                }
                state.set(Some(attached));
            }
            Err(error) => {
                tracing::debug!(why = error.chain(), "attaching to the agent failed");
                self.attach_after(since_boot().saturating_sub(began));
            }
        }
        state.get()
    }

    /// A file in memory; none if the caller must read from the servers.
    pub(crate) fn read(&self, number: u32) -> Option<Bytes> {
        self.read_with(number, Vec::new)
    }

    /// The same. For a request to the agent, `hints` gives the chunks needed next.
    pub(super) fn read_with(&self, number: u32, hints: impl FnOnce() -> Vec<u32>) -> Option<Bytes> {
        match self.place(number) {
            Some(place) => self.lend_at(number, place, hints, copy_of),
            None => self.read_large(number).map(Bytes::from),
        }
    }

    /// Copies a file to the beginning of `buffer`; gives its length, or none if the caller must
    /// read from the servers.
    #[inline]
    pub(crate) fn read_into(&self, number: u32, buffer: &mut [u8]) -> Option<usize> {
        let Some(place) = self.place(number) else {
            return self.read_large_into(number, buffer);
        };
        self.lend_at(number, place, Vec::new, |bytes| {
            copy_bytes(bytes, buffer.get_mut(..bytes.len())?);
            Some(bytes.len())
        })?
    }

    /// Lends the pinned bytes of a file; none if the caller must read from the servers. For a
    /// request to the agent, `hints` gives the chunks needed next.
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
        let batch = Batch::new(attached, &numbers, &places);
        let (pinned, place) = self.pin_of(attached, &batch, 0, number, place, hints)?;
        let taken = take(pinned.bytes(place.offset, place.length as usize)?);
        count(attached, place);
        Some(taken)
    }

    /// Copies files one behind the other into `buffer`, and calls `took` with the index and the
    /// range of each. Ends before the first file that does not fit, or that the caller must read
    /// from the servers. Gives the number of copied files.
    pub(crate) fn read_many_into(
        &self,
        numbers: &[u32],
        buffer: &mut [u8],
        mut took: impl FnMut(usize, std::ops::Range<usize>),
    ) -> usize {
        let attached = self.attached();
        let Some(attached) = attached.as_ref() else { return 0 };
        let (mut done, mut end) = (0, 0);
        for together in numbers.chunks(BATCH_SIZE) {
            let places = self.prepare(attached, together, COPIED);
            let batch = Batch::new(attached, together, &places);
            for (index, (number, place)) in together.iter().zip(places).enumerate() {
                let hints = || places.iter().skip(index + 1).map(|place| place.chunk).collect();
                let copied = match place {
                    FilePlace::NOWHERE => self.copy_large(*number, buffer, end),
                    place => self
                        .pin_of(attached, &batch, index, *number, place, hints)
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

    /// Appends views of files to `views`; ends before the first file to read from the servers.
    pub(crate) fn view_many(&self, numbers: &[u32], views: &mut Vec<View>) {
        let attached = self.attached();
        let Some(attached) = attached.as_ref() else { return };
        for together in numbers.chunks(BATCH_SIZE) {
            let places = self.prepare(attached, together, VIEWED);
            let batch = Batch::new(attached, together, &places);
            for (index, number) in together.iter().enumerate() {
                let hints = || places.iter().skip(index + 1).map(|place| place.chunk).collect();
                let view = self.view_at(attached, &batch, (index, *number), hints);
                let Some(view) = view else { return };
                views.push(view);
            }
        }
    }

    /// Lends files present in memory, without waiting; ends before the first absent file. Gives the
    /// number of files lent.
    pub(crate) fn lend_present(&self, numbers: &[u32], mut take: impl FnMut(&[u8])) -> usize {
        self.for_present(numbers, COPIED, |attached, place, pinned| {
            take(pinned.bytes(place.offset, place.length as usize)?);
            count(attached, place);
            Some(())
        })
    }

    /// Appends views of files present in memory, without waiting; ends before the first absent
    /// file.
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
        let attached = self.state.get().map(ProcessState::get);
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
        for together in numbers.chunks(BATCH_SIZE) {
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

    /// The bytes of a file in the cache; a copy if views hold too many slots already.
    pub(crate) fn view(&self, number: u32) -> Option<View> {
        let (numbers, places) = ([number], [self.place(number).unwrap_or(FilePlace::NOWHERE)]);
        let attached = self.attached();
        let attached = attached.as_ref()?;
        let batch = Batch::new(attached, &numbers, &places);
        self.view_at(attached, &batch, (0, number), Vec::new)
    }

    #[inline]
    fn view_at<'a>(
        &self,
        attached: &'a Arc<Attached>,
        batch: &Batch<'a, '_>,
        (index, number): (usize, u32),
        hints: impl FnOnce() -> Vec<u32>,
    ) -> Option<View> {
        let place = batch.place(index);
        if place == FilePlace::NOWHERE {
            return self.read_large(number).map(|bytes| Bytes::from(bytes).into());
        }
        let (pinned, place) = self.pin_of(attached, batch, index, number, place, hints)?;
        let view = keep(attached, place, pinned)?;
        count(attached, place);
        Some(view)
    }

    /// The places of a group of files; prefetches their first bytes.
    #[inline]
    fn prepare(
        &self,
        attached: &Attached,
        together: &[u32],
        lines: usize,
    ) -> [FilePlace; BATCH_SIZE] {
        self.snapshot.bring(together);
        let mut places = [FilePlace::NOWHERE; BATCH_SIZE];
        for (place, number) in places.iter_mut().zip(together) {
            *place = self.place(*number).unwrap_or(FilePlace::NOWHERE);
            attached.maps.prefetch(place.chunk, place.offset, lines);
        }
        places
    }

    /// The place of a file within a single chunk; none for a file cut into parts.
    #[inline]
    pub(super) fn place(&self, number: u32) -> Option<FilePlace> {
        let place = self.snapshot.place(number).ok()?;
        let end = u64::from(place.offset).checked_add(place.length)?;
        (end <= u64::from(self.snapshot.shape().size())).then_some(place)
    }

    /// Pins a file of a batch. Gives its place in the slot: the place in the chunk, or another
    /// place if the file came alone. Asks the agent for an absent file.
    #[inline]
    fn pin_of<'a>(
        &self,
        attached: &'a Attached,
        batch: &Batch<'a, '_>,
        index: usize,
        number: u32,
        place: FilePlace,
        hints: impl FnOnce() -> Vec<u32>,
    ) -> Option<(Pinned<'a>, FilePlace)> {
        if let Some(pinned) = attached.maps.pin(place.chunk) {
            return Some((pinned, place));
        }
        let of_chunk = |hints: &[u32]| Some((self.miss(attached, number, place, hints)?, place));
        if !attached.files_alone().comes_from_disks() {
            return batch.file(index).or_else(|| of_chunk(&hints()));
        }
        let hints = hints();
        let is_chunk_worth = self.is_chunk_worth(attached, number, place, &hints);
        let alone = if is_chunk_worth { None } else { batch.file(index) };
        alone.or_else(|| of_chunk(&hints))
    }

    /// Asks the agent for the absent chunk of a file, and pins the chunk.
    #[cold]
    pub(super) fn miss<'a>(
        &self,
        attached: &'a Attached,
        number: u32,
        place: FilePlace,
        hints: &[u32],
    ) -> Option<Pinned<'a>> {
        attached.maps.pins.add(Gauge::Misses, 1);
        if attached.group_max().is_none()
            && (!attached.files_alone().comes_from_servers()
                || self.is_chunk_worth(attached, number, place, hints))
            && let Some(pinned) = attached.want(place.chunk, number, hints)
        {
            return Some(pinned);
        }
        attached.maps.pins.add(Gauge::Fallbacks, 1);
        attached.maps.pins.add(Gauge::FallbackBytes, place.length);
        self.drop_if_over(attached);
        None
    }

    /// Whether more of an absent file's chunk is probably needed soon.
    fn is_chunk_worth(
        &self,
        attached: &Attached,
        number: u32,
        place: FilePlace,
        hints: &[u32],
    ) -> bool {
        let is_same_chunk =
            |file: u32| self.place(file).is_some_and(|other| other.chunk == place.chunk);
        place.length * LARGE_PART >= attached.maps.arena.shape().slot_bytes.into()
            || hints.contains(&place.chunk)
            || attached.read_alone.is_next(number, is_same_chunk)
    }

    /// Whether absent files may come alone from the servers.
    pub(crate) fn reads_files_alone(&self) -> bool {
        self.attached_now().is_some_and(|attached| attached.files_alone().comes_from_servers())
    }

    /// Forgets the attachment to an agent that has ended.
    pub(super) fn drop_if_over(&self, attached: &Attached) {
        if attached.is_over()
            && let Ok(state) = self.state()
        {
            state.set(None);
        }
    }

    /// Ends the current order at the agent.
    pub(super) fn end(&self) {
        let Some(state) = self.state.get() else { return };
        *locked(&state.begun) = None;
        if let Some(attached) = state.get().as_ref()
            && let Some(channel) = attached.channel()
        {
            let _ = channel.socket.send(&ToAgent::End, &[], Duration::ZERO);
        }
    }

    /// Announces the new order to the agent.
    pub(super) fn begin(&self, begin: Begin) {
        let Ok(state) = self.state() else { return };
        state.position.store(begin.position, Ordering::Relaxed);
        *locked(&state.begun) = Some(begin.clone());
        if let Some(attached) = state.get().as_ref() {
            announce(attached, begin);
        }
    }

    /// Notes the number of files read of the rank.
    #[inline]
    pub(super) fn reached(&self, position: u64) {
        let Some(state) = self.state.get() else { return };
        state.position.store(position, Ordering::Relaxed);
        if let Some(attached) = state.get().as_ref() {
            attached.maps.pins.set(Gauge::Position, position);
        }
    }
}

/// Copies a pinned file to an offset of the buffer; gives the end offset.
#[inline]
fn copy(
    attached: &Attached,
    (pinned, place): (Pinned<'_>, FilePlace),
    buffer: &mut [u8],
    from: usize,
) -> Option<usize> {
    let bytes = pinned.bytes(place.offset, place.length as usize)?;
    let to = from.checked_add(bytes.len())?;
    copy_bytes(bytes, buffer.get_mut(from..to)?);
    count(attached, place);
    Some(to)
}

/// A view of a file in a pinned slot.
#[inline]
fn keep(attached: &Arc<Attached>, place: FilePlace, pinned: Pinned<'_>) -> Option<View> {
    let bytes = pinned.bytes(place.offset, place.length as usize)?;
    let (offset, length) = (place.offset, bytes.len());
    if !pinned.may_become_view() || !attached.may_view(pinned.slot()) {
        return Some(View(Viewed::Copied(copy_of(bytes))));
    }
    let slot = attached.keep_for_view(pinned);
    let pin = Pin { attached: Arc::clone(attached), slot };
    Some(View(Viewed::Shared { pin, offset, length }))
}

/// Announces an order to the agent. Without the message, the agent fetches nothing ahead.
fn announce(attached: &Attached, begin: Begin) {
    attached.maps.pins.set(Gauge::Position, begin.position);
    let Some(channel) = attached.channel() else { return };
    let sent = channel.socket.send(&ToAgent::Begin(begin), &[], attached.patience);
    if let Err(why) = sent {
        tracing::debug!(%why, "announcing an order to the agent failed");
    }
}

#[inline]
fn count(attached: &Attached, place: FilePlace) {
    attached.maps.pins.add(Gauge::Hits, 1);
    attached.maps.pins.add(Gauge::HitBytes, place.length);
}

impl ProcessState {
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

impl From<Bytes> for View {
    fn from(bytes: Bytes) -> Self {
        Self(Viewed::Copied(bytes))
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
