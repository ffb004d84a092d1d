//! Programs with a shifted time of day, adjustable while they run.
//!
//! Must hold: nothing else changes in the program; waits use the monotonic clock and are not
//! affected.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::program::run;

/// A library that adds an offset to the time of day: seconds in a file of eight bytes,
/// little-endian.
const SHIFT: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static const volatile int64_t *off;
__attribute__((constructor)) static void find(void) {
    const char *name = getenv("CLOCK_OFF");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) abort();
    void *at = mmap(0, sizeof *off, PROT_READ, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) abort();
    off = at;
    close(file);
}
int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int ended = next(clock, at);
    if (!ended && clock == CLOCK_REALTIME && off) at->tv_sec += *off;
    return ended;
}
"#;

/// A shifted clock for programs.
#[derive(Debug)]
pub struct ClockShift {
    library: PathBuf,
    off: PathBuf,
}

impl ClockShift {
    /// A clock with an offset of `seconds`; its files in `folder` start with `name`. The library is
    /// compiled with the C compiler of the build.
    ///
    /// # Errors
    /// When the compiler is missing.
    pub fn new(folder: &Path, name: &str, seconds: i64) -> Result<Self> {
        let file = |end| folder.join(format!("{name}.{end}"));
        let (source, library) = (file("c"), file("so"));
        fs::write(&source, SHIFT)?;
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(&source).arg("-ldl");
        run(&mut compiler)?.code(0)?;
        let shift = Self { library, off: file("off") };
        shift.set(seconds)?;
        Ok(shift)
    }

    /// Changes the offset.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn set(&self, seconds: i64) -> Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&self.off)?;
        file.write_all_at(&seconds.to_le_bytes(), 0).context("set a clock")
    }

    /// The environment variables of a program with the shifted clock.
    pub fn variables(&self) -> Vec<(String, String)> {
        let variables = [("LD_PRELOAD", &self.library), ("CLOCK_OFF", &self.off)];
        variables.map(|(name, path)| (name.to_owned(), path.display().to_string())).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use anyhow::ensure;

    use super::*;
    use crate::cluster::clock;

    #[test]
    fn a_program_uses_its_shifted_clock() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let shift = ClockShift::new(folder.path(), "late", 0)?;
        let now = clock().now().duration_since(UNIX_EPOCH)?.as_secs() as i64;
        for off in [-172_800, 0, 3_600] {
            shift.set(off)?;
            let told = run(Command::new("date").arg("+%s").envs(shift.variables()))?.code(0)?;
            let told: i64 = told.text().trim().parse()?;
            ensure!((told - off - now).abs() < 30, "date prints {told}, expected {now} + {off}");
        }
        Ok(())
    }
}
