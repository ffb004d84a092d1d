//! Figures: samples of two sides, their medians, and the bar for their ratio.
//!
//! Must hold: the sides take turns, and a ratio is the median of the ratios of neighbouring runs. A
//! machine that becomes slower then affects both sides.

mod machine;
mod plot;
mod report;

use anyhow::Result;
use dl_runtime::{Clock, SystemClock};
use serde::Serialize;

pub use machine::Machine;
pub(crate) use plot::{Curve, Plot};
pub use report::{print, print_json};

/// A side of a comparison, with a figure for each run.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    /// Description of the measured operation.
    pub what: String,
    /// Figures in the unit of the bench, in the order of the runs.
    pub samples: Vec<f64>,
}

/// Required result of the first side.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bar {
    /// At most this factor of the other side.
    AtMostTimes(f64),
    /// At least this factor of the other side.
    AtLeastTimes(f64),
    /// At most this figure.
    AtMost(f64),
    /// At least this figure.
    AtLeast(f64),
    /// No requirement, as for a point of a curve.
    None,
}

/// A workload with both sides of its ratio.
#[derive(Debug, Clone, Serialize)]
pub struct Bench {
    /// Name of the workload and of its part.
    pub name: String,
    /// Sizes, counts, threads.
    pub settings: String,
    /// `s`, `files/s`, `paths/s` or `ranges/s`.
    pub unit: &'static str,
    /// This system.
    pub ours: Side,
    /// Reference.
    pub theirs: Side,
    /// Required result.
    pub bar: Bar,
}

impl Side {
    /// A side without runs.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), samples: Vec::new() }
    }

    /// Median of the figures.
    pub fn median(&self) -> f64 {
        median(self.samples.clone())
    }
}

impl Bench {
    /// A bench of two measured sides.
    pub(crate) fn new(
        name: impl Into<String>,
        settings: impl Into<String>,
        unit: &'static str,
        [ours, theirs]: [Side; 2],
        bar: Bar,
    ) -> Self {
        Self { name: name.into(), settings: settings.into(), unit, ours, theirs, bar }
    }

    /// Median of the ratios of neighbouring runs, so that drifts of the machine affect both runs of a pair.
    pub fn ratio(&self) -> f64 {
        let pairs = self.ours.samples.iter().zip(&self.theirs.samples);
        median(pairs.map(|(ours, theirs)| ours / theirs).collect())
    }

    /// Whether the bar is reached.
    pub fn is_met(&self) -> bool {
        match self.bar {
            Bar::AtMostTimes(bar) => self.ratio() <= bar,
            Bar::AtLeastTimes(bar) => self.ratio() >= bar,
            Bar::AtMost(bar) => self.ours.median() <= bar,
            Bar::AtLeast(bar) => self.ours.median() >= bar,
            Bar::None => true,
        }
    }
}

/// Result of `work`, and its duration in seconds.
pub(crate) fn time<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let clock = SystemClock::new();
    let start = clock.monotonic();
    let done = work()?;
    Ok((done, clock.monotonic().saturating_sub(start).as_secs_f64()))
}

/// Runs all sides once to warm up, then `runs` times. `turn` gives a figure for each side.
pub(crate) fn in_turns<const SIDES: usize>(
    runs: usize,
    names: [impl Into<String>; SIDES],
    mut turn: impl FnMut(u64) -> Result<[f64; SIDES]>,
) -> Result<[Side; SIDES]> {
    let mut sides = names.map(Side::new);
    for round in 0..=runs {
        let figures = turn(round as u64)?;
        if round > 0 {
            add(&mut sides, figures);
        }
    }
    Ok(sides)
}

/// Adds the figures of a run.
pub(crate) fn add<const SIDES: usize>(sides: &mut [Side; SIDES], figures: [f64; SIDES]) {
    for (side, figure) in sides.iter_mut().zip(figures) {
        side.samples.push(figure);
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let middle = samples.len() / 2;
    match samples.as_slice() {
        [] => f64::NAN,
        samples if samples.len() % 2 == 1 => samples[middle],
        samples => f64::midpoint(samples[middle - 1], samples[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(ours: &[f64], theirs: &[f64], bar: Bar) -> Bench {
        let side = |samples: &[f64]| Side { what: String::new(), samples: samples.to_vec() };
        Bench::new("", "", "s", [side(ours), side(theirs)], bar)
    }

    #[test]
    fn the_median_stands_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn a_ratio_is_taken_run_by_run() {
        let drifting = bench(&[1.0, 10.0, 100.0], &[2.0, 20.0, 50.0], Bar::AtMostTimes(0.5));
        assert_eq!(drifting.ratio(), 0.5);
        assert!(drifting.is_met());
    }

    #[test]
    fn a_bar_without_runs_is_not_met() {
        for bar in
            [Bar::AtMostTimes(1.0), Bar::AtLeastTimes(1.0), Bar::AtMost(1.0), Bar::AtLeast(1.0)]
        {
            assert!(!bench(&[], &[], bar).is_met());
        }
    }
}
