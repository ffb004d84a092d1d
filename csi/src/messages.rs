//! The messages between driver, holder and launcher, which may be of different versions: an upgrade
//! replaces the holder last.
//!
//! Must hold: a key is in messages and in the memory of processes only. The encodings never change; the
//! server of a mount is the same program as its holder.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use wincode::{SchemaRead, SchemaWrite};

/// The variable with the text of the CA certificates; `DIESEL_CA` has the path for it.
pub(crate) const CA_TEXT: &str = "DIESEL_CSI_CA";
pub(crate) const CA_PATH: &str = "DIESEL_CA";

/// The variable of the folder for snapshots.
pub(crate) const CACHE: &str = "XDG_CACHE_HOME";

/// Tells apart the files of threads.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// A command line and its variables.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub(crate) struct Order {
    pub(crate) arguments: Vec<Vec<u8>>,
    pub(crate) environment: BTreeMap<String, String>,
}

impl Order {
    /// Writes the CA certificates to the path at which the program will read them.
    pub(crate) fn place_ca(&self) -> io::Result<()> {
        let (text, path) = (self.environment.get(CA_TEXT), self.environment.get(CA_PATH));
        let (Some(text), Some(path)) = (text, path) else { return Ok(()) };
        let path = Path::new(path);
        if fs::read_to_string(path).is_ok_and(|there| there == *text) {
            return Ok(());
        }
        let partial = path.with_extension(format!(
            "{}-{}",
            std::process::id(),
            WRITTEN.fetch_add(1, Ordering::Relaxed)
        ));
        fs::write(&partial, text)?;
        fs::rename(partial, path)
    }
}

/// A message of the driver to the holder.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub(crate) enum ToHolder {
    /// Hold a mount, whose connection with the kernel comes along.
    Hold(Order),
    /// Say that you live.
    Greet,
}

/// An answer of the holder.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub(crate) enum FromHolder {
    /// Files can be read; or the holder lives.
    Ready,
    /// The mount failed: the exit code of `dlcmd mount`, and the reason.
    Failed { exit: u8, why: String },
}

/// A message to the launcher of servers.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub(crate) enum ToLauncher {
    /// Run a server, whose stdin comes along.
    Launch(Order),
    /// Say that you live.
    Greet,
}

/// An answer of the launcher.
#[derive(Debug, Clone, PartialEq, Eq, SchemaWrite, SchemaRead)]
pub(crate) enum FromLauncher {
    /// The launcher lives.
    Ready,
    /// The server ended with this code.
    Ended(i32),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other versions have these encodings.
    #[test]
    fn encodings_stay_as_they_are() {
        let order = Order {
            arguments: vec![b"mount".to_vec()],
            environment: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
        };
        let words = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let one = 1_u64.to_le_bytes().to_vec();
        let encoded = [one.clone(), words("mount"), one, words("A"), words("b")].concat();
        let with = |variant: u32, rest: &[u8]| [&variant.to_le_bytes()[..], rest].concat();
        let hold = wincode::serialize(&ToHolder::Hold(order.clone())).unwrap();
        assert_eq!(hold, with(0, &encoded));
        assert_eq!(wincode::serialize(&ToLauncher::Launch(order)).unwrap(), with(0, &encoded));
        assert_eq!(wincode::serialize(&ToHolder::Greet).unwrap(), with(1, &[]));
        assert_eq!(wincode::serialize(&ToLauncher::Greet).unwrap(), with(1, &[]));
        assert_eq!(wincode::serialize(&FromHolder::Ready).unwrap(), with(0, &[]));
        let failed = FromHolder::Failed { exit: 3, why: "x".to_owned() };
        let rest = [vec![3], words("x")].concat();
        assert_eq!(wincode::serialize(&failed).unwrap(), with(1, &rest));
        assert_eq!(wincode::serialize(&FromLauncher::Ready).unwrap(), with(0, &[]));
        let ended = wincode::serialize(&FromLauncher::Ended(1)).unwrap();
        assert_eq!(ended, with(1, &1_i32.to_le_bytes()));
    }
}
