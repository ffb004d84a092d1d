//! The place of a key in a Redis Cluster: slots, and our shards, which determine the slot of each key.
//!
//! Must hold: a shard has a single slot, so its keys may share a script or a pipeline. The 256 shards are
//! spread evenly over the slots, and so over any number of primaries. The place of a key never changes, as
//! shards are part of the stored format.

use std::sync::LazyLock;

use dl_format::Crc32c;

/// The number of shards.
pub(super) const SHARDS: usize = 256;
/// Slots of a Redis Cluster.
const SLOTS: u16 = 16_384;
const SLOTS_OF_SHARD: usize = SLOTS as usize / SHARDS;

/// A part of the key space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Shard(u8);

/// The number in the hash tag of each shard, and the slot of the tag.
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
    /// The shard of the keys that exist once.
    pub(super) const FIRST: Self = Self(0);

    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }

    /// The shard of the key with these parts.
    pub(super) fn of(parts: &[&[u8]]) -> Self {
        Self::of_joined(parts, &mut Vec::new())
    }

    /// [`Shard::of`] with a buffer from the caller.
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

    /// The shard of a hash tag.
    pub(super) fn tagged(tag: &[u8]) -> Option<Self> {
        Self::all().find(|shard| shard.tag().as_bytes() == tag)
    }

    /// The text between the braces in all keys of the shard.
    pub(super) fn tag(self) -> &'static str {
        TAGS.get(self.index()).map_or("", |(tag, _)| tag)
    }

    pub(super) fn slot(self) -> u16 {
        TAGS.get(self.index()).map_or(0, |(_, slot)| *slot)
    }
}

/// The slot of a hash tag in a Redis Cluster: CRC-16/XMODEM modulo the slots.
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
}
