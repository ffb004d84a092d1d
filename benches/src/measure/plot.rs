//! A curve of two sides as an SVG, which a browser and a page of documentation show.
//!
//! Must hold: both sides have one scale, which begins at zero.

use std::fmt::Write as _;

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
/// Lines across.
const STEPS: u32 = 4;

/// Points of this system and of something known over the same x, from zero up.
pub(crate) fn curve(title: &str, x: &str, y: &str, points: &[(f64, f64, f64)]) -> String {
    let most = points.iter().flat_map(|(_, ours, theirs)| [*ours, *theirs]).fold(1.0, f64::max);
    let last = points.iter().map(|(at, ..)| *at).fold(1.0, f64::max);
    let across = |at: f64| LEFT + at / last * (WIDTH - LEFT - RIGHT);
    let up = |value: f64| HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}, {y}</text>\n"
    );
    let mut add = |line: std::fmt::Arguments<'_>| {
        writeln!(svg, "{line}").expect("a string takes any text");
    };
    for step in 0..=STEPS {
        let value = most * f64::from(step) / f64::from(STEPS);
        let (at, right) = (up(value), WIDTH - RIGHT);
        add(format_args!(
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"
        ));
        add(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.0} k</text>",
            LEFT - 6.0,
            at + 4.0,
            value / 1e3
        ));
    }
    for (at, ..) in points {
        let (across, bottom) = (across(*at), HEIGHT - BOTTOM + 16.0);
        add(format_args!(
            "<text x=\"{across:.1}\" y=\"{bottom}\" text-anchor=\"middle\">{at}</text>"
        ));
    }
    let sides = [
        ("this system", "#1f6feb", points.iter().map(|(at, ours, _)| (*at, *ours)).collect()),
        ("redis-benchmark", "#888", points.iter().map(|(at, _, known)| (*at, *known)).collect()),
    ];
    for (number, (name, colour, points)) in sides.into_iter().enumerate() {
        let points: Vec<(f64, f64)> = points;
        let path: Vec<_> =
            points.iter().map(|(at, of)| format!("{:.1},{:.1}", across(*at), up(*of))).collect();
        add(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        ));
        for (at, of) in points {
            let (across, up) = (across(at), up(of));
            add(format_args!(
                "<circle cx=\"{across:.1}\" cy=\"{up:.1}\" r=\"3\" fill=\"{colour}\"/>"
            ));
        }
        let (at, bottom) = (LEFT + 150.0 * number as f64, HEIGHT - 12.0);
        add(format_args!("<text x=\"{at}\" y=\"{bottom}\" fill=\"{colour}\">{name}</text>"));
    }
    add(format_args!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{x}</text>\n</svg>",
        WIDTH - RIGHT,
        HEIGHT - 12.0
    ));
    svg
}

#[cfg(test)]
mod tests {
    use super::curve;

    #[test]
    fn a_curve_shows_every_point_inside_of_its_frame() {
        let svg = curve("t", "servers", "paths/s", &[(1.0, 10e3, 40e3), (3.0, 30e3, 38e3)]);
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains("cy=\"40.0\"") && svg.contains("cx=\"460.0\""), "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }
}
