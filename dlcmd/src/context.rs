//! The context of every command: the servers, the output for notes, and the stop signal.
//!
//! Must hold: the key is in no text and no debug output. No other module reads the environment,
//! except for the user's cache folder ([`SnapshotCache::of_user`]).

use std::env::{self, VarError};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use dl_runtime::{Clock, Shutdown};
use libdiesel::{
    Client, ClientCertificate, ConnectOptions, Counts, Dataset, Kind, SnapshotCache, TaskOptions,
    agent,
};

use crate::address::Address;
use crate::exit::Failure;
use crate::output::Notes;
use crate::text::{escaped, shown, sized};

/// Digits in the text of a key.
const KEY_DIGITS: usize = 64;

/// A longer file can't be a key.
const KEY_FILE_MAX: usize = 4_096;

/// A longer file can't be certificates.
const PEM_MAX: usize = 1 << 20;

/// The flags of every command, before or after its name.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Addresses of servers, tried in turn: HOST:PORT, or https://HOST:PORT for TLS, separated by
    /// commas (otherwise the environment variable DIESEL_SERVER; otherwise 127.0.0.1:7420)
    #[arg(
        long,
        global = true,
        value_name = "ADDR[,ADDR...]",
        value_delimiter = ',',
        value_parser = server
    )]
    pub(crate) server: Vec<String>,

    /// Name of the user (otherwise the environment variable DIESEL_USER)
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) user: Option<String>,

    /// File with the user's key (otherwise the environment variable DIESEL_KEY has the key)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,

    /// Trust the certificates in this file, PEM, for servers with https (otherwise the environment
    /// variable DIESEL_CA; otherwise the certificates of the machine)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,

    /// Certificate to show to servers on request, PEM (otherwise the environment variable
    /// DIESEL_CLIENT_CERT)
    #[arg(long, global = true, value_name = "FILE")]
    client_cert: Option<PathBuf>,

    /// The private key of the certificate, PEM (otherwise the environment variable
    /// DIESEL_CLIENT_KEY)
    #[arg(long, global = true, value_name = "FILE")]
    client_key: Option<PathBuf>,

    /// Send the user's key unencrypted to other machines
    #[arg(long, global = true)]
    plain_text_key: bool,

    /// The training job whose cache on this machine serves get, cat and shuffle --read, whose version
    /// ls, stat and du show, and the job of `dlcmd agent` and `why` (otherwise the environment variable
    /// DIESEL_TASK; otherwise files come from the servers)
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) task: Option<String>,

    /// Read metadata from this snapshot of the dataset (see `dlcmd snapshot save`) instead of the
    /// servers: for get, cat, ls, stat, du and shuffle
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,

    /// Print results as JSON, one object per line
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// No progress and no notes; errors are still printed
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
}

/// Settings from the environment, used without a flag. The argument parser does not read them,
/// because it would show the values in the usage of every command.
#[derive(Default)]
pub(crate) struct Environment {
    /// `DIESEL_SERVER`.
    pub(crate) servers: Option<String>,
    /// `DIESEL_USER`.
    pub(crate) user: Option<String>,
    /// `DIESEL_KEY`.
    pub(crate) key: Option<String>,
    /// `DIESEL_CA`.
    pub(crate) ca: Option<PathBuf>,
    /// `DIESEL_CLIENT_CERT`.
    pub(crate) client_cert: Option<PathBuf>,
    /// `DIESEL_CLIENT_KEY`.
    pub(crate) client_key: Option<PathBuf>,
}

impl Environment {
    /// The environment of this process.
    pub(crate) fn of_process() -> Result<Self, Failure> {
        let text = |name| match env::var(name) {
            Ok(text) => Ok(Some(text)),
            Err(VarError::NotPresent) => Ok(None),
            // Without the value, which may be a key.
            Err(VarError::NotUnicode(_)) => {
                Err(Failure::usage(format!("the environment variable {name} is not UTF-8")))
            }
        };
        let file = |name| env::var_os(name).filter(|file| !file.is_empty()).map(PathBuf::from);
        Ok(Self {
            servers: text("DIESEL_SERVER")?,
            user: text("DIESEL_USER")?,
            key: text("DIESEL_KEY")?,
            ca: file("DIESEL_CA"),
            client_cert: file("DIESEL_CLIENT_CERT"),
            client_key: file("DIESEL_CLIENT_KEY"),
        })
    }
}

impl Global {
    /// The named training job.
    pub(crate) fn task(&self) -> Result<Option<TaskOptions>, Failure> {
        let Some(name) = self.task.clone().or_else(|| env::var("DIESEL_TASK").ok()) else {
            return Ok(None);
        };
        let task = TaskOptions::named(&name);
        Ok(Some(task.ok_or_else(|| {
            let name = escaped(name.as_bytes());
            Failure::usage(format!(
                "--task {name}: a name has at most 128 of the characters A-Z a-z 0-9 . _ : -"
            ))
        })?))
    }

    /// The connection options.
    pub(crate) fn connect_options(
        &self,
        environment: Environment,
    ) -> Result<ConnectOptions, Failure> {
        let key = match &self.key_file {
            Some(file) => {
                let reading = || format!("read the key from {}", shown(file));
                let bytes = read_start(file, KEY_FILE_MAX).map_err(|why| match is_like_key(file) {
                    true => Failure::usage(
                        "--key-file names a file that holds the key, and there is none of that name",
                    ),
                    false => Failure::local(reading(), why),
                })?;
                if bytes.len() > KEY_FILE_MAX {
                    let why = format!("it is longer than {KEY_FILE_MAX} bytes: that is no key");
                    return Err(Failure::failed(format!("{}: {why}", reading())));
                }
                let text =
                    String::from_utf8(bytes).map_err(|why| Failure::local(reading(), why))?;
                let key = text.trim_end_matches(['\r', '\n']);
                if key.is_empty() {
                    return Err(Failure::failed(format!("{}: the file is empty", reading())));
                }
                Some(key.to_owned())
            }
            None => environment.key,
        };
        let defaults = ConnectOptions::default();
        let servers = match environment.servers {
            _ if !self.server.is_empty() => self.server.clone(),
            Some(servers) => servers
                .split(',')
                .map(server)
                .collect::<Result<_, _>>()
                .map_err(|why| Failure::usage(format!("DIESEL_SERVER: {why}")))?,
            None => defaults.servers.clone(),
        };
        let user = self.user.clone().or(environment.user).unwrap_or_default();
        let ca = read("the certificates to trust", self.ca.as_ref().or(environment.ca.as_ref()))?;
        let certificate = self.client_cert.as_ref().or(environment.client_cert.as_ref());
        let certificate_key = self.client_key.as_ref().or(environment.client_key.as_ref());
        let certificate =
            match (read("the certificate", certificate)?, read("its key", certificate_key)?) {
                (Some(certificate), Some(key)) => Some(ClientCertificate { certificate, key }),
                (None, None) => None,
                _ => {
                    return Err(Failure::usage(
                        "give both: --client-cert FILE and --client-key FILE",
                    ));
                }
            };
        let plain_text_key = self.plain_text_key;
        Ok(ConnectOptions { user, key, servers, ca, certificate, plain_text_key, ..defaults })
    }
}

/// A single address of a list: users type a space after a comma.
fn server(typed: &str) -> Result<String, &'static str> {
    match typed.trim() {
        "" => Err("an address is empty; write HOST:PORT, separated by commas"),
        address => Ok(address.to_owned()),
    }
}

/// Whether the user may have typed the key in place of its file: the error must not repeat it.
fn is_like_key(file: &Path) -> bool {
    let typed = file.as_os_str().as_encoded_bytes();
    typed.len() == KEY_DIGITS && typed.iter().all(u8::is_ascii_hexdigit) && !file.exists()
}

/// The contents of a file, cut off after `most` bytes and one more.
fn read_start(file: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The contents of an optional file.
fn read(what: &str, file: Option<&PathBuf>) -> Result<Option<Vec<u8>>, Failure> {
    file.map(|file| {
        let reading = || format!("read {what} from {}", shown(file));
        let bytes = read_start(file, PEM_MAX).map_err(|why| Failure::local(reading(), why))?;
        if bytes.len() > PEM_MAX {
            return Err(Failure::failed(format!("{}: it is longer than 1 MiB", reading())));
        }
        Ok(bytes)
    })
    .transpose()
}

/// The context of every command.
#[derive(Debug)]
pub(crate) struct Context {
    /// The connection options.
    pub(crate) options: ConnectOptions,
    /// The named training job.
    pub(crate) task: Option<TaskOptions>,
    /// Output of notes and errors.
    pub(crate) notes: Arc<Notes>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The request to stop by a signal.
    pub(crate) shutdown: Shutdown,
    /// The snapshot that replaces the servers.
    pub(crate) snapshot: Option<PathBuf>,
    /// The cache of the user's snapshots; none without a cache folder.
    pub(crate) cache: Option<SnapshotCache>,
}

impl Context {
    /// Connects to the servers.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        Ok(Client::connect(self.options.clone())?)
    }

    /// Connects and opens the dataset of an address, or opens the given snapshot.
    pub(crate) fn dataset(&self, address: &Address) -> Result<Dataset, Failure> {
        match &self.snapshot {
            None => Ok(self.client()?.dataset(&address.dataset)?),
            Some(file) => self.by_snapshot(address, file),
        }
    }

    /// Opens the dataset of an address with a snapshot: the given snapshot or else the newest.
    pub(crate) fn with_snapshot(&self, address: &Address) -> Result<Dataset, Failure> {
        let dataset = self.dataset(address)?;
        if dataset.snapshot().is_some() {
            return Ok(dataset);
        }
        let dataset = dataset.with_snapshot(self.cache.as_ref())?;
        if let Some(snapshot) = dataset.snapshot().filter(|snapshot| !snapshot.is_shared()) {
            let why = match &self.cache {
                Some(cache) => format!("the snapshot can't be kept in {}", shown(cache.folder())),
                None => "no folder keeps the snapshot, as neither HOME nor XDG_CACHE_HOME names \
                         an absolute path"
                    .to_owned(),
            };
            let size = sized(snapshot.length());
            self.notes.note(format_args!("{why}: this process holds it in memory, {size}"));
        }
        Ok(dataset)
    }

    fn by_snapshot(&self, address: &Address, file: &Path) -> Result<Dataset, Failure> {
        // The staleness check is subtracted, so the total time limit is the same as for other
        // commands.
        let connect_timeout = self.options.connect_timeout.saturating_sub(POLL_INTERVAL);
        let client =
            Client::unconnected(ConnectOptions { connect_timeout, ..self.options.clone() });
        let dataset = client.by_snapshot(&address.dataset, file, self.cache.as_ref());
        let dataset = dataset.map_err(|error| match error.kind() {
            Kind::Corrupt => {
                let why = format!("{:#}", anyhow::Error::new(error));
                Failure::failed(format!("{why}; save it again: dlcmd snapshot save"))
            }
            _ => error.into(),
        })?;
        self.check_stale(address, &dataset, &shown(file).to_string())?;
        Ok(dataset)
    }

    /// Opens the dataset of an address for its metadata: at the version of the task if an agent runs.
    pub(crate) fn for_metadata(&self, address: &Address) -> Result<Dataset, Failure> {
        let task = self.task.as_ref().filter(|_| self.snapshot.is_none());
        let Some(task) = task.filter(|task| agent::is_running(&self.options, task)) else {
            return self.dataset(address);
        };
        let options = ConnectOptions { task: Some(task.clone()), ..self.options.clone() };
        let dataset = Client::connect(options)?.dataset(&address.dataset)?;
        self.check_stale(address, &dataset, &format!("the version of task {}", task.name))?;
        Ok(dataset)
    }

    /// Notes that the snapshot of a dataset is stale, or that no server says so. `subject` is the
    /// source of the snapshot.
    fn check_stale(
        &self,
        address: &Address,
        dataset: &Dataset,
        subject: &str,
    ) -> Result<(), Failure> {
        let connect_timeout = self.options.connect_timeout.min(POLL_INTERVAL);
        let request_timeout = self.options.request_timeout.min(POLL_INTERVAL);
        let options = ConnectOptions {
            connect_timeout,
            request_timeout,
            on_retry: None,
            task: None,
            ..self.options.clone()
        };
        let now = Client::connect(options).and_then(|client| client.dataset(&address.dataset));
        let unknown = |why| format!("whether {subject} is stale is not known: {why}");
        let note = match now {
            Ok(now) if now.info().id != dataset.info().id => {
                return Err(Failure::failed(format!(
                    "{subject} is a snapshot of another dataset than dl://{}",
                    address.dataset
                )));
            }
            Ok(now) if matches!(now.info().counts, Counts::Unknown(_)) => {
                unknown("its metadata is being rebuilt")
            }
            Ok(now) if now.info().version != dataset.info().version => {
                format!("{subject} is stale: dl://{} has changed since then", address.dataset)
            }
            Ok(_) => return Ok(()),
            Err(error) if error.kind().is_retryable() => unknown("no server says"),
            Err(error) => return Err(error.into()),
        };
        self.notes.note(note);
        Ok(())
    }
}

/// Time limit of the staleness check of a snapshot.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
