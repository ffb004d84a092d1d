//! Who is let in: keys and roles, TLS, floods of connections, and what the HTTP port says.
//!
//! Must hold: no key is in any log or text, and nobody keeps the others out.

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

/// A users file, and the keys of those in it.
struct UsersFile {
    path: PathBuf,
}

impl UsersFile {
    fn new(folder: &Path) -> Self {
        Self { path: folder.join("users") }
    }

    /// The flags of a server that reads it.
    fn flags(&self) -> [&str; 2] {
        ["--users", self.path.to_str().unwrap_or_default()]
    }

    /// Adds a user; gives the key, which is in a file of the user's name, too.
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
