//! Access to a server: keys and roles, TLS, floods of connections, and the HTTP port.
//!
//! Must hold: no log and no text shows a key, and no client can lock out the others.

mod flood;
mod frames;
mod http;
mod keys;
mod large;
mod tls;
mod unseen;

use std::path::{Path, PathBuf};

use anyhow::Result;
use dl_tests::program::{dlcmd, run};

/// A users file with key files beside it.
struct UsersFile {
    path: PathBuf,
}

impl UsersFile {
    fn new(folder: &Path) -> Self {
        Self { path: folder.join("users") }
    }

    /// The server flags for this file.
    fn flags(&self) -> [&str; 2] {
        ["--users", self.path.to_str().unwrap_or_default()]
    }

    /// Adds a user and returns the key; the key file has the user's name.
    fn add(&self, name: &str, roles: &[&str]) -> Result<String> {
        let mut command = dlcmd()?;
        command.args(["user", "add", name, "--users"]).arg(&self.path);
        command.args(roles.iter().flat_map(|role| ["--role", role]));
        let key = run(&mut command)?.code(0)?.text();
        std::fs::write(self.key_file(name), &key)?;
        Ok(key.trim().to_owned())
    }

    fn key_file(&self, name: &str) -> PathBuf {
        self.path.with_file_name(format!("{name}.key"))
    }

    fn remove(&self, name: &str) -> Result<()> {
        run(dlcmd()?.args(["user", "remove", name, "--users"]).arg(&self.path))?.code(0)?;
        Ok(())
    }
}
