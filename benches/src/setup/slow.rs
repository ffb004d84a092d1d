//! A server in the bench's process, over a store in memory with the speed of a real store.
//!
//! Must hold: all sides of a ratio use the same store in the same state.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use dl_meta::{Memory, Stop};
use dl_runtime::{Clock, OsRandom, Shutdown, SystemClock, locked};
use dl_server::{DiskReserve, Doors, Limits, NameCache, ServerContext};
use dl_store::{Store, Throttle, ThrottleStore};
use libdiesel::{Client, ConnectOptions};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// An async runtime of two threads.
pub(crate) fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().context("start threads")
}

/// A client of the server at an address.
pub(crate) fn connect(server: &str) -> Result<Client> {
    let servers = vec![server.to_owned()];
    Ok(Client::connect(ConnectOptions { servers, ..ConnectOptions::default() })?)
}

/// A server whose store is fast until [`Self::set_throttle`].
pub(crate) struct SlowServer {
    pub(crate) runtime: Runtime,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) address: String,
    throttle: Arc<Mutex<Throttle>>,
}

impl SlowServer {
    /// Starts the server at an address of the machine; its store answers at most `in_flight` calls at once.
    pub(crate) fn start(at: Ipv4Addr, in_flight: usize) -> Result<Self> {
        let runtime = runtime()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (store, throttle) = ThrottleStore::new(
            dl_store::memory(),
            Arc::clone(&clock),
            Throttle::default(),
            in_flight,
        );
        let store: Arc<dyn Store> = Arc::new(store);
        let context = ServerContext {
            store: Arc::clone(&store),
            meta: Arc::new(Memory::new()),
            clock,
            random: Arc::new(OsRandom),
            limits: Limits::default(),
            reserve: DiskReserve::default(),
            replaced: dl_server::Replaced::default(),
            settings: dl_server::Settings::default(),
            names: NameCache::default(),
        };
        let address = runtime.block_on(async {
            dl_server::prepare(&context, Stop::Fresh).await?;
            let listener = TcpListener::bind((at, 0)).await?;
            let address = listener.local_addr()?;
            let serving = dl_server::start(Doors::open(listener), context, Shutdown::new());
            dl_runtime::spawn(Box::pin(serving).await?);
            anyhow::Ok(address)
        })?;
        Ok(Self { runtime, store, address: address.to_string(), throttle })
    }

    /// Slows the store from now on.
    pub(crate) fn set_throttle(&self, throttle: Throttle) {
        *locked(&self.throttle) = throttle;
    }
}
