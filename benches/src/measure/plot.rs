//! Line charts as SVG, for browsers and pages of documentation.
//!
//! Must hold: all lines share one scale, and the scale begins at zero.

use std::fmt::Write as _;

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
/// Space for the numbers of x, the name of x, and two rows of line names.
const BOTTOM: f64 = 74.0;
/// Number of horizontal grid lines.
const STEPS: u32 = 4;
/// Limit of the numbers along x.
const NUMBERS: usize = 9;
/// Largest number of points for which a line gets circles.
const CIRCLES: usize = 12;
const COLOURS: [&str; 4] = ["#1f6feb", "#888", "#d9730d", "#2da44e"];

/// One line of a chart.
#[derive(Debug, Clone)]
pub(crate) struct Curve {
    pub(crate) name: String,
    /// Points as x and y.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A chart of up to four lines.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) curves: Vec<Curve>,
}

/// Scale from values to positions in the chart.
struct Scale {
    last: f64,
    most: f64,
}

impl Scale {
    fn across(&self, at: f64) -> f64 {
        LEFT + at / self.last * (WIDTH - LEFT - RIGHT)
    }

    fn up(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.most * (HEIGHT - TOP - BOTTOM)
    }
}

impl Plot {
    fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        self.curves.iter().flat_map(|curve| &curve.points)
    }

    /// Chart as SVG.
    pub(crate) fn svg(&self) -> String {
        let most = self.points().map(|(_, value)| *value).fold(0.0, f64::max);
        let last = self.points().map(|(at, _)| *at).fold(1.0, f64::max);
        let scale = Scale { last, most: if most > 0.0 { most } else { 1.0 } };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}, {}</text>\n",
            self.title, self.y
        );
        self.grid(&scale, &mut svg);
        for (number, curve) in self.curves.iter().enumerate() {
            draw(curve, COLOURS[number % COLOURS.len()], &scale, &mut svg);
            let (row, column) = (number / 2, number % 2);
            let (at, bottom) = (LEFT + 200.0 * column as f64, HEIGHT - 24.0 + 16.0 * row as f64);
            let colour = COLOURS[number % COLOURS.len()];
            let _ = writeln!(
                svg,
                "<text x=\"{at}\" y=\"{bottom}\" fill=\"{colour}\">{}</text>",
                curve.name
            );
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Draws the grid lines with their values, and the numbers of x.
    fn grid(&self, scale: &Scale, svg: &mut String) {
        for step in 0..=STEPS {
            let value = scale.most * f64::from(step) / f64::from(STEPS);
            let (at, right) = (scale.up(value), WIDTH - RIGHT);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"
            );
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                short(value, scale.most)
            );
        }
        let mut numbers: Vec<f64> = self.points().map(|(at, _)| *at).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.dedup();
        if numbers.len() > NUMBERS {
            numbers =
                (0..=STEPS).map(|step| scale.last * f64::from(step) / f64::from(STEPS)).collect();
        }
        for at in numbers {
            let (across, bottom) = (scale.across(at), HEIGHT - BOTTOM + 16.0);
            let text = if at == at.round() { format!("{at}") } else { format!("{at:.1}") };
            let _ = writeln!(
                svg,
                "<text x=\"{across:.1}\" y=\"{bottom}\" text-anchor=\"middle\">{text}</text>"
            );
        }
        let (across, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM + 32.0);
        let _ = writeln!(
            svg,
            "<text x=\"{across}\" y=\"{bottom}\" text-anchor=\"end\">{}</text>",
            self.x
        );
    }

    /// All points as CSV, one row each: line, x and y.
    pub(crate) fn csv(&self) -> String {
        let mut csv = format!("line,{},{}\n", self.x, self.y);
        for Curve { name, points } in &self.curves {
            for (at, value) in points {
                let _ = writeln!(csv, "\"{name}\",{at:.3},{value:.3}");
            }
        }
        csv
    }
}

fn draw(curve: &Curve, colour: &str, scale: &Scale, svg: &mut String) {
    let place = |(at, value): &(f64, f64)| (scale.across(*at), scale.up(*value));
    let path = curve.points.iter().map(place).map(|(x, y)| format!("{x:.1},{y:.1}"));
    let path: Vec<_> = path.collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        path.join(" ")
    );
    if curve.points.len() <= CIRCLES {
        for (x, y) in curve.points.iter().map(place) {
            let _ =
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
    }
}

/// `value` in the shortest form for its scale; `most` is the largest value.
fn short(value: f64, most: f64) -> String {
    match most {
        most if most >= 2e6 => format!("{:.1} M", value / 1e6),
        most if most >= 10e3 => format!("{:.0} k", value / 1e3),
        most if most >= 2e3 => format!("{:.1} k", value / 1e3),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Curve, Plot};

    #[test]
    fn a_plot_shows_every_point_inside_of_its_frame() {
        let curve = |name: &str, points: &[_]| Curve { name: name.into(), points: points.to_vec() };
        let curves = vec![
            curve("this system", &[(1.0, 10e3), (3.0, 30e3)]),
            curve("another", &[(1.0, 40e3), (3.0, 38e3)]),
        ];
        let plot = Plot { title: "t".into(), x: "servers", y: "paths/s", curves };
        let svg = plot.svg();
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains("cy=\"40.0\"") && svg.contains("cx=\"460.0\""), "{svg}");
        assert!(svg.ends_with("</svg>\n"));
        assert_eq!(plot.csv().lines().nth(1), Some("\"this system\",1.000,10000.000"));
    }
}
