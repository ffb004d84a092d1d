//! Mounts of datasets for other programs (paper, Table 3: DL_mount, DL_umount).
//!
//! Must hold: a mount needs no thread of the calling process, and outlives the process. The key of the
//! user is in no argument.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dl_format::DirPath;

use crate::dataset::Dataset;
use crate::error::{Error, Kind};
use crate::task::TaskOptions;

/// Settings of a mount. All are optional.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// The folder of the dataset to show; by default the whole dataset.
    pub folder: Option<DirPath>,
    /// The program; by default as for the agent ([`TaskOptions::program`]).
    pub program: Option<PathBuf>,
    /// The file with the trusted certificates, for a handle with certificates: the servers of the mount
    /// read it at each start.
    pub ca: Option<PathBuf>,
    /// The files of the client's certificate and key, for a handle with a certificate.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Further arguments of `dlcmd mount`, such as `--memory`, `64GiB`, `-o`, `allow_other`.
    pub arguments: Vec<OsString>,
}

/// A dataset mounted at a folder. The mount stays when the value is dropped: see
/// [`unmount`](Self::unmount).
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    program: PathBuf,
    /// The folder of sockets, if not the usual folder.
    runtime: Option<PathBuf>,
}

impl Mount {
    /// Mounts the dataset of a handle at an empty folder (paper, DL_mount), with the handle's servers
    /// and user. With a task, the mount serves the version of the task out of its cache; otherwise the
    /// newest version, with a cache of its own. Returns when files can be read.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for a missing dataset or folder, [`Kind::Conflict`] for a folder that is not
    /// empty, [`Kind::Unreachable`] without servers, [`Kind::Invalid`] for unknown options and for
    /// certificates without files, otherwise [`Kind::Local`].
    pub fn new(dataset: &Dataset, dir: &Path, options: &MountOptions) -> Result<Self, Error> {
        let of = dataset.remote().options();
        let task = of.task.as_ref();
        let program = options.program.clone();
        let program = program.unwrap_or_else(|| TaskOptions::program_of(task));
        let runtime = task.and_then(|task| task.folder.clone());
        let mount = Self {
            dir: std::path::absolute(dir).map_err(|why| local(dir, why))?,
            program,
            runtime,
        };
        let mut command = mount.command();
        command.args(["--server", &of.servers.join(","), "--user", &of.user]);
        match &of.key {
            Some(key) => command.env("DIESEL_KEY", key),
            None => command.env_remove("DIESEL_KEY"),
        };
        match task {
            Some(task) => command.args(["--task", &task.name]),
            None => command.env_remove("DIESEL_TASK"),
        };
        command.args(of.plain_text_key.then_some("--plain-text-key"));
        let files = options.certificate.as_ref();
        let (certificate, key) = (files.map(|files| &files.0), files.map(|files| &files.1));
        for (flag, is_needed, file) in [
            ("--ca", of.ca.is_some(), options.ca.as_ref()),
            ("--client-cert", of.certificate.is_some(), certificate),
            ("--client-key", of.certificate.is_some(), key),
        ] {
            match file {
                Some(file) => _ = command.arg(flag).arg(file),
                None if is_needed => {
                    let why = format!("name the file for {flag} in the options of the mount");
                    return Err(Error::new(Kind::Invalid, "mount", dir.display(), why));
                }
                None => {}
            }
        }
        let folder = options.folder.as_ref().map(DirPath::as_bytes).unwrap_or_default();
        let slash = if folder.is_empty() { "" } else { "/" };
        let name = dataset.info().name.as_str();
        let address = [b"dl://", name.as_bytes(), slash.as_bytes(), folder].concat();
        command.arg("mount").arg(OsString::from_vec(address)).arg(&mount.dir);
        command.args(&options.arguments);
        mount.run(command)?;
        Ok(mount)
    }

    /// The mount at a folder, of whatever program.
    ///
    /// # Errors
    /// [`Kind::Local`] for an empty path.
    pub fn at(dir: &Path) -> Result<Self, Error> {
        let dir = std::path::absolute(dir).map_err(|why| local(dir, why))?;
        Ok(Self { dir, program: TaskOptions::program_of(None), runtime: None })
    }

    /// The folder of the mount, as an absolute path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The state of the mount as JSON: processes, and the numbers of reads (docs/JSON.md, `mount`).
    ///
    /// # Errors
    /// [`Kind::NotFound`] after the end of the mount, otherwise [`Kind::Local`].
    pub fn status(&self) -> Result<String, Error> {
        let mut command = self.command();
        command.args(["--json", "mounts"]).arg(&self.dir);
        self.run(command)
    }

    /// Shows the newest version of the dataset from now on. Open files stay at their version.
    ///
    /// # Errors
    /// [`Kind::Local`] if the mount stays at its version.
    pub fn refresh(&self) -> Result<(), Error> {
        let mut command = self.command();
        command.args(["mount", "--refresh"]).arg(&self.dir);
        self.run(command).map(|_| ())
    }

    /// Ends the mount (paper, DL_umount), and returns when nothing of it is left. With `is_lazy` the
    /// mount leaves its folder at once, and ends with its last user.
    ///
    /// # Errors
    /// [`Kind::Local`] for a mount in use; the text names the processes.
    pub fn unmount(&self, is_lazy: bool) -> Result<(), Error> {
        let mut command = self.command();
        command.arg("umount").args(is_lazy.then_some("--lazy")).arg(&self.dir);
        self.run(command).map(|_| ())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_remove("LD_PRELOAD").stdin(Stdio::null());
        if let Some(runtime) = &self.runtime {
            command.env("DIESEL_RUNTIME_DIR", runtime);
        }
        command
    }

    fn run(&self, mut command: Command) -> Result<String, Error> {
        let ended = command.output().map_err(|why| {
            let program = self.program.display();
            local(
                &self.dir,
                format!("{program}: {why}; name the program dlcmd in DIESEL_AGENT or PATH"),
            )
        })?;
        if ended.status.success() {
            return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
        }
        // The exit codes of dlcmd.
        let kind = match ended.status.code() {
            Some(2) => Kind::Invalid,
            Some(3) => Kind::NotFound,
            Some(4) => Kind::Conflict,
            Some(5) => Kind::Unreachable,
            _ => Kind::Local,
        };
        let said = String::from_utf8_lossy(&ended.stderr);
        let said = said.trim();
        let why = said.strip_prefix("dlcmd: ").unwrap_or(said).to_owned();
        Err(Error::new(kind, "mount", self.dir.display(), why))
    }
}

fn local(dir: &Path, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(Kind::Local, "mount", dir.display(), why)
}
