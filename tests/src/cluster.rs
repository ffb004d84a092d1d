//! Servers inside this process, over stores that the test holds.
//!
//! Must hold: any number of servers run over the same stores; each has a free port of its own.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use anyhow::{Context, Result};
use dl_meta::{Memory, MetaStore, Stop};
use dl_runtime::{Clock, OsRandom, Shutdown, SystemClock};
use dl_server::{
    DiskReserve, Doors, HttpPort, Limits, NameCache, ServerContext, Settings, prepare,
};
use dl_store::Store;
use libdiesel::{Client, ConnectOptions};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::wire::Wire;

/// A server in this process. Dropping the handle stops the server as a crash does.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    shutdown: Shutdown,
    task: JoinHandle<Result<(), dl_server::Error>>,
}

impl Running {
    /// Serves these parts on a free port of this machine. The caller has called
    /// [`dl_server::prepare`].
    ///
    /// # Errors
    /// When the machine has no free port.
    pub async fn start(context: ServerContext) -> Result<Self> {
        Self::behind(Doors::open(free().await?), context).await
    }

    /// Serves these parts for the first time, with a client.
    ///
    /// # Errors
    /// When the stores fail, or the machine has no free port.
    pub async fn fresh(context: ServerContext) -> Result<(Self, Wire)> {
        prepare(&context, Stop::Fresh).await?;
        let server = Self::start(context).await?;
        let client = Wire::connect(server.address()).await?;
        Ok((server, client))
    }

    /// Serves these parts on the caller's listeners.
    ///
    /// # Errors
    /// When a listener has no address.
    pub async fn behind(doors: Doors, context: ServerContext) -> Result<Self> {
        let address = doors.grpc.local_addr().context("ask for the port")?;
        let shutdown = Shutdown::new().with_grace(Duration::from_secs(10));
        let serving = Box::pin(dl_server::start(doors, context, shutdown.clone())).await?;
        let task = dl_runtime::spawn(serving);
        Ok(Self { address, shutdown, task })
    }

    /// The address of the gRPC listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Requests a shutdown and waits for its end.
    ///
    /// # Errors
    /// When the server failed.
    pub async fn stop(mut self) -> Result<()> {
        self.shutdown.request();
        (&mut self.task).await.context("wait for the server")??;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A listener on a free port.
async fn free() -> Result<TcpListener> {
    TcpListener::bind("127.0.0.1:0").await.context("listen on a free port")
}

/// Parts with default limits over these stores.
pub fn context(store: Arc<dyn Store>, meta: Arc<dyn MetaStore>) -> ServerContext {
    ServerContext {
        store,
        meta,
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(OsRandom),
        limits: Limits::default(),
        reserve: DiskReserve::default(),
        replaced: dl_server::Replaced::default(),
        settings: Settings::default(),
        names: NameCache::default(),
    }
}

/// Parts with empty stores in memory.
pub fn in_memory(limits: Limits) -> ServerContext {
    ServerContext { limits, ..context(dl_store::memory(), Arc::new(Memory::new())) }
}

/// The clock for waits on processes and networks.
pub fn clock() -> Arc<dyn Clock> {
    static CLOCK: LazyLock<Arc<SystemClock>> = LazyLock::new(Arc::default);
    Arc::<SystemClock>::clone(&CLOCK)
}

/// Several servers over the same stores, with threads for tests that block.
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<Running>,
    /// The HTTP addresses of the servers.
    http: Vec<SocketAddr>,
    runtime: Runtime,
}

impl Cluster {
    /// A cluster without servers.
    ///
    /// # Errors
    /// When the threads can't be started.
    pub fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("start the threads of the servers")?;
        Ok(Self { servers: Vec::new(), http: Vec::new(), runtime })
    }

    /// Runs `work` on the threads of the servers.
    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Starts `count` servers with the same parts.
    ///
    /// # Errors
    /// As [`Running::start`].
    pub fn start(&mut self, context: &ServerContext, count: usize) -> Result<()> {
        for _ in 0..count {
            let start = async {
                let http = HttpPort::open(free().await?, Arc::clone(&context.clock), None)?;
                let address = http.address();
                let doors = Doors { http: Some(http), ..Doors::open(free().await?) };
                anyhow::Ok((Running::behind(doors, context.clone()).await?, address))
            };
            let (server, http) = self.runtime.block_on(start)?;
            self.servers.push(server);
            self.http.push(http);
        }
        Ok(())
    }

    /// Stops all servers as a crash does.
    pub fn kill(&mut self) {
        self.servers.clear();
        self.http.clear();
    }

    /// The gRPC addresses of the servers.
    pub fn addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.address().to_string()).collect()
    }

    /// The HTTP addresses of the servers.
    pub fn http(&self) -> Vec<String> {
        self.http.iter().map(ToString::to_string).collect()
    }

    /// A client of all servers: each request goes to the next server.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn client(&self) -> Result<Client> {
        let options = ConnectOptions { servers: self.addresses(), ..ConnectOptions::default() };
        Ok(Client::connect(options)?)
    }

    /// A client with a request time-out of five seconds.
    ///
    /// # Errors
    /// When no server answers.
    pub fn client_with_short_timeout(&self) -> Result<Client> {
        let (servers, request_timeout) = (self.addresses(), Duration::from_secs(5));
        Ok(Client::connect(ConnectOptions { servers, request_timeout, ..Default::default() })?)
    }
}
