//! Close ranges of an object are read with a single request: to a bucket a request costs as much as many
//! bytes.
//!
//! Must hold: each range gets its own bytes or its own error. The gaps read between ranges are bounded,
//! and no gap stays in memory for the sake of a few bytes beside it.

use bytes::Bytes;

use crate::range::Span;
use crate::{ByteRange, Key, ObjectRange};

/// Most bytes of a read for several ranges: a chunk of the usual size.
const LONGEST: u64 = 4 << 20;

/// A request, and the numbers of the ranges that it answers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fetch {
    pub(crate) range: ObjectRange,
    pub(crate) members: Vec<usize>,
}

/// Merges ranges with gaps of at most `gap` bytes, sorted by object and offset.
pub(crate) fn merge(wanted: &[ObjectRange], gap: u64) -> Vec<Fetch> {
    let mut exact: Vec<(&Key, u64, u64, usize)> = Vec::with_capacity(wanted.len());
    let mut fetches = Vec::with_capacity(wanted.len());
    for (number, ObjectRange { key, range }) in wanted.iter().enumerate() {
        match range.0 {
            Span::Exact { start, end } => exact.push((key, start, end, number)),
            Span::UpTo(_) => fetches.push(Fetch {
                range: ObjectRange { key: key.clone(), range: *range },
                members: vec![number],
            }),
        }
    }
    exact.sort_unstable();
    let mut last: Option<(&Key, u64, u64, Vec<usize>)> = None;
    for (key, start, end, number) in exact {
        if let Some((of, from, to, members)) = &mut last
            && *of == key
            && start <= to.saturating_add(gap)
            && end.max(*to) - *from <= LONGEST
        {
            *to = end.max(*to);
            members.push(number);
            continue;
        }
        fetches.extend(last.replace((key, start, end, vec![number])).map(fetch));
    }
    fetches.extend(last.map(fetch));
    fetches
}

fn fetch((key, start, end, members): (&Key, u64, u64, Vec<usize>)) -> Fetch {
    let range = ByteRange(Span::Exact { start, end });
    Fetch { range: ObjectRange { key: key.clone(), range }, members }
}

impl Fetch {
    /// The numbers of the ranges in an answer, with their bytes.
    pub(crate) fn cut<'a>(
        &'a self,
        body: &'a Bytes,
        wanted: &'a [ObjectRange],
    ) -> impl Iterator<Item = (usize, Bytes)> + 'a {
        let ranges = self.members.iter().filter_map(|number| wanted.get(*number));
        let used: u64 = ranges.map(|range| range.range.max_len()).sum();
        // A few bytes would keep all of the answer in memory.
        let is_sparse = used.saturating_mul(2) < body.len() as u64;
        self.members.iter().filter_map(move |number| {
            let bytes = match (self.range.range.0, wanted.get(*number)?.range.0) {
                (Span::Exact { start: from, .. }, Span::Exact { start, end }) => {
                    let start = usize::try_from(start.checked_sub(from)?).ok()?;
                    let end = usize::try_from(end.checked_sub(from)?).ok()?;
                    let bytes = body.get(start..end)?;
                    if is_sparse { Bytes::copy_from_slice(bytes) } else { body.slice(start..end) }
                }
                _ => body.clone(),
            };
            Some((*number, bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(key: &str, start: u64, end: u64) -> ObjectRange {
        let range = ByteRange::exact(start, end).unwrap();
        ObjectRange { key: Key::new(key).unwrap(), range }
    }

    #[test]
    fn close_ranges_are_merged_and_each_gets_its_bytes() {
        let whole = ObjectRange { key: Key::new("b").unwrap(), range: ByteRange::WHOLE };
        let wanted = [
            range("a", 900, 1_000),
            range("b", 0, 10),
            range("a", 0, 100),
            whole.clone(),
            range("a", 50, 60),
            range("a", 2_000, 2_001),
            range("b", LONGEST, LONGEST + 1),
        ];
        let fetches = merge(&wanted, 800);
        let told: Vec<_> = fetches.iter().map(|fetch| (&fetch.range, &fetch.members[..])).collect();
        assert_eq!(
            told,
            [
                (&whole, &[3][..]),
                (&range("a", 0, 1_000), &[2, 4, 0]),
                (&range("a", 2_000, 2_001), &[5]),
                (&range("b", 0, 10), &[1]),
                (&range("b", LONGEST, LONGEST + 1), &[6]),
            ]
        );
        let body: Bytes = (0..1_000u32).map(|n| (n % 251) as u8).collect::<Vec<_>>().into();
        let cut: Vec<_> = fetches[1].cut(&body, &wanted).collect();
        assert_eq!(cut, [(2, body.slice(..100)), (4, body.slice(50..60)), (0, body.slice(900..))]);
        assert!(
            merge(&wanted, u64::MAX)
                .iter()
                .all(|fetch| fetch.range.range.max_len() <= LONGEST || fetch.range == whole)
        );
    }
}
