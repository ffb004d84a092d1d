//! Which part of a Redis Cluster holds a key: slots, and our shards, which fix the slot of each.
//!
//! Must hold: a shard has one slot, so what concerns one shard may share a script or a pipeline;
//! the 256 shards are spread evenly over the slots, so that they are over the primaries, however
//! many there are. Where a key lies never changes: all of it is part of the stored format.

use std::sync::LazyLock;

use dl_format::Crc32c;

/// How many shards there are.
pub(super) const SHARDS: usize = 256;
/// Slots of a Redis Cluster.
const SLOTS: u16 = 16_384;
const SLOTS_OF_SHARD: usize = SLOTS as usize / SHARDS;

/// One of the parts into which all keys are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Shard(u8);

/// Of each shard, the number in its hash tag, and the slot that it has for that.
static TAGS: LazyLock<Vec<(String, u16)>> = LazyLock::new(|| {
    let mut tags = vec![None; SHARDS];
    for number in 0u32.. {
        let number = number.to_string();
        let slot = slot_of(number.as_bytes());
        if let Some(tag) = tags.get_mut(usize::from(slot) / SLOTS_OF_SHARD) {
            tag.get_or_insert((number, slot));
        }
        if tags.iter().all(Option::is_some) {
            break;
        }
    }
    tags.into_iter().flatten().collect()
});

impl Shard {
    /// The one that holds what there is once.
    pub(super) const FIRST: Self = Self(0);

    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }

    /// The shard of what these parts name together.
    pub(super) fn of(parts: &[&[u8]]) -> Self {
        Self::of_joined(parts, &mut Vec::new())
    }

    /// The same, by a buffer for that.
    pub(super) fn of_joined(parts: &[&[u8]], joined: &mut Vec<u8>) -> Self {
        joined.clear();
        joined.reserve(parts.iter().map(|part| part.len() + 1).sum());
        for part in parts {
            joined.extend_from_slice(part);
            joined.push(0);
        }
        let [a, b, c, d] = Crc32c::of(joined).value().to_le_bytes();
        Self(a ^ b ^ c ^ d)
    }

    pub(super) fn index(self) -> usize {
        self.0.into()
    }

    /// The one of a tag.
    pub(super) fn tagged(tag: &[u8]) -> Option<Self> {
        Self::all().find(|shard| shard.tag().as_bytes() == tag)
    }

    /// What stands between the braces in all its keys.
    pub(super) fn tag(self) -> &'static str {
        TAGS.get(self.index()).map_or("", |(tag, _)| tag)
    }

    pub(super) fn slot(self) -> u16 {
        TAGS.get(self.index()).map_or(0, |(_, slot)| *slot)
    }
}

/// CRC-16/XMODEM, as Redis Cluster takes it of a hash tag, over its slots.
fn slot_of(tag: &[u8]) -> u16 {
    let mut crc = 0u16;
    for byte in tag {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // The first from the Redis Cluster specification, the others from CLUSTER KEYSLOT.
        for (tag, slot) in [("123456789", 0x31C3), ("foo", 12_182), ("0", 13_907), ("", 0)] {
            assert_eq!(slot_of(tag.as_bytes()), slot, "{tag}");
        }
    }

    #[test]
    fn every_shard_has_a_slot_in_its_own_part_of_them() {
        for shard in Shard::all() {
            let slot = usize::from(shard.slot());
            assert_eq!(slot / SLOTS_OF_SHARD, shard.index());
            assert_eq!(slot_of(shard.tag().as_bytes()), shard.slot());
        }
    }

    #[test]
    fn names_are_spread_over_the_shards() {
        let mut counts: HashMap<Shard, u32> = HashMap::new();
        for number in 0..25_600 {
            *counts
                .entry(Shard::of(&[b"train", format!("n{number:08}").as_bytes()]))
                .or_default() += 1;
        }
        assert_eq!(counts.len(), SHARDS);
        assert!(counts.values().all(|count| (50..200).contains(count)), "{counts:?}");
    }
}
