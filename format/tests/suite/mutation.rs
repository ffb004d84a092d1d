//! Seeded mutations of the golden files, fed to every decoder: a bounded form of the fuzz targets.

use crate::build::{Random, is_torture};
use crate::entry_points::DECODERS;
use crate::golden;

/// Damages a copy in one to six ways.
fn mutate(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(6) {
        if bytes.is_empty() {
            break;
        }
        // Most fields lie at the beginning.
        let reach = if random.below(4) == 0 { bytes.len() } else { bytes.len().min(640) };
        let at = random.below(reach);
        match random.below(7) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF, b'/', b'.'][random.below(7)],
            2 | 3 => {
                let numbers = [0, 1, 7, 4_096, 65_535, 65_536, 524_288, 1 << 26, u32::MAX];
                let number = numbers[random.below(numbers.len())];
                let number = number.wrapping_add(random.below(3) as u32).wrapping_sub(1);
                // Numbers are stored at multiples of their size.
                let at = at / 4 * 4;
                for (place, byte) in bytes[at..].iter_mut().zip(number.to_le_bytes()) {
                    *place = byte;
                }
            }
            4 => bytes.truncate(random.below(bytes.len())),
            5 => bytes.extend(std::iter::repeat_n(0, random.below(5_000))),
            _ => {
                let other = &seeds[random.below(seeds.len())];
                let end = (at + random.below(64)).min(other.len()).min(bytes.len());
                if at < end {
                    bytes[at..end].copy_from_slice(&other[at..end]);
                }
            }
        }
    }
    bytes
}

/// Short texts beside the golden files, for the decoders of paths, names and keys.
fn seeds() -> Vec<Vec<u8>> {
    let id = crate::build::id(7);
    let kind = dl_format::ObjectKind::Tombstone;
    let mut seeds: Vec<Vec<u8>> = golden::files().into_iter().map(|(_, bytes)| bytes).collect();
    seeds.push(dl_format::object_key(crate::build::DATASET, id, kind).into_bytes());
    seeds.push(id.to_string().into_bytes());
    seeds.push(b"names/imagenet-1k/0000001f".to_vec());
    seeds.push(b"train/n01440764/n01440764_10026.JPEG".to_vec());
    seeds
}

#[test]
fn no_bytes_break_a_decoder() {
    let seeds = seeds();
    let rounds = if is_torture() { 5_000_000 } else { 50_000 };
    for (name, decoder) in DECODERS {
        let mut random = Random(name.len() as u64);
        for seed in &seeds {
            decoder(seed);
        }
        for round in 0..rounds {
            let bytes = mutate(&mut random, &seeds);
            let outcome = std::panic::catch_unwind(|| decoder(&bytes));
            assert!(outcome.is_ok(), "{name}, round {round}: {}", hex(&bytes));
        }
    }
}

#[test]
fn mutations_get_behind_the_checksums() {
    let (mut random, seeds) = (Random(3), seeds());
    let mut fields = std::collections::BTreeSet::new();
    let mut good = 0;
    for _ in 0..40_000 {
        let mut bytes = mutate(&mut random, &seeds);
        crate::entry_points::repair(&mut bytes);
        match dl_format::Verified::check(bytes) {
            Ok(_) => good += 1,
            Err(error) => {
                fields.insert(error.field);
            }
        }
    }
    assert!(good > 100, "some damage is repaired: {good}");
    assert!(fields.len() > 25, "the checks that were met: {fields:?}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
