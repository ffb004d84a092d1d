//! A model of the cache: any sequence of requests, fills, failures, pins, departures, orders, writes
//! to disks and changes of owners.
//!
//! Must hold: each slot has one owner, and is filled only without pins. The counts add up. Each
//! waiter is answered once. No kept chunk leaves for another chunk while an order is read. A chunk is
//! written to a disk by one task, from a slot that keeps its bytes. Own chunks in memory
//! that no tier keeps wait for a disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dl_format::MemberId;
use dl_node::{Begin, FromAgent, Gauge, PinPage, Socket, Table};
use dl_proto::TaskMember;
use proptest::prelude::*;

use super::wants::{Fetch, Filled};
use super::{ChunkReply, Connection, State, Waiter};
use crate::Policy;
use crate::pins::PinnedFiles;
use crate::place::{
    ChunkBits, ChunkKey, Eviction, Origin, OwnerTable, Owners, Retention, Stage, WriteEnd,
};

const SLOT: u32 = 4_096;
const SLOTS: u32 = 6;
const CHUNKS: u32 = 10;
const FILES: u32 = 2;
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
enum Step {
    Enter,
    Leave(usize),
    Want(usize, u32),
    /// The reader gives up its wait.
    GiveUp(usize),
    /// The reader ends its oldest read.
    Unpin(usize),
    FirstFile(usize),
    Fill(usize, Origin),
    Fail(usize, bool),
    Ahead,
    Prefetch(usize, u32),
    Retry(u64),
    AskOfPeer(u32),
    EndOfPeer,
    Owners(u8),
    HandOver(u16),
    BeginOrder(usize, u64),
    Read(usize),
    EndOrder(usize),
    Use(u32, u32),
    /// The chunks on disks, and how many further chunks fit.
    Disks(u16, u32),
    QueueIdle,
    Write,
    EndWrite(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let reader = 0..3_usize;
    let origin = prop_oneof![
        4 => Just(Origin::Servers),
        1 => Just(Origin::ServersInstead),
        1 => Just(Origin::Peer),
        1 => Just(Origin::Disk)
    ];
    let step = prop_oneof![
        2 => Just(Step::Enter),
        1 => reader.clone().prop_map(Step::Leave),
        8 => (reader.clone(), 0..CHUNKS + 1).prop_map(|(reader, chunk)| Step::Want(reader, chunk)),
        1 => reader.clone().prop_map(Step::GiveUp),
        6 => reader.clone().prop_map(Step::Unpin),
        2 => (0..4_usize).prop_map(Step::FirstFile),
        8 => (0..4_usize, origin).prop_map(|(fetch, origin)| Step::Fill(fetch, origin)),
        2 => (0..4_usize, any::<bool>()).prop_map(|(fetch, last)| Step::Fail(fetch, last)),
        4 => Just(Step::Ahead),
        1 => (reader.clone(), 0..CHUNKS).prop_map(|(reader, from)| Step::Prefetch(reader, from)),
        4 => (0..7_u64).prop_map(Step::Retry),
        2 => (0..CHUNKS).prop_map(Step::AskOfPeer),
        2 => Just(Step::EndOfPeer),
        1 => any::<u8>().prop_map(Step::Owners),
        1 => any::<u16>().prop_map(Step::HandOver),
        2 => (reader.clone(), 0..20_u64).prop_map(|(reader, at)| Step::BeginOrder(reader, at)),
        3 => reader.clone().prop_map(Step::Read),
        1 => reader.prop_map(Step::EndOrder),
        2 => (0..CHUNKS, 1..300_u32).prop_map(|(chunk, times)| Step::Use(chunk, times)),
        2 => (any::<u16>(), 0..4_u32).prop_map(|(there, room)| Step::Disks(there, room)),
        1 => Just(Step::QueueIdle),
        3 => Just(Step::Write),
        2 => any::<bool>().prop_map(Step::EndWrite),
    ];
    prop::collection::vec(step, 1..120)
}

/// A worker process.
struct Reader {
    number: u64,
    socket: Socket,
    /// The unanswered wait, with its chunk.
    wait: Option<(u64, u32)>,
    /// Slots pinned by the reader.
    pins: Vec<u32>,
}

/// The cache, with the world around it.
struct World {
    state: State,
    policy: Policy,
    table: Arc<Table>,
    now: Duration,
    readers: Vec<Reader>,
    fetches: Vec<Fetch>,
    sent: Vec<PinnedFiles>,
    /// Chunks being written to disks, each with its slot.
    writes: Vec<(ChunkKey, u32, PinnedFiles)>,
    /// The chunk in each slot since its fill began.
    contents: BTreeMap<u32, u32>,
    next_wait: u64,
}

fn key(chunk: u32) -> ChunkKey {
    ChunkKey { dataset: 0, chunk }
}

impl World {
    fn new(policy: Policy, eviction: Eviction, has_disks: bool) -> Self {
        let mut state = State { has_disks, ..State::new(policy, eviction) };
        state.slots.fit(SLOT, u64::from(SLOT * SLOTS)).unwrap();
        let table = Arc::new(Table::create(CHUNKS).unwrap().0);
        state.serve(Arc::clone(&table), policy);
        let (readers, fetches, sent, writes, contents) = Default::default();
        let (now, next_wait) = (Duration::from_secs(1), 1);
        Self { state, policy, table, now, readers, fetches, sent, writes, contents, next_wait }
    }

    fn reader(&mut self, index: usize) -> Option<&mut Reader> {
        let count = self.readers.len().max(1);
        self.readers.get_mut(index % count)
    }

    fn start(&mut self, fetch: Option<Fetch>) {
        let Some(fetch) = fetch else { return };
        assert!(!self.state.connections.pin(fetch.slot), "a pinned slot is filled");
        assert!(!self.state.slots.is_sent(fetch.slot), "a slot being sent is filled");
        assert!(self.fetches.iter().all(|other| other.key != fetch.key), "fetched twice");
        self.contents.insert(fetch.slot, fetch.key.chunk);
        self.fetches.push(fetch);
    }

    fn take_fetch(&mut self, index: usize) -> Option<Fetch> {
        let count = self.fetches.len();
        (count > 0).then(|| self.fetches.remove(index % count))
    }

    fn enter(&mut self) {
        if self.readers.len() == 3 {
            return;
        }
        let (pins, _file) = PinPage::create(SLOTS).unwrap();
        let (of_agent, socket) = Socket::pair().unwrap();
        let pid = self.next_wait as u32;
        let number = self.state.enter(Connection::new(pid, 0, pins, Arc::new(of_agent), false));
        self.readers.push(Reader { number, socket, wait: None, pins: Vec::new() });
    }

    fn want(&mut self, index: usize, chunk: u32) {
        let (id, until, now) = (self.next_wait, self.now + TIMEOUT, self.now);
        let Some(reader) = self.reader(index).filter(|reader| reader.wait.is_none()) else {
            return;
        };
        reader.wait = Some((id, chunk));
        let connection = reader.number;
        self.next_wait += 1;
        self.state.connections.get(connection).unwrap().pins.begin_wait(id);
        let waiter = Waiter { connection, id, file: chunk * FILES, until };
        let fetch = self.state.want(key(chunk), waiter, now);
        self.start(fetch);
    }

    fn ask_of_peer(&mut self, chunk: u32) {
        let member = MemberId::from_bytes([7; 16]);
        let (reply, fetch) = self.state.reply_to_peer(key(chunk), member, self.now);
        if let ChunkReply::Here(pinned) = reply {
            self.sent.push(pinned);
        }
        self.start(fetch);
    }

    fn owners(&mut self, seed: u8) {
        let member = |number: u8| TaskMember {
            id: MemberId::from_bytes([number; 16]),
            address: String::new(),
            key_fingerprint: None,
            memory: 1,
            chunks: None,
        };
        let members = [member(seed), member(seed.wrapping_add(1))];
        let me = members[usize::from(seed & 1)].id;
        let owners = OwnerTable::of(&Owners::of(&members), me, CHUNKS);
        self.state.owners_changed(0, Arc::new(owners));
    }

    fn begin_order(&mut self, index: usize, position: u64) {
        let Some(connection) = self.reader(index).map(|reader| reader.number) else { return };
        let first_files: Arc<[u32]> = (0..=CHUNKS).map(|chunk| chunk * FILES).collect();
        let begin = Begin {
            seed: 5,
            epoch: 0,
            group: 2,
            world: 1,
            nodes: Some(1),
            is_padded: false,
            rank: 0,
            position,
            selection: None,
        };
        self.state.connections.get(connection).unwrap().pins.set(Gauge::Position, position);
        self.state.orders.begin(connection, 0, first_files, begin).unwrap();
        self.state.announce_large_groups();
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Enter => self.enter(),
            Step::Leave(index) if !self.readers.is_empty() => {
                let gone = self.readers.remove(index % self.readers.len());
                self.state.leave(gone.number);
            }
            Step::Want(index, chunk) => self.want(index, chunk),
            Step::GiveUp(index) => self.give_up(index),
            Step::Unpin(index) => {
                let Some(reader) = self.reader(index) else { return };
                let (number, pins) = (reader.number, &mut reader.pins);
                let slot = (!pins.is_empty()).then(|| pins.remove(0));
                let pins = &self.state.connections.get(number).unwrap().pins;
                slot.into_iter().for_each(|slot| pins.unpin(slot));
            }
            Step::FirstFile(index) => {
                let count = self.fetches.len().max(1);
                let Some(fetch) = self.fetches.get(index % count) else { return };
                fetch.first.into_iter().for_each(|file| self.state.file_is_there(fetch.key, file));
            }
            Step::Fill(index, origin) => {
                let Some(fetch) = self.take_fetch(index) else { return };
                self.state.residency.comes_from_servers(fetch.key);
                self.state.filled(fetch.key, Filled { span: (0, 8), origin }, self.now);
                self.state.queue_for_disk(fetch.key, origin, false);
            }
            Step::Fail(index, is_final) => {
                let Some(fetch) = self.take_fetch(index) else { return };
                self.state.lost(fetch.key, "no", is_final);
            }
            Step::Ahead => {
                let fetch = self.state.fetch_ahead(self.policy, self.now);
                self.start(fetch);
            }
            Step::Prefetch(index, from) => {
                let Some(number) = self.reader(index).map(|reader| reader.number) else { return };
                self.state.prefetch(number, vec![(from, CHUNKS)]);
            }
            Step::Retry(seconds) => {
                self.now += Duration::from_secs(seconds);
                let fetches = self.state.retry_queue(self.now);
                let State { residency, served, disk, keeps, .. } = &self.state;
                let may_wait = |key: &ChunkKey| served.owns(*key) && disk.may_queue(*key);
                let forgotten = residency.transient().find(may_wait);
                assert!(!keeps || forgotten.is_none(), "on no tier: {forgotten:?}");
                fetches.into_iter().for_each(|fetch| self.start(Some(fetch)));
            }
            Step::AskOfPeer(chunk) => self.ask_of_peer(chunk),
            Step::EndOfPeer => _ = self.sent.pop(),
            Step::Owners(seed) => self.owners(seed),
            Step::HandOver(bits) => {
                let most = self.state.keep_max();
                let bit = |key: ChunkKey| bits & (1 << key.chunk) != 0;
                self.state.residency.owners_changed(most, bit, |key| !bit(key));
            }
            Step::BeginOrder(index, position) => self.begin_order(index, position),
            Step::Read(index) => {
                let Some(number) = self.reader(index).map(|reader| reader.number) else { return };
                let pins = &self.state.connections.get(number).unwrap().pins;
                pins.set(Gauge::Position, pins.get(Gauge::Position) + 1);
            }
            Step::EndOrder(index) => {
                let Some(number) = self.reader(index).map(|reader| reader.number) else { return };
                self.state.end_order(number);
            }
            Step::Use(chunk, times) => self.state.residency.used(key(chunk), times),
            Step::Disks(there, room) if self.state.has_disks => {
                let mut chunks = ChunkBits::none(CHUNKS);
                let is_there = |chunk: &u32| there & (1 << chunk) != 0;
                (0..CHUNKS).filter(is_there).for_each(|chunk| chunks.add(chunk));
                self.state.disk.set(0, chunks);
                self.state.disk.set_room(room.checked_sub(1));
                self.state.disk.set_missing(1);
            }
            Step::QueueIdle => self.state.queue_an_idle_chunk(),
            Step::Write => {
                let Some((key, pinned)) = self.state.next_to_write() else { return };
                let slot = self.state.residency.get_full(key).expect("it is in memory");
                assert!(self.writes.iter().all(|(other, ..)| *other != key), "written twice");
                self.writes.push((key, slot, pinned));
            }
            Step::EndWrite(is_there) => {
                let Some((key, ..)) = self.writes.pop() else { return };
                let end = if is_there { WriteEnd::New } else { WriteEnd::Failed };
                self.state.disk.end(key, end);
            }
            Step::Leave(_) | Step::Disks(..) => {}
        }
    }

    fn give_up(&mut self, index: usize) {
        let Some(reader) = self.reader(index).filter(|reader| reader.wait.is_some()) else {
            return;
        };
        let number = reader.number;
        let given = self.state.connections.get(number).unwrap().pins.end_wait();
        let reader = self.reader(index).unwrap();
        reader.pins.extend(given);
        // The answer may still come, and is not for a later wait.
        while reader.socket.try_receive::<FromAgent>().is_ok_and(|answer| answer.is_some()) {}
        reader.wait = None;
    }

    /// Takes the answers of the readers.
    fn receive(&mut self) {
        for reader in &mut self.readers {
            while let Ok(Some((answer, _))) = reader.socket.try_receive::<FromAgent>() {
                let (FromAgent::Here { id } | FromAgent::NotHere { id, .. }) = answer else {
                    panic!("{answer:?}");
                };
                let Some((_, chunk)) = reader.wait.take_if(|(wait, _)| *wait == id) else {
                    assert!(matches!(answer, FromAgent::NotHere { .. }), "answered twice");
                    continue;
                };
                if matches!(answer, FromAgent::Here { .. }) {
                    let pins = &self.state.connections.get(reader.number).unwrap().pins;
                    let slot = pins.end_wait().expect("a pinned slot comes with the answer");
                    assert_eq!(self.contents.get(&slot), Some(&chunk), "of another chunk");
                    reader.pins.push(slot);
                }
            }
        }
    }

    fn kept(&self) -> BTreeSet<u32> {
        let kept = self.state.residency.iter().filter(|(_, held)| {
            matches!(held.stage, Stage::Full { retention: Retention::Kept, .. })
        });
        kept.map(|(key, _)| key.chunk).collect()
    }

    fn check(&self) {
        let mut seen: BTreeSet<u32> = self.state.slots.unowned().collect();
        assert_eq!(seen.len(), self.state.slots.unowned().count(), "a slot is unowned twice");
        let mut counts = [0_u32; 3];
        for (key, held) in self.state.residency.iter() {
            assert!(seen.insert(held.slot), "slot {} has two owners", held.slot);
            let shown = self.table.load(key.chunk).slot();
            match held.stage {
                Stage::Filling(_) => assert_eq!(shown, None, "shown before its bytes are there"),
                Stage::Full { retention, .. } => {
                    assert_eq!(shown, Some(held.slot));
                    counts[retention as usize] += 1;
                }
            }
        }
        assert_eq!(seen.len(), SLOTS as usize, "a slot has no owner");
        let shown = (0..CHUNKS).filter(|chunk| self.table.load(*chunk).slot().is_some());
        assert_eq!(shown.count() as u32, counts.iter().sum::<u32>(), "an absent chunk is shown");
        let residency = &self.state.residency;
        let listed = [residency.transient().count() as u32, residency.copies(), residency.kept()];
        assert_eq!(listed, counts, "transient, copies, kept");
        let reserved = self.state.residency.iter().filter(|(_, held)| held.is_reserved());
        assert_eq!(reserved.count() as u32, residency.reserved());
        for (key, slot, _) in &self.writes {
            assert_eq!(self.contents.get(slot), Some(&key.chunk), "another chunk is written");
        }
        assert!(self.writes.len() <= 4);
        for reader in &self.readers {
            for slot in &reader.pins {
                assert!(self.state.connections.pin(*slot), "a pin is lost");
            }
        }
    }

    /// Whether a slot could be had without the slot of a kept chunk.
    fn has_other_slot(&self) -> bool {
        let is_free = |key: ChunkKey| {
            let slot = self.state.residency.get_full(key);
            slot.is_some_and(|slot| {
                !self.state.connections.pin(slot) && !self.state.slots.is_sent(slot)
            })
        };
        self.state.slots.empty() > 0 || self.state.residency.transient().any(is_free)
    }

    fn run(&mut self, step: Step) {
        let (kept, most) = (self.kept(), self.state.keep_max());
        let (is_read, evicted) = (self.state.orders.are_read(), self.state.residency.evicted());
        let (has_other, is_shrinking) = (self.has_other_slot(), self.state.residency.kept() > most);
        let may_hand_over = matches!(step, Step::HandOver(_) | Step::Retry(_));
        let text = format!("{step:?}");
        self.step(step);
        self.receive();
        self.check();
        if is_read {
            assert_eq!(self.state.residency.evicted(), evicted, "{text}: evicted in an order");
        }
        let is_evicting = self.state.residency.evicted() > evicted;
        if has_other && !is_shrinking && !may_hand_over && !is_evicting {
            let gone: Vec<_> = kept.difference(&self.kept()).copied().collect();
            assert!(gone.is_empty(), "{text}: kept chunks left: {gone:?}");
        }
    }

    /// Ends all fetches and waits: every waiter is answered.
    fn end(&mut self) {
        self.now += TIMEOUT * 2;
        while !self.fetches.is_empty() {
            self.run(Step::Fill(0, Origin::Servers));
        }
        self.run(Step::Retry(TIMEOUT.as_secs() + 1));
        while !self.fetches.is_empty() {
            self.run(Step::Fail(0, false));
        }
        let unanswered: Vec<_> = self.readers.iter().filter_map(|reader| reader.wait).collect();
        assert_eq!(unanswered, [], "waits without an answer");
        self.sent.clear();
        self.writes.clear();
        self.readers.iter().for_each(|reader| self.state.leave(reader.number));
        self.readers.clear();
        self.state.retry_queue(self.now);
        self.check();
        let held = self.state.residency.iter().count() as u32;
        assert_eq!(self.state.slots.empty() + held, SLOTS, "a slot stays draining");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn any_steps_keep_the_cache_consistent(
        steps in steps(),
        policy in prop::sample::select(vec![Policy::OnDemand, Policy::OneShot, Policy::None]),
        eviction in prop::sample::select(Eviction::ALL.to_vec()),
        has_disks in any::<bool>(),
    ) {
        let mut world = World::new(policy, eviction, has_disks);
        for step in steps {
            world.run(step);
        }
        world.end();
    }
}

/// Enough for a moment; `make torture` sets more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(4_096)
}
