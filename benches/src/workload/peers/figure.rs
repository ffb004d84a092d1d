//! Figures of the paper as charts, with their data and the paper's claim.
//!
//! Must hold: a figure states the claim of the paper and the run's values.

use std::fs::write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::measure::Plot;
use crate::setup::Settings;

/// A figure of the paper.
#[derive(Debug)]
pub(super) struct Figure {
    /// Base name of the files.
    pub(super) name: &'static str,
    pub(super) heading: &'static str,
    /// Claim of the paper.
    pub(super) claim: &'static str,
    /// Values of the run.
    pub(super) seen: String,
    pub(super) settings: String,
    pub(super) plot: Plot,
}

impl Figure {
    /// With `--plots`, writes the chart, its data and a page with both.
    pub(super) fn write(&self, settings: &Settings) -> Result<()> {
        let Some(folder) = settings.plots() else { return Ok(()) };
        let Self { name, heading, claim, seen, settings, plot } = self;
        let page = format!(
            "# {heading}\n\n![{heading}]({name}.svg)\n\nPaper: {claim}\n\nHere: {seen}\n\n\
             Settings: {settings}. The points are in [{name}.csv]({name}.csv). `make figures` writes \
             this page.\n"
        );
        put(folder, &format!("{name}.svg"), &plot.svg())?;
        put(folder, &format!("{name}.csv"), &plot.csv())?;
        put(folder, &format!("{name}.md"), &page)
    }
}

fn put(folder: &Path, name: &str, text: &str) -> Result<()> {
    let file = folder.join(name);
    write(&file, text).with_context(|| format!("write {}", file.display()))
}
