//! The text format of Prometheus, version 0.0.4.
//!
//! Must hold: names and labels consist of characters that need no escapes.

use std::fmt::{self, Display, Write};

use super::histogram::{BOUNDS_MICROS, Histogram};

/// The HTTP content type of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Metrics in order.
#[derive(Debug, Default)]
pub(crate) struct Text {
    written: String,
    name: &'static str,
}

impl Text {
    /// Begins a metric; its samples follow.
    pub(crate) fn metric(&mut self, name: &'static str, kind: Kind, help: &'static str) {
        self.name = name;
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// A sample; `labels` are names and values without escapes.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let name = self.name;
        self.write(format_args!("{name}{} {value}\n", Labels(labels)));
    }

    /// The samples of a histogram with a single label.
    pub(crate) fn histogram(&mut self, label: (&str, &str), histogram: &Histogram) {
        let (up_to, count, sum) = histogram.read();
        let name = self.name;
        for (bound, up_to) in BOUNDS_MICROS.iter().zip(up_to) {
            let bound = (*bound as f64 / 1e6).to_string();
            let labels = [label, ("le", &bound)];
            self.write(format_args!("{name}_bucket{} {up_to}\n", Labels(&labels)));
        }
        let labels = [label, ("le", "+Inf")];
        self.write(format_args!("{name}_bucket{} {count}\n", Labels(&labels)));
        let labels = [label];
        let labels = Labels(&labels);
        self.write(format_args!("{name}_sum{labels} {sum}\n{name}_count{labels} {count}\n"));
    }

    /// The whole text.
    pub(crate) fn finish(self) -> String {
        self.written
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        // Writes to memory never fail.
        let _ = self.written.write_fmt(text);
    }
}

struct Labels<'a>(&'a [(&'a str, &'a str)]);

impl Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "{";
        for (name, value) in self.0 {
            write!(f, "{before}{name}=\"{value}\"")?;
            before = ",";
        }
        f.write_str(if self.0.is_empty() { "" } else { "}" })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let mut text = Text::default();
        text.metric("a_total", Kind::Counter, "Things.");
        text.sample(&[], 7);
        text.sample(&[("x", "1"), ("y", "z")], 0.5);
        text.metric("b_seconds", Kind::Histogram, "Times.");
        let histogram = Histogram::default();
        histogram.add(Duration::from_secs(2));
        text.histogram(("op", "read"), &histogram);
        let text = text.finish();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "# HELP a_total Things.",
                "# TYPE a_total counter",
                "a_total 7",
                "a_total{x=\"1\",y=\"z\"} 0.5",
            ]
        );
        assert_eq!(lines[6], "b_seconds_bucket{op=\"read\",le=\"0.00025\"} 0");
        assert_eq!(
            lines[lines.len() - 3..],
            [
                "b_seconds_bucket{op=\"read\",le=\"+Inf\"} 1",
                "b_seconds_sum{op=\"read\"} 2",
                "b_seconds_count{op=\"read\"} 1",
            ]
        );
    }
}
