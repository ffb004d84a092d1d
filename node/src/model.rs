//! A model of readers and an agent over a single slot; loom runs all orders of steps and of memory
//! accesses. The steps are those of `layout` and of the agent's cache.
//!
//! Must hold: the protocol shows neither a race nor wrong bytes. Loom finds a failure as soon as a
//! rule of docs/AGENT.md, *Pins*, is broken.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::cell::Cell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Violation {
    Nothing,
    /// Rule 1.
    ReaderFence,
    AgentFence,
    SecondLook,
    /// Rule 2.
    ReleaseOfUnpin,
    AcquireOfLook,
    /// Rule 3. The reader's fence acquires as well, so both steps are broken.
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
    /// Rule 8.
    UseOutsideOfPins,
    LookAtPinsOnly,
}

const CHUNKS: usize = 2;
const READERS: usize = 2;
/// Files of a chunk.
const FILES: usize = 2;

/// Attempts of a model reader to pin a moving chunk.
const LOOKS: usize = 2;

/// The bytes of a file: the chunk, and the number of the fill.
type Bytes = (usize, u64);

/// The shared memory of a node with a single slot. A word is 0, or the generation.
struct Node {
    broken: Violation,
    table: [AtomicU64; CHUNKS],
    slot: [Cell<Bytes>; FILES],
    pages: [Page; READERS],
}

/// The number of the only wait, and the flag of a handed over slot.
const WAIT: u64 = 2;
const GIVEN: u64 = 1;

/// The pins in a word of a page, and the use that each pin adds.
const PINS: u32 = USE - 1;
const USE: u32 = 1 << 24;

#[derive(Default)]
struct Page {
    pins: AtomicU32,
    /// 0 without a wait of the reader.
    wait: AtomicU64,
    /// Whether the kernel has closed the connection.
    has_ended: AtomicBool,
}

#[expect(unsafe_code, reason = "a cell does not promise access by several threads")]
// SAFETY: loom checks every access to the cells, and fails for two accesses without an order.
unsafe impl Sync for Node {}

impl Node {
    fn new(broken: Violation) -> Arc<Self> {
        Arc::new(Self {
            broken,
            table: Default::default(),
            slot: [Cell::new((CHUNKS, 0)), Cell::new((CHUNKS, 0))],
            pages: Default::default(),
        })
    }

    /// The given order, or none if the rule is broken.
    fn order(&self, rule: Violation, right: Ordering) -> Ordering {
        if self.broken == rule { Ordering::Relaxed } else { right }
    }

    fn keeps(&self, rule: Violation) -> bool {
        self.broken != rule
    }

    /// What a pin adds.
    fn pin_and_use(&self) -> u32 {
        if self.keeps(Violation::UseOutsideOfPins) { USE | 1 } else { 2 }
    }

    /// `Table::load`.
    fn load(&self, chunk: usize) -> u64 {
        self.table[chunk].load(self.order(Violation::AcquireOfLoadAndFence, Ordering::Acquire))
    }

    /// `Maps::pin`: the word under which a chunk is pinned.
    fn pin(&self, reader: usize, chunk: usize) -> Option<u64> {
        for _ in 0..LOOKS {
            let word = self.load(chunk);
            if word == 0 {
                return None;
            }
            self.pages[reader].pins.fetch_add(self.pin_and_use(), Ordering::Relaxed);
            if self.keeps(Violation::ReaderFence) && self.keeps(Violation::AcquireOfLoadAndFence) {
                fence(Ordering::SeqCst);
            }
            if !self.keeps(Violation::SecondLook) || self.load(chunk) == word {
                return Some(word);
            }
            self.unpin(reader);
        }
        None
    }

    /// The drop of a `Pinned`.
    fn unpin(&self, reader: usize) {
        let order = self.order(Violation::ReleaseOfUnpin, Ordering::Release);
        self.pages[reader].pins.fetch_sub(1, order);
    }

    /// `PinPage::begin_wait`.
    fn begin_wait(&self, reader: usize) {
        self.pages[reader].wait.store(WAIT, Ordering::Release);
    }

    /// `PinPage::end_wait`: whether the agent pinned the slot for the reader.
    fn end_wait(&self, reader: usize) -> bool {
        self.pages[reader].wait.swap(0, Ordering::AcqRel) & GIVEN != 0
    }

    /// `PinPage::pin_for_reader`.
    fn pin_for_reader(&self, reader: usize) {
        let page = &self.pages[reader];
        if self.keeps(Violation::PinForReader) {
            page.pins.fetch_add(self.pin_and_use(), Ordering::SeqCst);
        }
        if !self.keeps(Violation::EndOfWait) {
            page.wait.store(WAIT | GIVEN, Ordering::Release);
            return;
        }
        let order = self.order(Violation::ReleaseOfHandover, Ordering::Release);
        let given = page.wait.compare_exchange(WAIT, WAIT | GIVEN, order, Ordering::Relaxed);
        if given.is_err() {
            page.pins.fetch_sub(self.pin_and_use(), Ordering::Release);
        }
    }

    /// Reads a present chunk; gives its word and the number of its fill.
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

/// The agent, with all its steps under a lock.
struct Agent {
    node: Arc<Node>,
    generation: u64,
    fills: u64,
}

impl Agent {
    fn new(broken: Violation) -> Self {
        Self { node: Node::new(broken), generation: 0, fills: 0 }
    }

    fn write(&self, chunk: usize, file: usize) {
        self.node.slot[file].set((chunk, self.fills));
    }

    /// `State::show`.
    fn show(&mut self, chunk: usize) {
        if self.node.keeps(Violation::NextGeneration) || self.generation == 0 {
            self.generation += 1;
        }
        let order = self.node.order(Violation::ReleaseOfPublication, Ordering::Release);
        self.node.table[chunk].store(self.generation, order);
    }

    /// Fills the slot and publishes the chunk.
    fn fill(&mut self, chunk: usize) {
        self.fills += 1;
        (0..FILES).for_each(|file| self.write(chunk, file));
        self.show(chunk);
    }

    /// `State::withdraw`: whether the slot is free now.
    fn withdraw(&mut self, chunk: usize) -> bool {
        let node = Arc::clone(&self.node);
        if node.keeps(Violation::WithdrawBeforeFill) {
            node.table[chunk].store(0, Ordering::Relaxed);
            if node.keeps(Violation::AgentFence) {
                fence(Ordering::SeqCst);
            }
        }
        let is_free = !node.keeps(Violation::LookBeforeFill) || !self.is_held();
        if !is_free {
            self.show(chunk);
        }
        is_free
    }

    /// `PinPage::holds` for all connections.
    fn is_held(&self) -> bool {
        let order = self.node.order(Violation::AcquireOfLook, Ordering::Acquire);
        let node_looks_at_pins = self.node.keeps(Violation::LookAtPinsOnly);
        self.node.pages.iter().any(|page| {
            let is_dropped = match self.node.broken {
                Violation::PageOfConnection => true,
                Violation::EndOfPage => false,
                // The kernel ends a process before closing its connection.
                _ => page.has_ended.load(Ordering::Acquire),
            };
            let counted = if node_looks_at_pins { PINS } else { u32::MAX };
            !is_dropped && page.pins.load(order) & counted != 0
        })
    }

    /// Replaces a chunk by another, unless a reader pins the slot.
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

/// A chunk arrives while its first reader looks for the chunk.
fn arrival(broken: Violation) {
    let mut agent = Agent::new(broken);
    let reader = agent.spawn(|node| _ = node.read(0, 0));
    agent.fill(0);
    reader.join().unwrap();
}

/// A chunk leaves, and another takes its slot, while a reader reads both in turn.
fn departure(broken: Violation) {
    let mut agent = Agent::new(broken);
    agent.fill(0);
    let reader = agent.spawn(|node| {
        node.read(0, 0);
        node.read(0, 1);
    });
    agent.replace(0, 1);
    reader.join().unwrap();
}

/// The same with a reader for each chunk.
fn turnover(broken: Violation) {
    let mut agent = Agent::new(broken);
    agent.fill(0);
    let readers = [0, 1].map(|chunk| agent.spawn(move |node| _ = node.read(chunk, chunk)));
    agent.replace(0, 1);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

/// A chunk leaves and returns into the same slot, between two loads of a reader.
fn comeback(broken: Violation) {
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

/// A reader waits for a file, which is handed over before the rest of its chunk arrives. The reader
/// gives up at any moment. Then the agent wants the slot for another chunk, while the reader reads
/// by the table.
fn handover(broken: Violation) {
    let mut agent = Agent::new(broken);
    agent.node.begin_wait(0);
    let waiting = agent.spawn(|node| {
        if node.end_wait(0) {
            if !node.keeps(Violation::PinForReader) {
                node.pages[0].pins.fetch_add(node.pin_and_use(), Ordering::SeqCst);
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

/// A reader is killed during a read; then the agent uses the slot again.
fn killed(broken: Violation) {
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

/// The text of the failure that loom finds in a scenario; none without a failure in any order.
fn failure(scenario: fn(Violation), broken: Violation) -> Option<String> {
    let run = || loom::model(move || scenario(broken));
    let why = catch_unwind(AssertUnwindSafe(run)).err()?;
    let text = why.downcast_ref::<String>().cloned();
    text.or_else(|| why.downcast_ref::<&str>().map(|text| (*text).to_owned()))
}

/// The text of loom for two accesses without an order.
const RACE: &str = "Causality violation";

#[test]
fn the_protocol_holds_in_every_order() {
    for scenario in [arrival, departure, turnover, comeback, handover, killed] {
        loom::model(move || scenario(Violation::Nothing));
    }
}

/// A scenario, a broken step, and the text of the failure.
type Case = (fn(Violation), Violation, &'static str);

#[test]
fn every_step_of_every_rule_is_needed() {
    let lost = "a slot is lost";
    let cases: [Case; 17] = [
        (departure, Violation::ReaderFence, RACE),
        (departure, Violation::AgentFence, RACE),
        (departure, Violation::SecondLook, RACE),
        (departure, Violation::ReleaseOfUnpin, RACE),
        (departure, Violation::AcquireOfLook, RACE),
        (arrival, Violation::ReleaseOfPublication, RACE),
        (arrival, Violation::AcquireOfLoadAndFence, RACE),
        (comeback, Violation::NextGeneration, "another fill under the same word"),
        (killed, Violation::PageOfConnection, RACE),
        (killed, Violation::EndOfPage, lost),
        (handover, Violation::PinForReader, RACE),
        (handover, Violation::ReleaseOfHandover, RACE),
        (handover, Violation::EndOfWait, lost),
        (departure, Violation::WithdrawBeforeFill, RACE),
        (departure, Violation::LookBeforeFill, RACE),
        (handover, Violation::UseOutsideOfPins, lost),
        (handover, Violation::LookAtPinsOnly, lost),
    ];
    for (scenario, broken, text) in cases {
        let found = failure(scenario, broken);
        let is_found = found.as_ref().is_some_and(|found| found.contains(text));
        assert!(is_found, "{broken:?}: {found:?} instead of {text}");
    }
}
