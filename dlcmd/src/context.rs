//! What every command is given: the servers, where to say things, and how to be stopped.
//!
//! Must hold: the key is in no text and no debug output; nothing below reads the environment.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use dl_runtime::{Clock, Shutdown};
use libdiesel::{Client, ConnectOptions, Dataset};

use crate::address::Address;
use crate::exit::Failure;
use crate::output::Notes;

/// The flags of every command, before or after its name.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Servers to ask, in turn: HOST:PORT, separated by commas
    #[arg(
        long,
        global = true,
        value_name = "ADDR[,ADDR...]",
        env = "DIESEL_SERVER",
        default_value = "127.0.0.1:7420",
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new()
    )]
    server: Vec<String>,

    /// Who asks
    #[arg(long, global = true, value_name = "NAME", env = "DIESEL_USER", default_value = "")]
    user: String,

    /// File that holds the user's key (otherwise the environment variable DIESEL_KEY does)
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// Print results as JSON, one object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// No progress and no notes; errors are still printed
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
}

impl Global {
    /// How to reach the servers; `key` is what the environment gives.
    ///
    /// # Errors
    /// When the key file can't be read, or holds none.
    pub(crate) fn connect_options(&self, key: Option<String>) -> Result<ConnectOptions, Failure> {
        let key = match &self.key_file {
            Some(file) => {
                let reading = || format!("read the key from {}", file.display());
                let text =
                    fs::read_to_string(file).map_err(|why| Failure::local(reading(), why))?;
                let key = text.trim_end_matches(['\r', '\n']);
                if key.is_empty() {
                    return Err(Failure::failed(format!("{}: the file is empty", reading())));
                }
                Some(key.to_owned())
            }
            None => key,
        };
        Ok(ConnectOptions {
            user: self.user.clone(),
            key,
            servers: self.server.clone(),
            ..ConnectOptions::default()
        })
    }
}

/// What every command is given.
#[derive(Debug)]
pub(crate) struct Context {
    /// How to reach the servers.
    pub(crate) options: ConnectOptions,
    /// Notes and errors.
    pub(crate) notes: Arc<Notes>,
    /// Time.
    pub(crate) clock: Arc<dyn Clock>,
    /// Ctrl-C.
    pub(crate) shutdown: Shutdown,
}

impl Context {
    /// Connects to the servers.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        Ok(Client::connect(self.options.clone())?)
    }

    /// Connects, and opens the dataset of an address.
    pub(crate) fn dataset(&self, address: &Address) -> Result<Dataset, Failure> {
        Ok(self.client()?.dataset(&address.dataset)?)
    }
}
