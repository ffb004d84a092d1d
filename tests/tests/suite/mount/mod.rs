//! The mount: real programs read a dataset as a folder, despite killed processes and absent servers.

mod absent;
mod changes;
mod commands;
mod follow;
mod kills;
mod library;
mod memory;
mod model;
mod programs;
mod single;
mod tree;
mod users;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use dl_tests::program::{Server, program, run};
use libdiesel::{Attributes, ChunkShape, Client, ConnectOptions, DatasetName, FilePath};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A dataset on a server, and a folder for a mount.
struct Scene {
    folder: tempfile::TempDir,
    server: Option<Server>,
    address: String,
}

/// The reason why this machine can't mount; none where it can.
fn no_mount() -> Option<String> {
    let is_root = rustix::process::geteuid().is_root();
    let why = OpenOptions::new().read(true).write(true).open("/dev/fuse").err();
    let why = why.map(|why| format!("/dev/fuse: {why}"));
    why.or_else(|| (!is_root).then(|| "only root mounts without fusermount3".to_owned()))
}

impl Scene {
    /// A server with the dataset `ds` of a local folder `src`, filled by `fill`.
    fn new(fill: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        Self::shaped(ChunkShape::default(), fill)
    }

    /// As [`Scene::new`], with chunks of a shape.
    fn shaped(shape: ChunkShape, fill: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        let scene = Self::empty()?;
        let source = scene.path("src");
        fs::create_dir(&source)?;
        fill(&source)?;
        scene.client()?.create_dataset(&DatasetName::new("ds")?, shape)?;
        run(scene.dlcmd()?.arg("put").arg(source).arg("dl://ds"))?.code(0)?;
        Ok(scene)
    }

    /// A server with the dataset `ds` of files with the same bytes, without a local folder.
    fn of_files(paths: impl Iterator<Item = String>, bytes: &[u8]) -> Result<Self> {
        let scene = Self::empty()?;
        let client = scene.client()?;
        let dataset = client.create_dataset(&DatasetName::new("ds")?, ChunkShape::default())?;
        for path in paths {
            dataset.put(&FilePath::new(path)?, Attributes { mode: 0o644, mtime: 1 }, bytes)?;
        }
        dataset.close()?;
        Ok(scene)
    }

    /// A server without a dataset.
    fn empty() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let server = Server::start(&folder.path().join("data"))?;
        let address = server.address().to_owned();
        for (name, mode) in [("run", 0o700), ("mnt", 0o755)] {
            fs::create_dir(folder.path().join(name))?;
            fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(mode))?;
        }
        Ok(Self { folder, server: Some(server), address })
    }

    fn client(&self) -> Result<Client> {
        let servers = vec![self.address.clone()];
        Ok(Client::connect(ConnectOptions { servers, ..ConnectOptions::default() })?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder of the mount.
    fn mnt(&self) -> PathBuf {
        self.path("mnt")
    }

    fn dlcmd(&self) -> Result<Command> {
        let mut command = dl_tests::program::dlcmd()?;
        command.args(["--server", &self.address]).env("DIESEL_AGENT_MEMORY", "256MiB");
        command.env("DIESEL_RUNTIME_DIR", self.path("run"));
        command.env("XDG_CACHE_HOME", self.path("cache"));
        Ok(command)
    }

    /// Mounts a dataset or folder; the task is always the same.
    fn mount(&self, address: &str, more: &[&str]) -> Result<()> {
        let mut command = self.dlcmd()?;
        command.args(["--task", "job", "mount", address]).arg(self.mnt()).args(more);
        run(&mut command)?.code(0)?;
        Ok(())
    }

    fn umount(&self) -> Result<()> {
        run(self.dlcmd()?.arg("umount").arg(self.mnt()))?.code(0)?;
        Ok(())
    }

    /// The only mount, as `dlcmd mounts --json` shows it.
    fn status(&self) -> Result<Value> {
        let shown = run(self.dlcmd()?.args(["--json", "mounts"]).arg(self.mnt()))?.code(0)?;
        Ok(serde_json::from_str(shown.text().trim())?)
    }

    /// A process of the mount: `server` or `holder`; none while there is none.
    fn process(&self, name: &str) -> Result<Option<Pid>> {
        let Some(pid) = self.status()?[name].as_i64() else { return Ok(None) };
        Ok(Pid::from_raw(i32::try_from(pid)?))
    }

    fn kill(&self, name: &str) -> Result<()> {
        let process = self.process(name)?.with_context(|| format!("a {name} runs"))?;
        Ok(kill_process(process, Signal::KILL)?)
    }

    /// The status of the agent.
    fn agent_status(&self) -> Result<Value> {
        let mut command = self.dlcmd()?;
        let status = run(command.args(["--json", "--task", "job", "agent", "status"]))?.code(0)?;
        Ok(serde_json::from_str(status.text().trim())?)
    }

    fn agent(&self) -> Result<Pid> {
        let pid = self.agent_status()?["pid"].as_i64().context("a process id")?;
        Pid::from_raw(i32::try_from(pid)?).context("a process has an id")
    }

    /// Runs a script in a mount namespace of its own, with the settings of `dlcmd` for the scene.
    fn in_namespace(&self, script: &str) -> Result<String> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", script]);
        command.env("dlcmd", program("dlcmd")?).env("mnt", self.mnt());
        command.env("DIESEL_SERVER", &self.address).env("DIESEL_RUNTIME_DIR", self.path("run"));
        command.env("XDG_CACHE_HOME", self.path("cache")).env("folder", self.folder.path());
        Ok(run(&mut command)?.code(0)?.text())
    }

    fn kill_server(&mut self) -> Result<()> {
        self.server.take().context("a server runs")?.kill()?;
        Ok(())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // A test that failed may have left its mount, and any test its agent.
        if let Ok(mut umount) = self.dlcmd() {
            let _ = run(umount.args(["umount", "--lazy"]).arg(self.mnt()));
        }
        if let Ok(agent) = self.agent() {
            let _ = kill_process(agent, Signal::KILL);
        }
    }
}

/// Opens a file whose reads pass the page cache, so that each asks the server.
fn open_direct(path: &Path) -> io::Result<File> {
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(direct).open(path)
}

/// The bytes of a file, past the page cache.
fn read_direct(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_direct(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A folder of files with lengths from nothing to several chunks, odd names and depths.
fn fill_mixed(root: &Path) -> Result<()> {
    let dice = dl_tests::dice::Dice::new(7);
    dl_tests::folder::fill(root, 600, 30_000, &dice)?;
    dl_tests::folder::write(root, "empty", b"")?;
    dl_tests::folder::write(root, "sub/deep/er/file with blanks\n", b"text")?;
    dl_tests::folder::write(root, b"sub/\xFF\x01".as_slice(), b"bytes")?;
    // Two pieces and a bit.
    dl_tests::folder::write(root, "large", dice.bytes(9 << 20))?;
    Ok(())
}
