//! Figures as text, and as a JSON object a line.
//!
//! Must hold: the output has every sample of both sides, the bar, and the verdict.

use std::io::{self, Write};

use serde::Serialize;

use super::{Bar, Bench, Machine, Side};

/// Prints a bench for people.
///
/// # Errors
/// The output is closed.
pub fn print(out: &mut dyn Write, bench: &Bench) -> io::Result<()> {
    let Bench { name, settings, unit, ours, theirs, bar } = bench;
    writeln!(out, "\n{name}: {settings}; {} runs, in turns, medians", ours.samples.len())?;
    let (times, figure) = match *bar {
        Bar::AtMostTimes(bar) => (format!(", bar: at most {bar}"), String::new()),
        Bar::AtLeastTimes(bar) => (format!(", bar: at least {bar}"), String::new()),
        Bar::AtMost(bar) => (String::new(), format!(", bar: at most {}", amount(bar, unit))),
        Bar::AtLeast(bar) => (String::new(), format!(", bar: at least {}", amount(bar, unit))),
        Bar::None => (String::new(), String::new()),
    };
    line(out, ours, unit, &figure)?;
    line(out, theirs, unit, "")?;
    let met = match (bar, bench.is_met()) {
        (Bar::None, _) => "",
        (_, true) => ": met",
        (_, false) => ": MISSED",
    };
    writeln!(out, "  ratio {:.2}{times}{met}", bench.ratio())?;
    out.flush()
}

fn line(out: &mut dyn Write, side: &Side, unit: &str, bar: &str) -> io::Result<()> {
    let samples: Vec<_> = side.samples.iter().map(|sample| amount(*sample, unit)).collect();
    let median = amount(side.median(), unit);
    writeln!(out, "  {median:>18}  {} ({}){bar}", side.what, samples.join(", "))
}

fn amount(figure: f64, unit: &str) -> String {
    match figure {
        figure if figure >= 1e6 => format!("{:.2} M {unit}", figure / 1e6),
        figure if figure >= 1e4 => format!("{:.0} k {unit}", figure / 1e3),
        figure => format!("{figure:.2} {unit}"),
    }
}

#[derive(Serialize)]
struct Line<'a> {
    machine: &'a Machine,
    #[serde(flatten)]
    bench: &'a Bench,
    ratio: f64,
    met: bool,
}

/// Prints a bench for programs: an object with every sample.
///
/// # Errors
/// The output is closed.
pub fn print_json(out: &mut dyn Write, machine: &Machine, bench: &Bench) -> io::Result<()> {
    let line = Line { machine, bench, ratio: bench.ratio(), met: bench.is_met() };
    serde_json::to_writer(&mut *out, &line)?;
    writeln!(out)?;
    out.flush()
}
