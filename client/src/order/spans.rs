//! Places in the sequence of an epoch, as intervals, and their division among nodes.
//!
//! Must hold: a division loses no place and repeats no place (docs/ORDER.md).

use std::ops::Range;

/// Places as a list of non-empty intervals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Intervals {
    intervals: Vec<Range<u64>>,
    /// For each interval, the number of places in earlier intervals.
    before: Vec<u64>,
    length: u64,
}

impl FromIterator<Range<u64>> for Intervals {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(intervals: I) -> Self {
        let mut all = Self::default();
        for interval in intervals.into_iter().filter(|interval| !interval.is_empty()) {
            let length = interval.end - interval.start;
            match all.intervals.last_mut() {
                Some(last) if last.end == interval.start => last.end = interval.end,
                _ => {
                    all.before.push(all.length);
                    all.intervals.push(interval);
                }
            }
            all.length += length;
        }
        all
    }
}

impl Intervals {
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The place at an index, and the length of the interval from there on.
    pub(super) fn at(&self, index: u64) -> Option<(u64, u64)> {
        let number = self.before.partition_point(|before| *before <= index).checked_sub(1)?;
        let (interval, before) = (self.intervals.get(number)?, self.before.get(number)?);
        let place = interval.start.checked_add(index.checked_sub(*before)?)?;
        (place < interval.end).then(|| (place, interval.end - place))
    }

    /// The places with indexes in a range. Some intervals may be empty.
    pub(super) fn part(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.before.partition_point(|before| *before <= range.start).saturating_sub(1);
        let intervals = self.intervals.iter().zip(&self.before).skip(first);
        let Range { start, end } = range;
        intervals.take_while(move |(_, before)| **before < end).map(move |(interval, before)| {
            let from = interval.start.saturating_add(start.saturating_sub(*before));
            let to = interval.start.saturating_add(end - before).min(interval.end);
            from..to.max(from)
        })
    }
}

/// The indexes of a stretch, in a division of a sequence into `parts` stretches of equal length, up
/// to one index.
pub(super) fn stretch(length: u64, parts: u32, part: u32) -> Range<u64> {
    let start =
        |part: u64| (u128::from(part) * u128::from(length) / u128::from(parts.max(1))) as u64;
    let part = u64::from(part);
    start(part)..start(part + 1)
}
