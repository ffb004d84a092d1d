//! A text that an admin changes while servers run: files, or a key in etcd (paper, Figure 2).
//!
//! Must hold: an unreadable or unusable text leaves the last good text in force. Each reason is logged once,
//! even if nodes of etcd alternate. A file counts only after two equal reads.

mod etcd;

use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dl_runtime::{Clock, Deadline, OsRandom, blocking, locked, masked};
use tokio::sync::watch;

use self::etcd::Etcd;

/// Time between two reads of a file.
const PERIOD: Duration = Duration::from_secs(1);

/// Time between the two equal reads of a file.
const SETTLED: Duration = Duration::from_millis(200);

const BYTES_MAX: u64 = 4 << 20;

/// Most reasons logged before a text is good again.
const REASONS_MAX: usize = 16;

/// Wait for the first text.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Separator of the texts of several files.
pub(crate) const BETWEEN: char = '\0';

/// Location of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Some files.
    Files(Vec<PathBuf>),
    /// Under a key of etcd.
    Etcd(etcd::Address),
}

/// The error of an unavailable text.
#[derive(Debug, thiserror::Error)]
#[error("read {what} from {from}: {why}")]
pub struct SourceError {
    what: &'static str,
    from: String,
    why: String,
}

impl Source {
    /// Understands `FILE` and `etcd://HOST:PORT,HOST:PORT/KEY`.
    ///
    /// # Errors
    /// The problem with the address.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let is_address = text.contains("://") || text.starts_with("etcd:");
        match etcd::Address::parse(text) {
            Some(address) => address.map(Self::Etcd),
            None if text.is_empty() || is_address => Err("give a file, or etcd://HOST:PORT/KEY"),
            None => Ok(Self::Files(vec![PathBuf::from(text)])),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(paths) => {
                let shown = paths.iter().map(|path| masked(&path.to_string_lossy()).to_string());
                f.write_str(&shown.collect::<Vec<_>>().join(", "))
            }
            Self::Etcd(address) => address.fmt(f),
        }
    }
}

/// The problems since the last good text.
#[derive(Debug, Default)]
struct Told(Vec<String>);

impl Told {
    /// Keeps a reason. True if the reason needs a log entry.
    fn add(&mut self, why: &str) -> bool {
        let is_new = self.0.len() < REASONS_MAX && !self.0.iter().any(|told| told == why);
        if is_new {
            self.0.push(why.to_owned());
        }
        is_new
    }

    /// Forgets all reasons. True if there were any.
    fn end(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}

#[derive(Debug)]
enum Stream {
    Files(Vec<PathBuf>),
    Etcd(Box<Etcd>),
}

/// A text, its parsed value, and its changes.
pub struct Followed<T> {
    what: &'static str,
    source: Source,
    parse: fn(&str) -> Result<T, String>,
    held: watch::Sender<Arc<T>>,
    clock: Arc<dyn Clock>,
    /// Since when a newer text has been unusable.
    stale_since: Mutex<Option<Duration>>,
    /// The stream of texts and the text in force, taken by the only follower.
    following: Mutex<Option<(Stream, String)>>,
}

/// Without the text, which may be a secret.
impl<T> fmt::Debug for Followed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Followed({} from {})", self.what, self.source)
    }
}

impl<T: Send + Sync + 'static> Followed<T> {
    /// Reads and parses a text; `what` names it in messages.
    ///
    /// # Errors
    /// A text that does not come in time, or that `parse` refuses.
    pub async fn open(
        what: &'static str,
        source: Source,
        clock: Arc<dyn Clock>,
        parse: fn(&str) -> Result<T, String>,
    ) -> Result<Self, SourceError> {
        let error = |why| SourceError { what, from: source.to_string(), why };
        let mut stream = match &source {
            Source::Files(paths) => Stream::Files(paths.clone()),
            Source::Etcd(address) => {
                let random = Arc::new(OsRandom);
                Stream::Etcd(Box::new(Etcd::new(address.clone(), Arc::clone(&clock), random)))
            }
        };
        let deadline = Deadline::after(&*clock, TIMEOUT);
        let mut last = String::from("no answer");
        let text = loop {
            match deadline.bound(&*clock, stream.next(&*clock, Duration::ZERO)).await {
                Ok(Ok(text)) => break text,
                // Other nodes may answer.
                Ok(Err(why)) if matches!(stream, Stream::Etcd(_)) => last = why,
                Ok(Err(why)) => return Err(error(why)),
                Err(_) => return Err(error(format!("{last}; gave up after {TIMEOUT:?}"))),
            }
        };
        let held = parse(&text).map_err(error)?;
        let (held, following) =
            (watch::Sender::new(Arc::new(held)), Mutex::new(Some((stream, text))));
        Ok(Self { what, source, parse, held, clock, stale_since: Mutex::default(), following })
    }

    /// The value in force.
    pub fn now(&self) -> Arc<T> {
        Arc::clone(&self.held.borrow())
    }

    /// A receiver of later values.
    pub fn changes(&self) -> watch::Receiver<Arc<T>> {
        self.held.subscribe()
    }

    /// The text in force; empty while a task follows it.
    pub fn text(&self) -> String {
        let following = locked(&self.following);
        following.as_ref().map(|(_, text)| text.clone()).unwrap_or_default()
    }

    /// Time since a newer text could not be had or used; zero when the text in force is the newest.
    pub(crate) fn stale_for(&self) -> Duration {
        let since = *locked(&self.stale_since);
        since.map_or(Duration::ZERO, |since| self.clock.monotonic().saturating_sub(since))
    }

    /// Applies changes while the server runs. Only the first caller follows; further callers wait for ever.
    pub async fn follow(&self) -> Infallible {
        let taken = locked(&self.following).take();
        let Some((mut stream, mut held)) = taken else { return std::future::pending().await };
        let mut told = Told::default();
        loop {
            let found = stream.next(&*self.clock, PERIOD).await;
            self.take(found, &mut held, &mut told);
        }
    }

    /// Applies a new usable text. `held` is the text in force, `told` the problems logged.
    fn take(&self, found: Result<String, String>, held: &mut String, told: &mut Told) {
        self.take_text(found, held, told);
        let mut since = locked(&self.stale_since);
        let is_stale = !told.0.is_empty();
        *since = is_stale.then(|| since.unwrap_or_else(|| self.clock.monotonic()));
    }

    fn take_text(&self, found: Result<String, String>, held: &mut String, told: &mut Told) {
        let used = found.and_then(|text| {
            if text == *held {
                return Ok(false);
            }
            let parsed = (self.parse)(&text)?;
            *held = text;
            self.held.send_replace(Arc::new(parsed));
            Ok(true)
        });
        let (what, source) = (self.what, &self.source);
        match used {
            Ok(true) => {
                told.end();
                tracing::info!(%source, "{what} changed");
            }
            Ok(false) if told.end() => tracing::info!(%source, "{what}: as before"),
            Ok(false) => {}
            Err(why) if told.add(&why) => {
                tracing::error!(%source, why, "{what} can't be used: the last good ones hold");
            }
            Err(_) => {}
        }
    }
}

impl Stream {
    /// The next text, perhaps unchanged; files are read after `pause`.
    async fn next(&mut self, clock: &dyn Clock, pause: Duration) -> Result<String, String> {
        match self {
            Self::Files(paths) => {
                clock.sleep(pause).await;
                let mut text = read(paths).await?;
                loop {
                    clock.sleep(SETTLED).await;
                    let again = read(paths).await?;
                    if again == text {
                        return Ok(text);
                    }
                    text = again;
                }
            }
            Self::Etcd(etcd) => etcd.next().await,
        }
    }
}

async fn read(paths: &[PathBuf]) -> Result<String, String> {
    let paths = paths.to_vec();
    let read = blocking::run(move || {
        let mut text = String::new();
        for (number, path) in paths.iter().enumerate() {
            if number > 0 {
                text.push(BETWEEN);
            }
            text += &whole(path).map_err(|why| match paths.len() {
                1 => why,
                _ => format!("{}: {why}", path.display()),
            })?;
        }
        Ok(text)
    });
    read.await.map_err(|stopped| stopped.to_string())?
}

/// A whole file: a truncated text may have another meaning.
fn whole(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
    if read.map_err(|error| error.to_string())? as u64 > BYTES_MAX {
        return Err(format!("it is longer than {} MiB", BYTES_MAX >> 20));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests;
