//! The mixture of the classes of consecutive files: runs and windows.
//!
//! Must hold: an incomplete window does not count.

use super::Randomness;

/// Counts classes, file by file.
#[derive(Debug)]
pub(super) struct Tally {
    length: usize,
    /// Files of each class in the current window.
    counts: Vec<u32>,
    window: Vec<u32>,
    in_window: Sums,
    /// Sums over all complete windows.
    sums: Sums,
    windows: u64,
    files: u64,
    runs: u64,
    run: u64,
    longest: u64,
    last: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    classes: u64,
    /// The sum of the squares of the counts.
    squares: u64,
}

impl Tally {
    /// For a number of classes, and windows of a length in files.
    pub(super) fn new(classes: usize, length: usize) -> Self {
        Self {
            length,
            counts: vec![0; classes],
            window: Vec::with_capacity(length),
            in_window: Sums::default(),
            sums: Sums::default(),
            windows: 0,
            files: 0,
            runs: 0,
            run: 0,
            longest: 0,
            last: None,
        }
    }

    /// Counts the next file, by its class.
    pub(super) fn push(&mut self, class: u32) {
        self.files += 1;
        if self.last == Some(class) {
            self.run += 1;
        } else {
            (self.last, self.run) = (Some(class), 1);
            self.runs += 1;
        }
        self.longest = self.longest.max(self.run);
        if let Some(count) = self.counts.get_mut(class as usize) {
            self.in_window.classes += u64::from(*count == 0);
            self.in_window.squares += 2 * u64::from(*count) + 1;
            *count += 1;
        }
        self.window.push(class);
        if self.window.len() == self.length {
            self.end_window();
        }
    }

    fn end_window(&mut self) {
        self.windows += 1;
        self.sums.classes += self.in_window.classes;
        self.sums.squares += self.in_window.squares;
        self.in_window = Sums::default();
        for class in self.window.drain(..) {
            if let Some(count) = self.counts.get_mut(class as usize) {
                *count = 0;
            }
        }
    }

    /// The mixture so far, without the movement of the files.
    pub(super) fn mix(&self) -> Randomness {
        let (windows, length) = (self.windows as f64, self.length as f64);
        let least_one = |count: u64| count.max(1) as f64;
        Randomness {
            moved: 0.0,
            apart: None,
            longest_run: self.longest as f64,
            mean_run: self.files as f64 / least_one(self.runs),
            classes: self.sums.classes as f64 / least_one(self.windows),
            effective: windows * length * length / least_one(self.sums.squares),
        }
    }
}
