//! Figures: samples of two sides taken in turns, their medians, and the bar they are held to.
//!
//! Must hold: the sides take turns, and a ratio is the median of those of neighbouring runs: a machine
//! that becomes slower does not decide.

mod machine;
mod plot;
mod report;

use anyhow::Result;
use dl_runtime::{Clock, SystemClock};
use serde::Serialize;

pub use machine::Machine;
pub(crate) use plot::{Curve, Plot};
pub use report::{print, print_json};

/// What one side did, one figure for each run.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    /// What was measured.
    pub what: String,
    /// One figure for each run, in the unit of the bench.
    pub samples: Vec<f64>,
}

/// What the first side has to reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bar {
    /// At most so many times the other side.
    AtMostTimes(f64),
    /// At least so many times the other side.
    AtLeastTimes(f64),
    /// At most this figure.
    AtMost(f64),
    /// At least this figure.
    AtLeast(f64),
    /// Nothing is asked for: one point of a curve.
    None,
}

/// One workload with both sides of its ratio.
#[derive(Debug, Clone, Serialize)]
pub struct Bench {
    /// The name of the workload, and of its part.
    pub name: String,
    /// Sizes, counts, threads.
    pub settings: String,
    /// `s`, `files/s`, `paths/s` or `ranges/s`.
    pub unit: &'static str,
    /// This system.
    pub ours: Side,
    /// Something known.
    pub theirs: Side,
    /// What is asked for.
    pub bar: Bar,
}

impl Side {
    /// No runs yet.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), samples: Vec::new() }
    }

    /// The middle one of its figures.
    pub fn median(&self) -> f64 {
        median(self.samples.clone())
    }
}

impl Bench {
    /// The median of the ratios of each run to the run beside it: a machine whose speed drifts
    /// changes both.
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

/// The clock of all figures.
#[derive(Debug)]
pub(crate) struct Stopwatch(SystemClock);

impl Stopwatch {
    pub(crate) fn new() -> Self {
        Self(SystemClock::new())
    }

    /// What `work` gives, and the seconds it took.
    pub(crate) fn time<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
        let start = self.0.monotonic();
        let done = work()?;
        Ok((done, self.0.monotonic().saturating_sub(start).as_secs_f64()))
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
        Bench {
            name: String::new(),
            settings: String::new(),
            unit: "s",
            ours: side(ours),
            theirs: side(theirs),
            bar,
        }
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
