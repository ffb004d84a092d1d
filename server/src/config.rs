//! Configuration of `dlserver`: defaults, the file, `DIESEL_*` variables and flags, of which the last wins.
//! Every number carries its unit.

use std::borrow::Cow;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use clap::error::ContextValue;
use dl_runtime::{masked, units};
use serde::Deserialize;

use crate::settings::Live;
use crate::shared::context::Limits;
use crate::source::Source;

/// Pause before the read-back of a create in a bucket, as two servers may create an object at once.
const READ_BACK_DELAY: Duration = Duration::from_millis(500);

/// The DIESEL server: stores datasets of millions of small files and serves them to training jobs.
///
/// With no flags it keeps everything under ./diesel-data and listens on 127.0.0.1:7420.
#[derive(Debug, Clone, Default, Parser, Deserialize)]
// The keys of the file are the flags with underscores.
#[serde(deny_unknown_fields, default)]
#[command(name = "dlserver", version, max_term_width = 100)]
// A value may hold a password, and must not appear in the help.
#[command(mut_args(|flag| flag.hide_env_values(true)))]
pub struct Flags {
    /// Read settings from this TOML file, or etcd://HOST:PORT/KEY; flags and variables override
    /// them, and what is in its table [live] counts as soon as it changes
    #[arg(long, value_name = "FILE", env = "DIESEL_CONFIG")]
    #[serde(skip)]
    pub config: Option<String>,
    /// Answer gRPC here: IP:PORT, localhost:PORT, or :PORT for all interfaces [default:
    /// 127.0.0.1:7420]; port 0 takes a free one
    #[arg(long, value_name = "ADDR", env = "DIESEL_LISTEN")]
    pub listen: Option<String>,
    /// Answer HTTP here, /healthz, /livez, /metrics and the status page [default: 127.0.0.1:7421]; `none` for nowhere
    #[arg(long, value_name = "ADDR", env = "DIESEL_HTTP")]
    pub http: Option<String>,
    /// Ask for keys: the users and their roles, as `dlcmd user` writes them; read when it changes
    #[arg(long, value_name = "FILE", env = "DIESEL_USERS")]
    pub users: Option<String>,
    /// Speak TLS, with this certificate and those that lead to its CA (PEM)
    #[arg(long, value_name = "FILE", env = "DIESEL_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", env = "DIESEL_TLS_KEY")]
    pub tls_key: Option<PathBuf>,
    /// Answer only clients that have a certificate of these CAs (PEM)
    #[arg(long, value_name = "FILE", env = "DIESEL_TLS_CLIENT_CA")]
    pub tls_client_ca: Option<PathBuf>,
    /// Keep metadata in DIR/meta and chunks in DIR/chunks [default: ./diesel-data]
    #[arg(long, value_name = "DIR", env = "DIESEL_DATA")]
    pub data: Option<PathBuf>,
    /// Keep metadata here instead: embedded:DIR, redis://..., redis-cluster://... or memory:
    #[arg(long, value_name = "URL", env = "DIESEL_META")]
    pub meta: Option<String>,
    /// Keep chunks here instead: file:///DIR, s3://BUCKET/PREFIX, gs://..., az://... or memory:
    #[arg(long, value_name = "URL", env = "DIESEL_STORE")]
    pub store: Option<String>,
    /// Keep what doesn't fit into memory here while a snapshot is built, or a large dataset purged or
    /// verified [default: DIR/scratch, or the machine's folder for such files where neither store is
    /// in DIR]
    #[arg(long, value_name = "DIR", env = "DIESEL_SCRATCH")]
    pub scratch: Option<PathBuf>,
    /// Keep copies of the chunks that are read here, as in file:///DIR on a local disk
    #[arg(long, value_name = "URL", env = "DIESEL_FAST_STORE")]
    pub fast_store: Option<String>,
    /// Most bytes of such copies, as in 64GiB [default: 64GiB]
    #[arg(long, value_name = "SIZE", env = "DIESEL_FAST_STORE_QUOTA")]
    pub fast_store_quota: Option<String>,
    /// Let everybody who reaches a non-loopback address read, write and delete
    #[arg(long, env = "DIESEL_WITHOUT_KEYS")]
    pub without_keys: bool,
    /// Most memory for chunks that are being received, as in 64MiB [default: 64MiB]
    #[arg(long, value_name = "SIZE", env = "DIESEL_WRITE_MEMORY")]
    pub write_memory: Option<String>,
    /// Most memory for files that are being read, as in 48MiB [default: 48MiB]
    #[arg(long, value_name = "SIZE", env = "DIESEL_READ_MEMORY")]
    pub read_memory: Option<String>,
    /// How long requests in flight may take after SIGTERM, as in 30s [default: 30s]
    #[arg(long, value_name = "TIME", env = "DIESEL_GRACE")]
    pub grace: Option<String>,
    /// What to log to stderr: error, warn, info, debug, trace, or a filter [default: info]
    #[arg(long, value_name = "LEVEL", env = "DIESEL_LOG")]
    pub log: Option<String>,
    /// Log JSON, one object a line
    #[arg(long, env = "DIESEL_LOG_JSON")]
    pub log_json: bool,
    /// End when the standard input ends: with the program that started the server
    #[arg(long, env = "DIESEL_UNTIL_EOF")]
    pub until_eof: bool,
    #[arg(skip)]
    live: LiveTable,
}

/// The error about flags, without logins in flags or variables.
pub fn without_logins(mut error: clap::Error) -> clap::Error {
    let shown = error.context().filter_map(|(kind, value)| match value {
        ContextValue::String(text) => Some((kind, masked(text).into_owned())),
        _ => None,
    });
    for (kind, text) in shown.collect::<Vec<_>>() {
        error.insert(kind, ContextValue::String(text));
    }
    error
}

/// The keys of the table `[live]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LiveTable {
    read_only: bool,
    keep: Vec<String>,
    write_memory: Option<String>,
    read_memory: Option<String>,
}

/// The settings of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Address for gRPC.
    pub listen: SocketAddr,
    /// Address for HTTP, if any.
    pub http: Option<Http>,
    /// Source of the users; without it no caller needs a key.
    pub users: Option<Source>,
    /// Whether an admin opened a server without users to the network.
    pub without_keys: bool,
    /// The files for TLS.
    pub tls: Option<Tls>,
    /// Address of the metadata store.
    pub meta: String,
    /// Address of the chunk store.
    pub store: String,
    /// Folder for data too large for memory.
    pub scratch: PathBuf,
    /// Store for copies of chunks, if any.
    pub fast_store: Option<FastStore>,
    /// Bounds of memory and waiting.
    pub limits: Limits,
    /// Time for requests in flight after SIGTERM.
    pub grace: Duration,
    /// Level or filter of the log.
    pub log: String,
    /// Whether to log JSON.
    pub log_json: bool,
    /// Whether the server ends with its standard input.
    pub until_eof: bool,
}

/// The HTTP port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http {
    /// Its address.
    pub address: SocketAddr,
    /// Whether the address was configured; the default address may be taken by another program.
    pub is_asked: bool,
}

/// Files with certificates and keys, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate, and the chain to its CA.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The CAs of clients; without them clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// A store in front of the chunk store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FastStore {
    /// Its address.
    pub url: String,
    /// Most bytes of copies in the store.
    pub quota: u64,
}

/// Unusable settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text violates docs/CONFIGURATION.md.
    #[error("understand the configuration: line {line}, column {column}: {problem}")]
    Parse {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The problem; never the value, which may be a password.
        problem: String,
    },
    /// A value is invalid for its setting.
    #[error("{setting} can't be {value:?}: {problem}")]
    Value {
        /// The setting.
        setting: &'static str,
        /// The given value, without a login.
        value: String,
        /// The expected values.
        problem: Cow<'static, str>,
    },
    /// Any machine on the network could delete everything.
    #[error(
        "{0} can be reached from other machines and this server asks for no keys: listen on \
         127.0.0.1, give --users FILE, or say --without-keys if everybody there may read, write \
         and delete"
    )]
    Open(SocketAddr),
}

impl Config {
    /// Merges defaults, the file and the flags, which include variables.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn load(flags: Flags, text: Option<&str>) -> Result<Self, ConfigError> {
        let file = text.map_or(Ok(Flags::default()), file)?;
        let data = flags.data.or(file.data).unwrap_or_else(|| PathBuf::from("diesel-data"));
        let Some(under_data) = data.to_str() else {
            let problem = "give a folder whose name is UTF-8";
            return Err(refused("data", data.display().to_string(), problem));
        };
        // A relative folder with a colon would read as an address.
        let here = if under_data.contains(':') && data.is_relative() { "./" } else { "" };
        let under = |name: &str| format!("{here}{}", Path::new(under_data).join(name).display());
        let listen = flags.listen.or(file.listen).unwrap_or_else(|| "127.0.0.1:7420".to_owned());
        let problem = "give an IP address and a port, as in 127.0.0.1:7420; localhost:PORT; or :PORT for \
                       all interfaces";
        let listen = socket("listen", &listen, problem)?;
        let http = http(flags.http.or(file.http))?;
        let without_keys = flags.without_keys || file.without_keys;
        let users = users(flags.users.or(file.users), without_keys, listen)?;
        let tls = tls(
            flags.tls_cert.or(file.tls_cert),
            flags.tls_key.or(file.tls_key),
            flags.tls_client_ca.or(file.tls_client_ca),
        )?;
        let mut limits = Limits::default();
        if let Some(text) = flags.write_memory.or(file.write_memory) {
            limits.write_bytes = memory("write_memory", &text)?;
        }
        if let Some(text) = flags.read_memory.or(file.read_memory) {
            limits.read_bytes = memory("read_memory", &text)?;
        }
        let grace = flags.grace.or(file.grace);
        let grace = grace.map_or(Ok(Duration::from_secs(30)), |text| duration("grace", &text))?;
        let (meta, store) = (flags.meta.or(file.meta), flags.store.or(file.store));
        let scratch = flags.scratch.or(file.scratch);
        let scratch = scratch.unwrap_or_else(|| match (&meta, &store) {
            (Some(_), Some(_)) => std::env::temp_dir(),
            _ => data.join("scratch"),
        });
        let meta = meta.unwrap_or_else(|| format!("embedded:{}", under("meta")));
        let store = store.unwrap_or_else(|| under("chunks"));
        meta_store(&meta)?;
        if chunk_store("store", &store)?.is_none() && store != "memory:" {
            limits.read_back_delay = READ_BACK_DELAY;
        }
        let quota = flags.fast_store_quota.or(file.fast_store_quota);
        let fast_store = fast_store(flags.fast_store.or(file.fast_store), quota, &store)?;
        Ok(Self {
            listen,
            http,
            users,
            without_keys,
            tls,
            meta,
            store,
            scratch,
            fast_store,
            limits,
            grace,
            log: flags.log.or(file.log).unwrap_or_else(|| "info".to_owned()),
            log_json: flags.log_json || file.log_json,
            until_eof: flags.until_eof || file.until_eof,
        })
    }

    /// The folders of the stores; none for stores in memory or in buckets.
    pub fn folders(&self) -> Vec<PathBuf> {
        let store = dl_store::check(&self.store).ok().flatten();
        let meta = self.meta.strip_prefix("embedded:").map(Path::new);
        store.into_iter().chain(meta).map(Path::to_path_buf).collect()
    }

    /// The folder of the fast store, if it is a folder.
    pub fn fast_folder(&self) -> Option<&Path> {
        dl_store::check(&self.fast_store.as_ref()?.url).ok().flatten()
    }
}

fn refused(
    setting: &'static str,
    value: impl Into<String>,
    problem: impl Into<Cow<'static, str>>,
) -> ConfigError {
    let value = masked(&value.into()).into_owned();
    ConfigError::Value { setting, value, problem: problem.into() }
}

/// An address to listen on; `localhost` is the loopback address, and `:PORT` means all IPv4 interfaces.
fn socket(
    setting: &'static str,
    text: &str,
    problem: &'static str,
) -> Result<SocketAddr, ConfigError> {
    let ip: Option<(Ipv4Addr, &str)> = match text.split_once(':') {
        Some(("", port)) => Some((Ipv4Addr::UNSPECIFIED, port)),
        Some((host, port)) if host.eq_ignore_ascii_case("localhost") => {
            Some((Ipv4Addr::LOCALHOST, port))
        }
        _ => None,
    };
    let address = match ip {
        Some((ip, port)) => port.parse().ok().map(|port: u16| SocketAddr::from((ip, port))),
        None => text.parse().ok(),
    };
    address.ok_or_else(|| refused(setting, text, problem))
}

fn http(given: Option<String>) -> Result<Option<Http>, ConfigError> {
    let text = given.as_deref().unwrap_or("127.0.0.1:7421");
    if text == "none" {
        return Ok(None);
    }
    let problem = "give an IP address and a port, as in 127.0.0.1:7421; localhost:PORT; :PORT for all \
                   interfaces; or none";
    let address = socket("http", text, problem)?;
    Ok(Some(Http { address, is_asked: given.is_some() }))
}

fn tls(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
) -> Result<Option<Tls>, ConfigError> {
    let missing = |setting, given: &Path, problem| {
        Err(refused(setting, given.display().to_string(), problem))
    };
    match (certificate, key, client_ca) {
        (Some(certificate), Some(key), client_ca) => Ok(Some(Tls { certificate, key, client_ca })),
        (Some(given), None, _) => missing("tls_cert", &given, "tls_key has to be given, too"),
        (None, Some(given), _) => missing("tls_key", &given, "tls_cert has to be given, too"),
        (None, None, Some(given)) => {
            missing("tls_client_ca", &given, "tls_cert and tls_key have to be given, too")
        }
        (None, None, None) => Ok(None),
    }
}

/// The source named by a setting.
///
/// # Errors
/// An address of etcd without a host or a key.
pub fn source(setting: &'static str, text: &str) -> Result<Source, ConfigError> {
    Source::parse(text).map_err(|problem| refused(setting, dl_meta::without_login(text), problem))
}

/// The table `[live]` of a configuration.
///
/// # Errors
/// The first problem anywhere in the configuration.
pub fn live(text: &str) -> Result<Live, ConfigError> {
    let LiveTable { read_only, keep, write_memory, read_memory } = file(text)?.live;
    let pattern = |text: String| {
        let problem = "give names of datasets, with * for any characters";
        text.parse().map_err(|_| refused("live.keep", text, problem))
    };
    let bound = |setting, text: Option<String>| text.map(|text| memory(setting, &text)).transpose();
    Ok(Live {
        read_only,
        keep: keep.into_iter().map(pattern).collect::<Result<_, _>>()?,
        write_bytes: bound("live.write_memory", write_memory)?,
        read_bytes: bound("live.read_memory", read_memory)?,
    })
}

fn file(text: &str) -> Result<Flags, ConfigError> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let start = error.span().map_or(0, |span| span.start);
        let before = text.get(..start).unwrap_or(text);
        let last = before.rsplit('\n').next().unwrap_or_default();
        ConfigError::Parse {
            line: before.matches('\n').count() + 1,
            column: last.chars().count() + 1,
            problem: without_value(error.message()),
        }
    })
}

/// The problem without the value, with which serde's messages begin.
fn without_value(message: &str) -> String {
    let has_value = ["invalid type: ", "invalid value: "].iter().any(|of| message.starts_with(of));
    match message.rsplit_once(", expected ") {
        Some((_, wanted)) if has_value => format!("expected {wanted}"),
        _ => masked(message).into_owned(),
    }
}

/// Checks a metadata address before anything is opened or made.
fn meta_store(url: &str) -> Result<(), ConfigError> {
    dl_meta::check(url).map_err(|problem| {
        // An address with a login must not show its password.
        let has_login = url.contains('@') || dl_meta::Redis::check(url).is_some();
        let value = if has_login { dl_meta::without_login(url) } else { url.to_owned() };
        refused("meta", value, problem)
    })
}

/// Checks a chunk store's address before anything is opened or made; gives its folder, if any.
fn chunk_store<'a>(setting: &'static str, url: &'a str) -> Result<Option<&'a Path>, ConfigError> {
    dl_store::check(url).map_err(|problem| refused(setting, url, problem))
}

/// The source of the users. Without users, public addresses need `without_keys`.
fn users(
    text: Option<String>,
    without_keys: bool,
    listen: SocketAddr,
) -> Result<Option<Source>, ConfigError> {
    let users = text.map(|text| source("users", &text)).transpose()?;
    if users.is_some() && without_keys {
        let problem = "users with keys are given as well: give one of the two";
        return Err(refused("without_keys", without_keys.to_string(), problem));
    }
    if !listen.ip().is_loopback() && !without_keys && users.is_none() {
        return Err(ConfigError::Open(listen));
    }
    Ok(users)
}

fn fast_store(
    url: Option<String>,
    quota: Option<String>,
    store: &str,
) -> Result<Option<FastStore>, ConfigError> {
    let quota = quota.map_or(Ok(64 << 30), |text| bytes("fast_store_quota", &text))?;
    let Some(url) = url else { return Ok(None) };
    chunk_store("fast_store", &url)?;
    let (fast, slow) = (place_of(&url), place_of(store));
    // Neither store may lie among the other's objects.
    if fast.starts_with(&slow) || slow.starts_with(fast.join(dl_store::COPIES)) {
        let problem = "give another place than that of the chunk store itself";
        return Err(refused("fast_store", url, problem));
    }
    Ok(Some(FastStore { url, quota }))
}

/// A store's location in a single spelling: absolute, with existing links resolved.
fn place_of(url: &str) -> PathBuf {
    let Ok(Some(folder)) = dl_store::check(url) else { return PathBuf::from(url) };
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    let there = folder.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, real)) = there else { return folder };
    folder.strip_prefix(above).map_or(real.clone(), |rest| real.join(rest))
}

/// Memory for chunks: the largest chunk must fit.
fn memory(setting: &'static str, text: &str) -> Result<u32, ConfigError> {
    let bytes = size(text).and_then(|bytes| u32::try_from(bytes).ok());
    let smallest = dl_format::layout::CHUNK_SIZE_DEFAULT;
    let problem = "give a size from 4MiB to below 4GiB, with its unit, as in 64MiB";
    bytes.filter(|bytes| *bytes >= smallest).ok_or_else(|| refused(setting, text, problem))
}

fn bytes(setting: &'static str, text: &str) -> Result<u64, ConfigError> {
    let problem = "give a size with its unit, as in 64GiB or 2TiB";
    size(text).ok_or_else(|| refused(setting, text, problem))
}

/// Bytes, with their unit.
fn size(text: &str) -> Option<u64> {
    units::size(text).filter(|_| text.ends_with('B'))
}

fn duration(setting: &'static str, text: &str) -> Result<Duration, ConfigError> {
    let problem = "give a time with its unit, as in 500ms, 30s, 5m or 1h";
    units::duration(text).ok_or_else(|| refused(setting, text, problem))
}

#[cfg(test)]
mod tests;
