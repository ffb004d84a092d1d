//! The log of an agent, in two files of bounded size.
//!
//! Must hold: a log that can't be written disturbs no agent. Only the user may read the log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use dl_runtime::locked;
use libdiesel::agent::older_log;
use rustix::fs::OFlags;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Most bytes of a file.
const BYTES_MAX: u64 = 1 << 20;

/// Sends the messages of this process to a log. Panics are messages too.
pub(crate) fn begin(path: PathBuf) -> io::Result<()> {
    let log = Log::open(path, BYTES_MAX)?;
    // A process has a single subscriber.
    let _ = tracing_subscriber::fmt()
        .with_writer(log)
        .with_ansi(false)
        .with_max_level(LevelFilter::INFO)
        .try_init();
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |why| {
        tracing::error!(%why, "a thread of the agent panicked");
        before(why);
    }));
    Ok(())
}

/// A log with its older part.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    bytes_max: u64,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    bytes: u64,
}

impl Log {
    fn open(path: PathBuf, bytes_max: u64) -> io::Result<Self> {
        let file = append(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path, bytes_max, open: Mutex::new(Open { file, bytes }) })
    }
}

fn append(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32;
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)
}

impl Write for &Log {
    /// Writes a whole message.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let mut open = locked(&self.open);
        let length = message.len() as u64;
        if open.bytes > 0 && open.bytes.saturating_add(length) > self.bytes_max {
            fs::rename(&self.path, older_log(&self.path))?;
            *open = Open { file: append(&self.path)?, bytes: 0 };
        }
        open.file.write_all(message)?;
        open.bytes = open.bytes.saturating_add(length);
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Log;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_log_has_two_files_of_bounded_size_for_the_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("task.log");
        for round in 0..2 {
            let log = Log::open(path.clone(), 100).unwrap();
            let mut writer = &log;
            for number in 0..50 {
                writer.write_all(format!("{round} message {number:03}\n").as_bytes()).unwrap();
            }
        }
        let text = |path: &Path| fs::read_to_string(path).unwrap();
        let both = text(&older_log(&path)) + &text(&path);
        assert!(both.len() <= 200 && both.ends_with("1 message 048\n1 message 049\n"), "{both}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
