//! Configuration of `dlserver`: defaults, then the file, then `DIESEL_*` variables, then flags;
//! what comes later holds. Every number carries its unit.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use serde::Deserialize;

use crate::parts::Limits;

/// The DIESEL server: stores datasets of millions of small files and serves them to training jobs.
///
/// With no flags it keeps everything under ./diesel-data and listens on 127.0.0.1:7420.
#[derive(Debug, Clone, Default, Parser)]
#[command(name = "dlserver", version, max_term_width = 100)]
pub struct Flags {
    /// Read settings from this TOML file; flags and variables override it
    #[arg(long, value_name = "FILE", env = "DIESEL_CONFIG")]
    pub config: Option<PathBuf>,
    /// Answer gRPC here [default: 127.0.0.1:7420]; port 0 takes a free one
    #[arg(long, value_name = "ADDR", env = "DIESEL_LISTEN")]
    pub listen: Option<String>,
    /// Keep metadata in DIR/meta and chunks in DIR/chunks [default: ./diesel-data]
    #[arg(long, value_name = "DIR", env = "DIESEL_DATA")]
    pub data: Option<PathBuf>,
    /// Keep metadata here instead: embedded:DIR, redis://..., redis-cluster://... or memory:
    #[arg(long, value_name = "URL", env = "DIESEL_META")]
    pub meta: Option<String>,
    /// Keep chunks here instead: file:///DIR or memory:
    #[arg(long, value_name = "URL", env = "DIESEL_STORE")]
    pub store: Option<String>,
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
}

/// The file's keys: the flags with underscores.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    listen: Option<String>,
    data: Option<PathBuf>,
    meta: Option<String>,
    store: Option<String>,
    without_keys: Option<bool>,
    write_memory: Option<String>,
    read_memory: Option<String>,
    grace: Option<String>,
    log: Option<String>,
    log_json: Option<bool>,
}

/// What a server runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where to answer.
    pub listen: SocketAddr,
    /// Address of the metadata store.
    pub meta: String,
    /// Address of the chunk store.
    pub store: String,
    /// Bounds of memory and waiting.
    pub limits: Limits,
    /// How long requests in flight may take after SIGTERM.
    pub grace: Duration,
    /// What to log.
    pub log: String,
    /// Whether to log JSON.
    pub log_json: bool,
}

/// Settings that no server can run with.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("read configuration {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not what docs/CONFIGURATION.md says.
    #[error("understand configuration {path}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A value is not what its setting takes.
    #[error("{setting} can't be {value:?}: {problem}")]
    Value {
        /// The setting.
        setting: &'static str,
        /// What it was given.
        value: String,
        /// What it takes.
        problem: &'static str,
    },
    /// Everybody on the network could delete everything.
    #[error(
        "{0} can be reached from other machines and this server asks for no keys: \
         listen on 127.0.0.1, or say --without-keys if everybody there may read, write and delete"
    )]
    Open(SocketAddr),
}

impl Config {
    /// Puts defaults, file and flags together; variables are in the flags already.
    ///
    /// # Errors
    /// The first setting that can't be.
    pub fn load(flags: Flags) -> Result<Self, ConfigError> {
        let file = flags.config.as_deref().map_or(Ok(File::default()), read_file)?;
        let data = flags.data.or(file.data).unwrap_or_else(|| PathBuf::from("diesel-data"));
        let under = |name: &str| data.join(name).to_string_lossy().into_owned();
        let listen = flags.listen.or(file.listen).unwrap_or_else(|| "127.0.0.1:7420".to_owned());
        let listen = listen.parse::<SocketAddr>().map_err(|_| ConfigError::Value {
            setting: "listen",
            value: listen.clone(),
            problem: "give an address and a port, as in 127.0.0.1:7420",
        })?;
        let without_keys = flags.without_keys || file.without_keys.unwrap_or(false);
        if !listen.ip().is_loopback() && !without_keys {
            return Err(ConfigError::Open(listen));
        }
        let mut limits = Limits::default();
        if let Some(text) = flags.write_memory.or(file.write_memory) {
            limits.write_bytes = memory("write_memory", &text)?;
        }
        if let Some(text) = flags.read_memory.or(file.read_memory) {
            limits.read_bytes = memory("read_memory", &text)?;
        }
        let grace = flags.grace.or(file.grace);
        let grace = grace.map_or(Ok(Duration::from_secs(30)), |text| duration("grace", &text))?;
        let meta =
            flags.meta.or(file.meta).unwrap_or_else(|| format!("embedded:{}", under("meta")));
        let store = flags.store.or(file.store).unwrap_or_else(|| under("chunks"));
        address("meta", &meta, METAS, METAS_TEXT)?;
        address("store", &store, &["file", "memory"], "give a folder, file:///DIR or memory:")?;
        Ok(Self {
            listen,
            meta,
            store,
            limits,
            grace,
            log: flags.log.or(file.log).unwrap_or_else(|| "info".to_owned()),
            log_json: flags.log_json || file.log_json.unwrap_or(false),
        })
    }

    /// The folders that the stores lie in; none for those in memory.
    pub fn folders(&self) -> Vec<PathBuf> {
        let store = self.store.strip_prefix("file://").unwrap_or(&self.store);
        let store = (store != "memory:").then_some(store);
        let meta = self.meta.strip_prefix("embedded:");
        store.into_iter().chain(meta).map(PathBuf::from).collect()
    }
}

fn read_file(path: &Path) -> Result<File, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    toml::from_str(&text)
        .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })
}

const METAS: &[&str] =
    &["embedded", "memory", "redis", "rediss", "redis-cluster", "rediss-cluster"];
const METAS_TEXT: &str =
    "give embedded:DIR, redis://HOST:PORT/DB, redis-cluster://HOST:PORT,HOST:PORT,... or memory:";

/// Refuses what names a kind of store that there is not, before anything is opened or made.
fn address(
    setting: &'static str,
    url: &str,
    schemes: &[&str],
    problem: &'static str,
) -> Result<(), ConfigError> {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| {
        !scheme.is_empty()
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    });
    match scheme {
        Some(scheme) if schemes.contains(&scheme) => Ok(()),
        // A chunk store may be named by its folder alone.
        None if schemes.contains(&"file") && !url.is_empty() => Ok(()),
        _ => {
            // Of a store behind a login, its password doesn't belong into a text.
            let value = if setting == "meta" && url.contains('@') {
                dl_meta::without_login(url)
            } else {
                url.to_owned()
            };
            Err(ConfigError::Value { setting, value, problem })
        }
    }
}

/// Memory for chunks: the largest chunk must fit.
fn memory(setting: &'static str, text: &str) -> Result<u32, ConfigError> {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
    let bytes = units.iter().find_map(|(unit, shift)| {
        let number = text.strip_suffix(unit)?.trim().parse::<u64>().ok()?;
        u32::try_from(number.checked_shl(*shift)?).ok()
    });
    let smallest = dl_format::layout::CHUNK_SIZE_DEFAULT;
    bytes.filter(|bytes| *bytes >= smallest).ok_or_else(|| ConfigError::Value {
        setting,
        value: text.to_owned(),
        problem: "give a size from 4MiB to below 4GiB, with its unit, as in 64MiB",
    })
}

fn duration(setting: &'static str, text: &str) -> Result<Duration, ConfigError> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
    let millis = units.iter().find_map(|(unit, millis)| {
        text.strip_suffix(unit)?.trim().parse::<u64>().ok()?.checked_mul(*millis)
    });
    millis.map(Duration::from_millis).ok_or_else(|| ConfigError::Value {
        setting,
        value: text.to_owned(),
        problem: "give a time with its unit, as in 500ms, 30s, 5m or 1h",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(flags: &[&str]) -> Result<Config, ConfigError> {
        let flags = Flags::try_parse_from([&["dlserver"], flags].concat()).unwrap();
        Config::load(flags)
    }

    #[test]
    fn without_settings_everything_is_under_one_folder() {
        let config = load(&[]).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:7420");
        assert_eq!(config.meta, "embedded:diesel-data/meta");
        assert_eq!(config.store, "diesel-data/chunks");
        assert_eq!(config.folders(), ["diesel-data/chunks", "diesel-data/meta"].map(PathBuf::from));
        assert_eq!(config.limits, Limits::default());
    }

    #[test]
    fn flags_override_the_file_and_the_file_the_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dlserver.toml");
        std::fs::write(&path, "listen = \"127.0.0.1:1\"\ngrace = \"5m\"\nread_memory = \"1GiB\"\n")
            .unwrap();
        let config = load(&["--config", path.to_str().unwrap(), "--listen", "[::1]:2"]).unwrap();
        assert_eq!(config.listen.to_string(), "[::1]:2");
        assert_eq!(config.grace, Duration::from_secs(300));
        assert_eq!(config.limits.read_bytes, 1 << 30);
    }

    #[test]
    fn stores_in_memory_lie_in_no_folder() {
        let config = load(&["--meta", "memory:", "--store", "memory:"]).unwrap();
        assert!(config.folders().is_empty());
        let config = load(&["--meta", "embedded:/a", "--store", "file:///b"]).unwrap();
        assert_eq!(config.folders(), ["/b", "/a"].map(PathBuf::from));
    }

    #[test]
    fn an_open_address_must_be_asked_for_by_name() {
        let refused = load(&["--listen", "0.0.0.0:7420"]).unwrap_err().to_string();
        assert!(refused.contains("--without-keys"), "{refused}");
        assert!(load(&["--listen", "0.0.0.0:7420", "--without-keys"]).is_ok());
    }

    #[test]
    fn wrong_settings_say_what_they_take() {
        for (flags, told) in [
            (&["--listen", "localhost"][..], "127.0.0.1:7420"),
            (&["--write-memory", "64"], "64MiB"),
            (&["--write-memory", "1MiB"], "4MiB"),
            (&["--grace", "30"], "30s"),
            (&["--store", "s3://bucket/prefix"], "file:///DIR"),
            (&["--meta", "redsi://host:1/0"], "embedded:DIR"),
            (&["--meta", "memory"], "embedded:DIR"),
            (&["--config", "/does/not/exist"], "/does/not/exist"),
        ] {
            let error = load(flags).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dlserver.toml");
        std::fs::write(&path, "lisen = \"127.0.0.1:1\"\n").unwrap();
        let error = load(&["--config", path.to_str().unwrap()]).unwrap_err();
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert!(why.contains("lisen"), "{why}");
    }
}
