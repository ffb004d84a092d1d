//! The usual scene of an end-to-end test: source files, and the data of a server.
//!
//! Must hold: every server of a scene has an HTTP port, and all files end with the scene.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::dice::Dice;
use crate::folder;
use crate::program::{Server, dl, run, server_command};

/// A temporary folder with the source files `src` and the server's folder `data`.
#[derive(Debug)]
pub struct Scene(TempDir);

impl Scene {
    /// A scene without files.
    ///
    /// # Errors
    /// As the file system fails.
    pub fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    /// A scene with `count` source files of up to `longest` bytes.
    ///
    /// # Errors
    /// As the file system fails.
    pub fn filled(count: usize, longest: usize) -> Result<Self> {
        let scene = Self::new()?;
        folder::fill(&scene.src(), count, longest, &Dice::new(1))?;
        Ok(scene)
    }

    /// A server with the single file `dl://ds/a`.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn with_a_file() -> Result<(Self, Server)> {
        let scene = Self::new()?;
        folder::write(&scene.src(), "a", "a file")?;
        let server = scene.start()?;
        server.put(scene.src(), "dl://ds")?;
        Ok((scene, server))
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The folder of the source files.
    pub fn src(&self) -> PathBuf {
        self.path("src")
    }

    /// The folder of the server.
    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// The objects of the chunk store, without names and identity.
    ///
    /// # Errors
    /// As the file system fails.
    pub fn objects(&self) -> Result<Vec<PathBuf>> {
        let mut objects = folder::paths(&self.path("data/chunks"))?;
        objects.retain(|path| path.extension().is_some_and(|ending| ending == "c"));
        Ok(objects)
    }

    /// The bytes in the chunk store.
    ///
    /// # Errors
    /// As the file system fails.
    pub fn stored(&self) -> Result<u64> {
        folder::bytes_under(&self.path("data/chunks"))
    }

    /// Removes the metadata of a stopped server.
    ///
    /// # Errors
    /// As the file system fails.
    pub fn lose_metadata(&self) -> Result<()> {
        Ok(fs::remove_dir_all(self.path("data/meta"))?)
    }

    /// Starts a server.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start(&self) -> Result<Server> {
        self.start_with(&[])
    }

    /// Starts a server with additional flags.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_with(&self, flags: &[&str]) -> Result<Server> {
        self.start_among(flags, &[])
    }

    /// Starts a server with additional flags and environment variables.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_among(&self, flags: &[&str], variables: &[(String, String)]) -> Result<Server> {
        let flags = [&["--http", "127.0.0.1:0"], flags].concat();
        Server::start_among(&self.data(), "127.0.0.1:0", &flags, variables)
    }

    /// Starts a server that must end with an exit code; returns its output.
    ///
    /// # Errors
    /// When the exit code differs.
    pub fn fails(&self, code: i32, flags: &[&str]) -> Result<String> {
        self.fails_among(code, flags, [("", ""); 0])
    }

    /// As [`fails`](Self::fails), with environment variables.
    ///
    /// # Errors
    /// When the exit code differs.
    pub fn fails_among(
        &self,
        code: i32,
        flags: &[&str],
        variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
    ) -> Result<String> {
        let mut server = server_command()?;
        server.env("DIESEL_LISTEN", "127.0.0.1:0").arg("--data").arg(self.data());
        let ended = run(server.envs(variables).args(flags))?.code(code);
        let ended = ended.with_context(|| format!("{flags:?}"))?;
        Ok(ended.text() + &ended.stderr)
    }
}

/// Checks that a server of [`Scene::with_a_file`] serves its file, and its peak memory.
///
/// # Errors
/// When the server does not answer, or took 256 MiB.
pub fn check_well(server: &Server) -> Result<()> {
    ensure!(dl(server, ["cat", "dl://ds/a"])?.code(0)?.text() == "a file", "cat");
    server.check_memory("server")
}
