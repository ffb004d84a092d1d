//! Pins beside an agent that constantly fills, withdraws and reuses slots.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dl_runtime::since_boot;

use crate::FromAgent;
use crate::{Arena, Gauge, Maps, PinPage, Shape, Table, Word};
use crate::{Socket, accept, bind_at};

const SLOT: u32 = 64 << 10;
const SLOTS: u32 = 4;
const CHUNKS: u32 = 16;
const READERS: usize = 3;

/// The memory of an agent and of each reader.
struct Memory {
    arena: Arena,
    table: Table,
    pins: Vec<PinPage>,
    readers: Vec<Maps>,
}

fn memory() -> Memory {
    let shape = Shape { slot_bytes: SLOT, slots: SLOTS };
    let (arena, segments) = Arena::create(shape).unwrap();
    let (table, table_file) = Table::create(CHUNKS).unwrap();
    let pages = (0..READERS).map(|_| PinPage::create(SLOTS).unwrap());
    let (pins, files): (Vec<PinPage>, Vec<OwnedFd>) = pages.unzip();
    let map = |file: &OwnedFd| Maps {
        arena: Arena::map(shape, &segments).unwrap(),
        table: Table::map(&table_file, CHUNKS).unwrap(),
        pins: PinPage::map(file.as_fd(), SLOTS).unwrap(),
    };
    let readers = files.iter().map(map).collect();
    Memory { arena, table, pins, readers }
}

/// Moves chunks through the slots, each filled with its number, until the end; gives the number of
/// fills.
fn act_as_agent(memory: &Memory, is_over: &AtomicBool) -> u64 {
    let mut slots = [None::<u32>; SLOTS as usize];
    let mut filled = 0;
    while !is_over.load(Ordering::Relaxed) {
        let slot = (filled % u64::from(SLOTS)) as u32;
        let next = (filled.wrapping_mul(7) % u64::from(CHUNKS)) as u32;
        filled += 1;
        if let Some(chunk) = slots[slot as usize] {
            memory.table.withdraw(chunk);
            if memory.pins.iter().any(|page| page.holds(slot)) {
                memory.table.publish(chunk, Word::new(filled, slot));
                continue;
            }
            slots[slot as usize] = None;
        }
        if !slots.contains(&Some(next)) {
            memory.arena.write(slot, 0, &[next as u8 + 1; SLOT as usize]);
            slots[slot as usize] = Some(next);
            memory.table.publish(next, Word::new(filled, slot));
        }
    }
    filled
}

/// Reads chunks until the end; gives the number of reads with wrong bytes.
fn read(maps: &Maps, is_over: &AtomicBool, reads: &AtomicU64) -> u64 {
    let (mut wrong, mut turn) = (0, 0_u32);
    while !is_over.load(Ordering::Relaxed) {
        turn = turn.wrapping_mul(5).wrapping_add(3);
        let chunk = turn % CHUNKS;
        let Some(pinned) = maps.pin(chunk) else { continue };
        let bytes = pinned.bytes(0, SLOT as usize).unwrap();
        wrong += u64::from(bytes.iter().any(|byte| u32::from(*byte) != chunk + 1));
        reads.fetch_add(1, Ordering::Relaxed);
    }
    wrong
}

#[test]
fn readers_see_no_wrong_bytes_while_slots_are_reused() {
    let memory = memory();
    let (is_over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let until = since_boot() + Duration::from_secs(2);
    let (wrong, filled) = std::thread::scope(|scope| {
        let agent = scope.spawn(|| act_as_agent(&memory, &is_over));
        let readers =
            memory.readers.iter().map(|maps| scope.spawn(|| read(maps, &is_over, &reads)));
        let readers: Vec<_> = readers.collect();
        while since_boot() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        is_over.store(true, Ordering::Relaxed);
        let wrong: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        (wrong, agent.join().unwrap())
    });
    assert_eq!(wrong, 0, "of {reads:?} reads");
    assert!(filled > 100 && reads.into_inner() > 100);
    assert!(memory.pins.iter().all(|page| page.held() == 0), "a pin is left");
}

#[test]
fn an_ended_wait_gets_no_pin() {
    let memory = memory();
    let (agent, reader) = (&memory.pins[0], &memory.readers[0]);
    reader.pins.begin_wait(1);
    assert!(!agent.pin_for_reader(1, 0) && !agent.pin_for_reader(1, 2), "another wait");
    assert!(agent.pin_for_reader(2, 1) && !agent.pin_for_reader(3, 1), "given once");
    assert_eq!(reader.pins.end_wait(), Some(2));
    assert!(agent.holds(2) && agent.held() == 1);
    drop(reader.take_over(&reader.pins, 2));
    assert!(!agent.pin_for_reader(2, 1) && agent.held() == 0, "the wait has ended");
}

#[test]
fn the_pin_for_an_ending_wait_has_a_single_owner() {
    const WAITS: u64 = 20_000;
    let memory = memory();
    let (agent, reader) = (&memory.pins[0], &memory.readers[0]);
    let begun = AtomicU64::new(0);
    let (given, taken) = std::thread::scope(|scope| {
        let giving = scope.spawn(|| {
            let (mut given, mut wait) = (0, 0);
            while wait < WAITS {
                if begun.load(Ordering::Acquire) > wait {
                    wait += 1;
                    given += u64::from(agent.pin_for_reader((wait % 4) as u32, wait));
                }
            }
            given
        });
        let mut taken = 0;
        for wait in 1..=WAITS {
            reader.pins.begin_wait(wait);
            begun.store(wait, Ordering::Release);
            (0..wait % 64).for_each(|_| std::hint::spin_loop());
            if let Some(slot) = reader.pins.end_wait() {
                assert_eq!(u64::from(slot), wait % 4);
                drop(reader.take_over(&reader.pins, slot));
                taken += 1;
            }
        }
        (giving.join().unwrap(), taken)
    });
    assert_eq!((given, agent.held()), (taken, 0));
}

#[test]
fn packets_arrive_whole_with_their_descriptors_until_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sock");
    let listener = bind_at(&path).unwrap();
    let (one, other) = (Socket::connect(&path).unwrap(), accept(&listener).unwrap());
    let patience = Duration::from_secs(5);
    let long = FromAgent::Status("x".repeat(100 << 10));
    for message in [FromAgent::Here { id: 7 }, long, FromAgent::Stopping] {
        let files = [listener.as_fd(); 2];
        other.send(&message, &files, patience).unwrap();
        let (came, files) = one.receive::<FromAgent>(patience).unwrap().unwrap();
        assert_eq!((came, files.len()), (message, 2));
    }
    let kind = |came: std::io::Result<Option<(FromAgent, Vec<OwnedFd>)>>| came.unwrap_err().kind();
    assert_eq!(kind(one.try_receive()), std::io::ErrorKind::WouldBlock);
    assert_eq!(kind(one.receive(Duration::from_millis(1))), std::io::ErrorKind::TimedOut);
    drop(other);
    assert!(one.receive::<FromAgent>(patience).unwrap().is_none());
}

#[test]
fn reads_outside_of_a_slot_and_maps_of_wrong_descriptors_fail() {
    let memory = memory();
    memory.arena.write(1, 0, &[9; SLOT as usize]);
    assert!(!memory.arena.write(1, 1, &[9; SLOT as usize]), "past the end of a slot");
    memory.table.publish(3, Word::new(1, 1));
    let pinned = memory.readers[0].pin(3).unwrap();
    assert_eq!(pinned.bytes(SLOT - 1, 1), Some(&[9][..]));
    assert_eq!(pinned.bytes(SLOT, 1), None);
    assert_eq!(pinned.bytes(u32::MAX, usize::MAX), None);
    assert!(memory.pins[0].holds(1) && !memory.pins[1].holds(1));
    drop(pinned);
    assert_eq!(memory.readers[0].pin(CHUNKS).map(|_| ()), None, "an unknown chunk");
    memory.readers[1].pins.add(Gauge::Hits, 2);
    assert_eq!(memory.pins[1].get(Gauge::Hits), 2);

    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    assert!(Table::map(&file, CHUNKS).is_err(), "memory without a seal");
    let (_, short) = Table::create(1).unwrap();
    assert!(Table::map(&short, 100_000).is_err(), "too short memory");
    let shape = Shape { slot_bytes: SLOT, slots: SLOTS };
    assert!(Arena::map(shape, &[]).is_err(), "no segments");
}
