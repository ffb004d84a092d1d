//! A model of readers and an agent over one slot, which loom runs in all orders of steps and of memory.
//! The steps are those of `layout` and of the agent's cache.
//!
//! Must hold: the protocol shows neither a race nor wrong bytes. Loom finds either of them as soon as one
//! rule of docs/AGENT.md, *Pins*, is broken.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::cell::Cell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// Rule 1.
    ReaderFence,
    AgentFence,
    SecondLook,
    /// Rule 2.
    ReleaseOfUnpin,
    AcquireOfLook,
    /// Rule 3. The reader's fence acquires as well, so that both are broken here.
    ReleaseOfPublication,
    AcquireOfLoadAndFence,
    /// Rule 4.
    NextGeneration,
    /// Rule 5.
    PageOfConnection,
    EndOfPage,
    /// Rule 6.
    PinForReader,
    ReleaseOfHandover,
    EndOfWait,
    /// Rule 7.
    WithdrawBeforeFill,
    LookBeforeFill,
}

const CHUNKS: usize = 2;
const READERS: usize = 2;
/// Files of a chunk.
const FILES: usize = 2;

/// How often a reader of the model looks for a chunk that moves.
const LOOKS: usize = 2;

/// The bytes of a file: its chunk, and the number of the fill that wrote them.
type Bytes = (usize, u64);

/// Shared memory of one node with one slot. A word is 0, or the generation.
struct Node {
    broken: Broken,
    table: [AtomicU64; CHUNKS],
    slot: [Cell<Bytes>; FILES],
    pages: [Page; READERS],
}

/// The number of the only wait, and the mark of a slot that was handed over.
const WAIT: u64 = 2;
const GIVEN: u64 = 1;

#[derive(Default)]
struct Page {
    pins: AtomicU32,
    /// 0 while the reader does not wait.
    wait: AtomicU64,
    /// Whether the kernel has closed the connection.
    has_ended: AtomicBool,
}

#[expect(unsafe_code, reason = "a cell does not say that several threads may use it")]
// SAFETY: loom checks every access to the cells, and fails where two of them are not in an order.
unsafe impl Sync for Node {}

impl Node {
    fn new(broken: Broken) -> Arc<Self> {
        Arc::new(Self {
            broken,
            table: Default::default(),
            slot: [Cell::new((CHUNKS, 0)), Cell::new((CHUNKS, 0))],
            pages: Default::default(),
        })
    }

    /// `right`, unless this rule is broken.
    fn order(&self, rule: Broken, right: Ordering) -> Ordering {
        if self.broken == rule { Ordering::Relaxed } else { right }
    }

    fn keeps(&self, rule: Broken) -> bool {
        self.broken != rule
    }

    /// `Table::load`.
    fn load(&self, chunk: usize) -> u64 {
        self.table[chunk].load(self.order(Broken::AcquireOfLoadAndFence, Ordering::Acquire))
    }

    /// `Maps::pin`: the word under which a chunk is pinned.
    fn pin(&self, reader: usize, chunk: usize) -> Option<u64> {
        for _ in 0..LOOKS {
            let word = self.load(chunk);
            if word == 0 {
                return None;
            }
            self.pages[reader].pins.fetch_add(1, Ordering::Relaxed);
            if self.keeps(Broken::ReaderFence) && self.keeps(Broken::AcquireOfLoadAndFence) {
                fence(Ordering::SeqCst);
            }
            if !self.keeps(Broken::SecondLook) || self.load(chunk) == word {
                return Some(word);
            }
            self.unpin(reader);
        }
        None
    }

    /// The drop of a `Pinned`.
    fn unpin(&self, reader: usize) {
        let order = self.order(Broken::ReleaseOfUnpin, Ordering::Release);
        self.pages[reader].pins.fetch_sub(1, order);
    }

    /// `PinPage::begin_wait`.
    fn begin_wait(&self, reader: usize) {
        self.pages[reader].wait.store(WAIT, Ordering::Release);
    }

    /// `PinPage::end_wait`: whether the slot was pinned for this reader.
    fn end_wait(&self, reader: usize) -> bool {
        self.pages[reader].wait.swap(0, Ordering::AcqRel) & GIVEN != 0
    }

    /// `PinPage::pin_for_reader`.
    fn pin_for_reader(&self, reader: usize) {
        let page = &self.pages[reader];
        if self.keeps(Broken::PinForReader) {
            page.pins.fetch_add(1, Ordering::SeqCst);
        }
        if !self.keeps(Broken::EndOfWait) {
            page.wait.store(WAIT | GIVEN, Ordering::Release);
            return;
        }
        let order = self.order(Broken::ReleaseOfHandover, Ordering::Release);
        let given = page.wait.compare_exchange(WAIT, WAIT | GIVEN, order, Ordering::Relaxed);
        if given.is_err() {
            page.pins.fetch_sub(1, Ordering::Release);
        }
    }

    /// Reads a chunk if it is there; gives its word and the number of its fill.
    fn read(&self, reader: usize, chunk: usize) -> Option<(u64, u64)> {
        let word = self.pin(reader, chunk)?;
        let fills = [0, 1].map(|file| self.read_file(chunk, file));
        assert_eq!(fills[0], fills[1], "files of different fills");
        self.unpin(reader);
        Some((word, fills[0]))
    }

    /// Reads a file of a pinned chunk; gives the number of its fill.
    fn read_file(&self, chunk: usize, file: usize) -> u64 {
        let (of, fill) = self.slot[file].get();
        assert_eq!(of, chunk, "bytes of another chunk");
        fill
    }
}

/// The agent, whose steps happen under one lock.
struct Agent {
    node: Arc<Node>,
    generation: u64,
    fills: u64,
}

impl Agent {
    /// An agent with an empty slot.
    fn new(broken: Broken) -> Self {
        Self { node: Node::new(broken), generation: 0, fills: 0 }
    }

    fn write(&self, chunk: usize, file: usize) {
        self.node.slot[file].set((chunk, self.fills));
    }

    /// `State::show`.
    fn show(&mut self, chunk: usize) {
        if self.node.keeps(Broken::NextGeneration) || self.generation == 0 {
            self.generation += 1;
        }
        let order = self.node.order(Broken::ReleaseOfPublication, Ordering::Release);
        self.node.table[chunk].store(self.generation, order);
    }

    /// Fills the slot and shows it.
    fn fill(&mut self, chunk: usize) {
        self.fills += 1;
        (0..FILES).for_each(|file| self.write(chunk, file));
        self.show(chunk);
    }

    /// `State::withdraw`: whether the slot is free now.
    fn withdraw(&mut self, chunk: usize) -> bool {
        let node = Arc::clone(&self.node);
        if node.keeps(Broken::WithdrawBeforeFill) {
            node.table[chunk].store(0, Ordering::Relaxed);
            if node.keeps(Broken::AgentFence) {
                fence(Ordering::SeqCst);
            }
        }
        let is_free = !node.keeps(Broken::LookBeforeFill) || !self.is_held();
        if !is_free {
            self.show(chunk);
        }
        is_free
    }

    /// `PinPage::holds` for all connections.
    fn is_held(&self) -> bool {
        let order = self.node.order(Broken::AcquireOfLook, Ordering::Acquire);
        self.node.pages.iter().any(|page| {
            let is_dropped = match self.node.broken {
                Broken::PageOfConnection => true,
                Broken::EndOfPage => false,
                // The kernel ends a process before it closes the connection.
                _ => page.has_ended.load(Ordering::Acquire),
            };
            !is_dropped && page.pins.load(order) != 0
        })
    }

    /// Replaces a chunk by another one, unless a reader has a pin on the slot.
    fn replace(&mut self, chunk: usize, by: usize) -> bool {
        let is_free = self.withdraw(chunk);
        if is_free {
            self.fill(by);
        }
        is_free
    }

    fn spawn(&self, reads: impl FnOnce(&Node) + 'static) -> thread::JoinHandle<()> {
        let node = Arc::clone(&self.node);
        thread::spawn(move || reads(&node))
    }
}

/// A chunk comes while its first reader looks for it.
fn arrival(broken: Broken) {
    let mut agent = Agent::new(broken);
    let reader = agent.spawn(|node| _ = node.read(0, 0));
    agent.fill(0);
    reader.join().unwrap();
}

/// A chunk leaves and another one takes its slot, while a reader reads one after the other.
fn departure(broken: Broken) {
    let mut agent = Agent::new(broken);
    agent.fill(0);
    let reader = agent.spawn(|node| {
        node.read(0, 0);
        node.read(0, 1);
    });
    agent.replace(0, 1);
    reader.join().unwrap();
}

/// The same with a reader for each of the chunks.
fn turnover(broken: Broken) {
    let mut agent = Agent::new(broken);
    agent.fill(0);
    let readers = [0, 1].map(|chunk| agent.spawn(move |node| _ = node.read(chunk, chunk)));
    agent.replace(0, 1);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

/// A chunk leaves and comes back into the same slot, between two looks of a reader.
fn comeback(broken: Broken) {
    let mut agent = Agent::new(broken);
    agent.fill(0);
    let reader = agent.spawn(|node| {
        if let (Some(one), Some(other)) = (node.read(0, 0), node.read(0, 0)) {
            assert!(one.0 != other.0 || one.1 == other.1, "another fill under the same word");
        }
    });
    if agent.replace(0, 1) {
        agent.replace(1, 0);
    }
    reader.join().unwrap();
}

/// A reader waits for a file, which is handed over before the rest of its chunk is there, and gives up at
/// some moment. Then the agent wants the slot for another chunk, while the reader reads on by the table.
fn handover(broken: Broken) {
    let mut agent = Agent::new(broken);
    agent.node.begin_wait(0);
    let waiting = agent.spawn(|node| {
        if node.end_wait(0) {
            if !node.keeps(Broken::PinForReader) {
                node.pages[0].pins.fetch_add(1, Ordering::SeqCst);
            }
            node.read_file(0, 1);
            node.unpin(0);
        }
        node.read(0, 0);
    });
    agent.fills += 1;
    agent.write(0, 1);
    agent.node.pin_for_reader(0);
    agent.write(0, 0);
    agent.show(0);
    let is_replaced = agent.replace(0, 1);
    waiting.join().unwrap();
    assert!(is_replaced || agent.replace(0, 1), "a slot is lost");
}

/// A reader is killed while it reads; the agent uses the slot again afterwards.
fn killed(broken: Broken) {
    let mut agent = Agent::new(broken);
    agent.fill(0);
    let victim = agent.spawn(|node| {
        if node.pin(0, 0).is_some() {
            node.read_file(0, 0);
        }
        node.pages[0].has_ended.store(true, Ordering::Release);
    });
    let is_replaced = agent.replace(0, 1);
    victim.join().unwrap();
    assert!(is_replaced || agent.replace(0, 1), "a slot is lost");
}

/// The message with which loom finds a scenario to fail; none when no order of steps fails.
fn failure(scenario: fn(Broken), broken: Broken) -> Option<String> {
    let run = || loom::model(move || scenario(broken));
    let why = catch_unwind(AssertUnwindSafe(run)).err()?;
    let text = why.downcast_ref::<String>().cloned();
    text.or_else(|| why.downcast_ref::<&str>().map(|text| (*text).to_owned()))
}

/// Fails unless loom finds the scenario to fail so.
fn fails(scenario: fn(Broken), broken: Broken, with: &str) {
    let found = failure(scenario, broken);
    let is_found = found.as_ref().is_some_and(|text| text.contains(with));
    assert!(is_found, "{broken:?}: {found:?} instead of {with}");
}

/// What loom says of two accesses to bytes without an order between them.
const RACE: &str = "Causality violation";

#[test]
fn the_protocol_holds_in_every_order() {
    for scenario in [arrival, departure, turnover, comeback, handover, killed] {
        loom::model(move || scenario(Broken::Nothing));
    }
}

#[test]
fn rule_1_without_a_fence_or_the_second_look_a_slot_is_written_under_its_reader() {
    fails(departure, Broken::ReaderFence, RACE);
    fails(departure, Broken::AgentFence, RACE);
    fails(departure, Broken::SecondLook, RACE);
}

#[test]
fn rule_2_an_unpin_that_orders_nothing_lets_the_agent_write_before_the_read_has_ended() {
    fails(departure, Broken::ReleaseOfUnpin, RACE);
    fails(departure, Broken::AcquireOfLook, RACE);
}

#[test]
fn rule_3_a_publication_that_orders_nothing_shows_a_word_before_its_bytes() {
    fails(arrival, Broken::ReleaseOfPublication, RACE);
    fails(arrival, Broken::AcquireOfLoadAndFence, RACE);
}

#[test]
fn rule_4_a_generation_that_repeats_gives_two_fills_one_word() {
    fails(comeback, Broken::NextGeneration, "another fill under the same word");
}

#[test]
fn rule_5_a_page_goes_neither_before_nor_after_its_connection() {
    fails(killed, Broken::PageOfConnection, RACE);
    fails(killed, Broken::EndOfPage, "a slot is lost");
}

#[test]
fn rule_6_a_chunk_without_a_pin_leaves_before_its_reader_and_a_late_pin_stays() {
    fails(handover, Broken::PinForReader, RACE);
    fails(handover, Broken::ReleaseOfHandover, RACE);
    fails(handover, Broken::EndOfWait, "a slot is lost");
}

#[test]
fn rule_7_a_slot_is_filled_neither_under_its_word_nor_under_a_pin() {
    fails(departure, Broken::WithdrawBeforeFill, RACE);
    fails(departure, Broken::LookBeforeFill, RACE);
}
