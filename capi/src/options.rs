//! Options of a connection.
//!
//! Must hold: a missing value comes from the variable that dlcmd and the Python package read.
#![expect(unsafe_code, reason = "pointers of C")]

use std::ffi::{OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use libdiesel::{Access, ConnectOptions, DatasetName, DirPath, SnapshotCache, TaskOptions};

use crate::arguments::{check_flags, optional, structure, text};
use crate::failure::Failure;

/// Creates a missing dataset. The handle reads from the servers.
pub const DL_CREATE: u32 = 1;
/// Reads from the servers, without the cache of the node.
pub const DL_NO_TASK: u32 = 2;
/// Lets the key travel in plain text to other machines.
pub const DL_PLAIN_TEXT_KEY: u32 = 4;

/// Options of a connection. Set all to 0, then `size` to sizeof(DL_options). NULL and 0 stand for the
/// variable of the environment, else for the default.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DL_options {
    /// sizeof(DL_options).
    pub size: usize,
    /// Addresses, HOST:PORT or https://HOST:PORT, separated by commas: DIESEL_SERVER, else
    /// 127.0.0.1:7420.
    pub servers: *const c_char,
    /// The user: DIESEL_USER.
    pub user: *const c_char,
    /// The key of the user: DIESEL_KEY.
    pub key: *const c_char,
    /// The file with the key.
    pub key_file: *const c_char,
    /// The file with the trusted certificates (PEM): DIESEL_CA, else those of the machine.
    pub ca: *const c_char,
    /// The file with the certificate of the client (PEM): DIESEL_CLIENT_CERT.
    pub client_cert: *const c_char,
    /// The file with its private key (PEM): DIESEL_CLIENT_KEY.
    pub client_key: *const c_char,
    /// A snapshot file, of DL_save_meta or `dlcmd snapshot save`, to read its version.
    pub snapshot: *const c_char,
    /// The training job, whose processes share the cache of the node: DIESEL_TASK, else the variables
    /// of SLURM, torchrun or PMIx, else the session of the terminal.
    pub task: *const c_char,
    /// Time for a request in milliseconds: 60,000.
    pub timeout_ms: u32,
    /// DL_CREATE, DL_NO_TASK, DL_PLAIN_TEXT_KEY.
    pub flags: u32,
}

/// Options of a connection, understood.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) access: Access,
    pub(crate) snapshot: Option<PathBuf>,
    task: Option<String>,
    timeout: Option<Duration>,
    flags: u32,
}

impl Settings {
    /// The options of the caller; defaults for NULL.
    ///
    /// # Safety
    /// A pointer other than NULL points to options whose fields point to texts or are NULL.
    pub(crate) unsafe fn of(options: *const DL_options) -> Result<Self, Failure> {
        if options.is_null() {
            return Ok(Self::default());
        }
        // SAFETY: numbers and pointers.
        let given = unsafe { structure(options, "options") }?;
        check_flags(given.flags, DL_CREATE | DL_NO_TASK | DL_PLAIN_TEXT_KEY, "options.flags")?;
        // SAFETY: the fields point to texts or are NULL.
        let bytes = |field: *const c_char| unsafe { optional(field) };
        let file = |field| bytes(field).map(|path| PathBuf::from(OsStr::from_bytes(path)));
        let servers = words(bytes(given.servers), "options.servers")?.unwrap_or_default();
        let access = Access {
            servers: servers.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect(),
            user: words(bytes(given.user), "options.user")?.unwrap_or_default(),
            key: words(bytes(given.key), "options.key")?,
            key_file: file(given.key_file),
            ca: file(given.ca),
            client_cert: file(given.client_cert),
            client_key: file(given.client_key),
            plain_text_key: given.flags & DL_PLAIN_TEXT_KEY != 0,
        };
        if given.flags & DL_CREATE != 0 && !given.snapshot.is_null() {
            let text =
                "options.snapshot and DL_CREATE exclude each other: leave out one of the two";
            return Err(Failure::invalid(text));
        }
        Ok(Self {
            access,
            snapshot: file(given.snapshot),
            task: words(bytes(given.task), "options.task")?,
            timeout: (given.timeout_ms > 0).then(|| Duration::from_millis(given.timeout_ms.into())),
            flags: given.flags,
        })
    }

    /// Whether a missing dataset is created.
    pub(crate) fn creates(&self) -> bool {
        self.flags & DL_CREATE != 0
    }

    /// The options of a client, without a task.
    pub(crate) fn client(&self) -> Result<ConnectOptions, Failure> {
        let options = self.access.clone().completed().options()?;
        Ok(ConnectOptions {
            request_timeout: self.timeout.unwrap_or(options.request_timeout),
            snapshots: SnapshotCache::of_user(),
            on_retry: Some(libdiesel::log::of_retries()),
            ..options
        })
    }

    /// The training job.
    pub(crate) fn task(&self) -> Result<Option<TaskOptions>, Failure> {
        if self.flags & DL_NO_TASK != 0 {
            return Ok(None);
        }
        let task = match self.task.as_deref() {
            None | Some("") => TaskOptions::of_process(),
            Some(name) => TaskOptions::named(name),
        };
        let wrong = || {
            let text = "options.task: a name has at most 128 of the characters A-Z a-z 0-9 . _ : -";
            Failure::invalid(text)
        };
        task.map(Some).ok_or_else(wrong)
    }
}

/// A text that is UTF-8.
fn words(text: Option<&[u8]>, name: &str) -> Result<Option<String>, Failure> {
    let wrong = |_| Failure::invalid(format!("{name} is no UTF-8"));
    text.map(|text| String::from_utf8(text.to_vec()).map_err(wrong)).transpose()
}

/// The dataset and the folder of an address, `dl://DATASET[/FOLDER]`.
///
/// # Safety
/// A pointer other than NULL points to a text.
pub(crate) unsafe fn address(
    address: *const c_char,
    name: &str,
) -> Result<(DatasetName, DirPath), Failure> {
    // SAFETY: as above.
    let bytes = unsafe { text(address, name) }?;
    let shown = String::from_utf8_lossy(bytes).into_owned();
    let wrong = |why: String| {
        Failure::invalid(format!("{shown:?} is no dataset: {why}; name it as dl://NAME"))
    };
    let rest = bytes.strip_prefix(b"dl://").unwrap_or(bytes);
    let mut parts = rest.splitn(2, |byte| *byte == b'/');
    let dataset = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let dataset = DatasetName::new(dataset).map_err(|why| wrong(why.to_string()))?;
    let folder = parts.next().unwrap_or_default();
    let folder = folder.strip_suffix(b"/").unwrap_or(folder);
    let folder = DirPath::new(folder.to_vec()).map_err(|why| wrong(why.to_string()))?;
    Ok((dataset, folder))
}
