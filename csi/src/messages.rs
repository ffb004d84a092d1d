//! The messages between driver, holder and server, which are the same program in three containers.
//!
//! Must hold: a key is in messages and in the memory of processes only.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use wincode::{SchemaRead, SchemaWrite};

/// The variable with the text of the CA certificates; `DIESEL_CA` has the path for it.
pub(crate) const CA_TEXT: &str = "DIESEL_CSI_CA";
pub(crate) const CA_PATH: &str = "DIESEL_CA";

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
        let partial = path.with_extension(std::process::id().to_string());
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
