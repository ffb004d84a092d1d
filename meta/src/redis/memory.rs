//! Whether a node has memory for new objects: what Redis counts, and what it refused.
//!
//! Must hold: once a node has refused an append for want of memory, the next objects are refused before
//! they are stored, until it has more. What it says between two appends is not enough for that: a command
//! takes memory while it is on its way, and gives it back when it is refused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::address::Node;
use super::link::Info;
use crate::Refusal;

/// What deletes may take where its maxmemory is reached, or a quarter of that where this is more.
const FOR_DELETES: u64 = 64 << 20;
/// What is left for commands on their way, or a part of its maxmemory where this is less.
const UNDER_WAY: u64 = 64 << 20;
const UNDER_WAY_PART: u64 = 64;
/// No more than this part of it is left, whatever was refused.
const LEFT_PART: u64 = 8;
/// Where this part of it is left, what was refused before says nothing any more.
const FREE_PART: u64 = 4;

/// How much memory each node needs to have left, as far as that was learnt.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<Node, Need>>);

#[derive(Debug, Default)]
struct Need {
    /// Which life of which process, and its maxmemory, that this holds for; none before the first look.
    of: Option<(Arc<str>, u64)>,
    bytes: u64,
    /// It had room when it was last looked at, and has refused nothing since.
    had_room: bool,
}

impl Need {
    /// What was refused needs its length twice, as its arguments and as what Redis reads them into. Where
    /// there was room for that, others came with it.
    fn refused(&mut self, length: u64) {
        let more = if self.had_room { 2 } else { 1 };
        self.bytes = self.bytes.saturating_mul(more).max(length.saturating_mul(2));
        self.had_room = false;
    }

    /// What has to be left of `most`, where `left` is now.
    fn look(&mut self, run: Arc<str>, most: u64, left: u64) -> u64 {
        let of = Some((run, most));
        if self.of.is_some() && self.of != of || left >= most / FREE_PART {
            self.bytes = 0;
        }
        self.of = of;
        self.bytes = self.bytes.min(most / LEFT_PART);
        let need = self.bytes.max(UNDER_WAY.min(most / UNDER_WAY_PART));
        self.had_room = left >= need;
        need
    }
}

impl Memory {
    /// A node had no memory for what was to be written by so many bytes of commands.
    pub(super) fn refused(&self, node: &Node, length: usize) {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        let mut needs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        needs.entry(node.clone()).or_default().refused(length);
    }

    /// Why a node takes no writes that need memory, if it is so.
    pub(super) fn refusal(&self, node: &Node, info: &Info) -> Option<Refusal> {
        let bytes = |field: &str| info.get(field).parse::<u64>().unwrap_or_default();
        let used = bytes("used_memory").saturating_sub(bytes("mem_not_counted_for_evict"));
        let most = bytes("maxmemory");
        let mut needs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if most == 0 {
            needs.remove(node);
            return None;
        }
        let left = most.saturating_sub(used);
        let need = needs.entry(node.clone()).or_default().look(info.run(), most, left);
        if left >= need && used <= most {
            return None;
        }
        let why = format!(
            "the Redis at {node} is full: it uses {used} bytes, its maxmemory is {most}, and the last \
             {need} are for what is under way"
        );
        let is_over = used.saturating_sub(most) > FOR_DELETES.max(most / 4);
        Some(if is_over { Refusal::Over(why) } else { Refusal::Full(why) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::Address;
    use super::*;

    fn node() -> Node {
        Address::parse("redis://h:1").expect("of Redis").expect("an address").nodes.remove(0)
    }

    fn info(run: &str, used: u64, most: u64) -> Info {
        Info(format!("run_id:{run}\r\nused_memory:{used}\r\nmaxmemory:{most}\r\n"))
    }

    #[test]
    fn deletes_may_take_a_part_of_the_memory_that_is_not_to_be_used() {
        let full = |used, most| Memory::default().refusal(&node(), &info("a", used, most));
        assert_eq!([full(9, 0), full(9, 9)], [None, None]);
        for most in [1 << 20, FOR_DELETES, 1 << 40] {
            let (more, room) = (FOR_DELETES.max(most / 4), UNDER_WAY.min(most / UNDER_WAY_PART));
            assert_eq!(full(most - room, most), None, "{most}");
            for used in [most - room + 1, most, most + more] {
                assert!(matches!(full(used, most), Some(Refusal::Full(_))), "{used} of {most}");
            }
            assert!(matches!(full(most + more + 1, most), Some(Refusal::Over(_))), "{most}");
        }
    }

    #[test]
    fn after_it_refused_something_a_node_is_full_until_there_is_room_for_that() {
        let (memory, most) = (Memory::default(), 6_400);
        let is_full = |left| memory.refusal(&node(), &info("a", most - left, most)).is_some();
        for (refused, left, expected) in [
            (&[][..], 100, false),
            (&[], 99, true),
            (&[150], 299, true),
            (&[], 0, true),
            // Where there was none, it needs no more for that.
            (&[20, 150], 300, false),
            // Several at once, though there was room for one.
            (&[150, 150], 599, true),
            (&[], 600, false),
            // Never more than an eighth.
            (&[150], 799, true),
            (&[], 800, false),
            (&[], 1_599, false),
            (&[], 799, true),
            // A quarter is enough to forget it.
            (&[], 1_600, false),
            (&[], 100, false),
            (&[2_000], 799, true),
        ] {
            for length in refused {
                memory.refused(&node(), *length);
            }
            assert_eq!(is_full(left), expected, "{refused:?}, {left} left");
        }
        // Of another process, and with another limit, nothing is known.
        for (run, most) in [("b", most), ("b", most + 1), ("b", 0)] {
            let full = || memory.refusal(&node(), &info(run, most.saturating_sub(200), most));
            assert_eq!(full(), None, "{run} {most}");
            memory.refused(&node(), 200);
            assert_eq!(full().is_some(), most > 0, "{run} {most}");
            memory.refused(&node(), 200);
        }
    }
}
