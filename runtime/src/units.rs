//! Sizes and times as people type them.
//!
//! Must hold: a number that overflows is no size and no time.

use std::time::Duration;

/// Bytes, by a number and one of `B KiB MiB GiB TiB`, or by a number alone.
pub fn size(text: &str) -> Option<u64> {
    number_of(
        text,
        &[
            ("", 1),
            ("B", 1),
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("TiB", 1 << 40),
        ],
    )
}

/// A time, by a number and one of `ms s m h d w`.
pub fn duration(text: &str) -> Option<Duration> {
    const HOUR: u64 = 3_600_000;
    let units =
        [("ms", 1), ("s", 1000), ("m", 60_000), ("h", HOUR), ("d", 24 * HOUR), ("w", 168 * HOUR)];
    number_of(text, &units).map(Duration::from_millis)
}

/// A number with one of the units.
fn number_of(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit = text.get(digits.len()..)?.trim_start();
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    digits.parse::<u64>().ok()?.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_a_number_and_a_unit() {
        let sizes = [("7", 7), ("7B", 7), (" 64 MiB", 64 << 20), ("2TiB", 2 << 40)];
        for (text, bytes) in sizes {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "MiB", "-1", "1.5MiB", "1MB", "16777216TiB", "1 2", "1é"] {
            assert_eq!(size(text), None, "{text}");
        }
        for (text, seconds) in [("30s", 30), ("5 m", 300), ("2h", 7200), ("1w", 604_800)] {
            assert_eq!(duration(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(duration("500ms"), Some(Duration::from_millis(500)));
        for text in ["", "s", "30", "30sec", "18446744073709551615s", "-1s", "µ"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
