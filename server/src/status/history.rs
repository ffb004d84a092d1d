//! Series of points: an hour of points of five seconds, a day of points of a minute.
//!
//! Must hold: memory is bounded, and begins small. A time without points is a gap, and later points stay in their place.

use std::collections::VecDeque;

use dl_format::Stamp;
use dl_proto::{Line, SeriesStatus};

/// Seconds of a point, and points of a series.
const FINE: (u32, usize) = (5, 720);
const COARSE: (u32, usize) = (60, 1_440);

const MICROS: u64 = 1_000_000;

/// `N` series with the same times.
#[derive(Debug)]
pub(crate) struct History<const N: usize> {
    names: [&'static str; N],
    fine: Points<N>,
    coarse: Points<N>,
    /// Sums and numbers of the values since the last point of `coarse`.
    sums: [(f32, u16); N],
}

#[derive(Debug)]
struct Points<const N: usize> {
    step: u32,
    most: usize,
    /// The number of the newest point since 1970.
    last: u64,
    points: VecDeque<[f32; N]>,
}

impl<const N: usize> History<N> {
    pub(crate) fn new(names: [&'static str; N]) -> Self {
        let (fine, coarse) = (Points::new(FINE), Points::new(COARSE));
        Self { names, fine, coarse, sums: [(0.0, 0); N] }
    }

    /// Adds a point, unless the series has one at this time.
    pub(crate) fn push(&mut self, now: Stamp, values: [f32; N]) {
        let minute = self.coarse.number(now);
        let has_values = self.sums.iter().any(|(_, count)| *count > 0);
        if has_values && minute != self.coarse.last {
            let mean = |(sum, count): (f32, u16)| sum / f32::from(count);
            self.coarse.push(minute, self.sums.map(mean));
            self.sums = [(0.0, 0); N];
        } else if self.coarse.last == 0 {
            self.coarse.last = minute;
        }
        if self.fine.push(self.fine.number(now), values) {
            for ((sum, count), value) in self.sums.iter_mut().zip(values) {
                if value.is_finite() {
                    (*sum, *count) = (*sum + value, count.saturating_add(1));
                }
            }
        }
    }

    /// The points behind a time.
    pub(crate) fn after(&self, since: Stamp, step: u32) -> SeriesStatus {
        let points = if step >= COARSE.0 { &self.coarse } else { &self.fine };
        let count = points.last.saturating_sub(points.number(since));
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(points.points.len());
        let skipped = points.points.len() - count;
        let line = |(number, name): (usize, &&str)| Line {
            name: (*name).to_owned(),
            points: points
                .points
                .iter()
                .skip(skipped)
                .map(|point| rounded(point.get(number).copied().unwrap_or(f32::NAN)))
                .collect(),
        };
        SeriesStatus {
            step: points.step,
            until: points.last.saturating_mul(u64::from(points.step) * MICROS),
            lines: self.names.iter().enumerate().map(line).collect(),
        }
    }
}

impl<const N: usize> Points<N> {
    fn new((step, most): (u32, usize)) -> Self {
        Self { step, most, last: 0, points: VecDeque::new() }
    }

    /// The number of the point that ends at a time or before.
    fn number(&self, at: Stamp) -> u64 {
        at.get() / (u64::from(self.step) * MICROS)
    }

    /// Adds a point behind the last; false for a time that has one.
    fn push(&mut self, number: u64, values: [f32; N]) -> bool {
        // A clock that was far ahead is right now.
        if number.saturating_add(self.most as u64) < self.last {
            self.points.clear();
            self.last = number.saturating_sub(1);
        }
        if number <= self.last {
            return false;
        }
        let gap = number - self.last - 1;
        if usize::try_from(gap).unwrap_or(usize::MAX) >= self.most {
            self.points.clear();
        } else if !self.points.is_empty() {
            (0..gap).for_each(|_| self.points.push_back([f32::NAN; N]));
        }
        self.points.push_back(values);
        while self.points.len() > self.most {
            self.points.pop_front();
        }
        self.last = number;
        true
    }
}

/// A value with four digits, which is short as text.
fn rounded(value: f32) -> f32 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let unit = 10_f32.powf(3.0 - value.abs().log10().floor());
    let rounded = (value * unit).round() / unit;
    if rounded.is_finite() { rounded } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_800_000_000;

    fn at(second: u64) -> Stamp {
        Stamp::new((START + second) * MICROS)
    }

    fn points(series: &SeriesStatus) -> Vec<f32> {
        series.lines[0].points.clone()
    }

    #[test]
    fn points_keep_their_place_and_are_bounded() {
        let mut history = History::new(["a"]);
        for second in [0, 5, 7, 10] {
            history.push(at(second), [second as f32]);
        }
        let series = history.after(at(0), 5);
        assert_eq!((series.step, series.until), (5, at(10).get()));
        assert_eq!(points(&series), [5.0, 10.0]);
        assert_eq!(points(&history.after(Stamp::default(), 5)), [0.0, 5.0, 10.0]);
        // A gap of two points.
        history.push(at(25), [25.0]);
        let behind = points(&history.after(at(10), 5));
        assert!(behind[0].is_nan() && behind[1].is_nan() && behind[2] == 25.0, "{behind:?}");
        assert_eq!(behind.len(), 3);
        for second in (30..20_000).step_by(5) {
            history.push(at(second), [1.0]);
        }
        assert_eq!(points(&history.after(Stamp::default(), 5)).len(), FINE.1);
        let minutes = points(&history.after(Stamp::default(), 60));
        assert!(minutes.len() > 300 && minutes[5..].iter().all(|value| *value == 1.0));
        // A clock set back adds nothing; a long silence begins anew.
        history.push(at(18_000), [7.0]);
        assert_eq!(points(&history.after(at(19_990), 5)), [1.0]);
        history.push(at(90_000), [9.0]);
        assert_eq!(points(&history.after(Stamp::default(), 5)), [9.0]);
        history.push(at(30_000), [8.0]);
        assert_eq!(points(&history.after(Stamp::default(), 5)), [8.0], "a clock was ahead");
    }

    #[test]
    fn a_missing_value_leaves_the_mean_of_the_others() {
        let mut history = History::new(["a", "b"]);
        for (second, value) in [(0, 1.0), (5, f32::NAN), (10, 3.0), (65, 9.0)] {
            history.push(at(second), [value, f32::NAN]);
        }
        let minutes = history.after(Stamp::default(), 60);
        assert_eq!(minutes.lines[0].points, [2.0]);
        assert!(minutes.lines[1].points[0].is_nan());
    }

    #[test]
    fn values_are_short_as_text() {
        let texts = [0.0, 1.0 / 3.0, 123_456.7, 1e30, -2.5].map(|value| rounded(value).to_string());
        assert_eq!(texts[..3], ["0", "0.3333", "123500"]);
        assert_eq!(texts[4], "-2.5");
    }
}
