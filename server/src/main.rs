//! `dlserver`: reads its configuration, opens its stores, serves until SIGTERM or the end of its input.
//!
//! Must hold: a server that can't listen changes no store. No server answers over gRPC before its stores are
//! open and belong together.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use dl_meta::{MetaStore, Redis, Stop};
use dl_runtime::{Clock, Deadline, OsRandom, Shutdown, SystemClock, telemetry};
use dl_server::config::{self, Config, FastStore, Flags, Http};
use dl_server::{
    Certificate, DiskReserve, Doors, Followed, HttpPort, Live, NameCache, People, Replaced,
    ServerContext, Settings, dataset_of, prepare, start,
};
use dl_store::{DeferredStore, Served, Servers, Store, TierStore};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// Limit for closing the metadata.
const CLOSING: Duration = Duration::from_secs(30);

/// Longest delay of the start by a fast store.
const FAST_STORE: Duration = Duration::from_secs(5);

/// Longest delay of the exit by a hanging file call.
const LAST_CALLS: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    dl_runtime::allocator::bound();
    raise_open_files();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return fail(&anyhow::Error::from(error).context("start"), ExitCode::FAILURE);
        }
    };
    let exit = serve(&runtime);
    // A plain drop would wait for hanging file calls without limit.
    runtime.shutdown_timeout(LAST_CALLS);
    exit
}

fn serve(runtime: &Runtime) -> ExitCode {
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        return fail(&anyhow::anyhow!("start TLS: it was started before"), ExitCode::FAILURE);
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let flags = Flags::try_parse().unwrap_or_else(|error| config::without_logins(error).exit());
    let (config, settings) = match runtime.block_on(configure(flags, &clock)) {
        Ok(configured) => configured,
        Err(error) => return fail(&error, ExitCode::from(2)),
    };
    if let Err(error) = telemetry::init(&config.log, config.log_json) {
        return fail(&error.into(), ExitCode::from(2));
    }
    let admitted = match runtime.block_on(admit(&config, &clock)) {
        Ok(admitted) => admitted,
        Err(error) => return fail(&error, ExitCode::from(2)),
    };
    match runtime.block_on(run(config, settings, admitted, clock)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, ExitCode::FAILURE),
    }
}

/// The followed settings, if the configuration has a source.
type Place = Option<Arc<Followed<Live>>>;

async fn configure(flags: Flags, clock: &Arc<dyn Clock>) -> anyhow::Result<(Config, Place)> {
    let Some(place) = &flags.config else { return Ok((Config::load(flags, None)?, None)) };
    let source = config::source("config", place)?;
    let live = |text: &str| match text.trim() {
        // The file may be about to be written. An empty text would end a read-only mode.
        "" => Err("it is empty; write a line of comment for no settings at all".to_owned()),
        _ => config::live(text).map_err(|error| whole(&error.into())),
    };
    let settings = Followed::open("the configuration", source, Arc::clone(clock), live).await?;
    let config = Config::load(flags, Some(&settings.text()))?;
    Ok((config, Some(Arc::new(settings))))
}

struct Admitted {
    tls: Option<Arc<Certificate>>,
    users: Option<Arc<Followed<People>>>,
}

async fn admit(config: &Config, clock: &Arc<dyn Clock>) -> anyhow::Result<Admitted> {
    let tls = match &config.tls {
        Some(files) => Some(Arc::new(dl_server::open_tls(files, Arc::clone(clock)).await?)),
        None => None,
    };
    let users = match &config.users {
        Some(source) => {
            let (source, clock) = (source.clone(), Arc::clone(clock));
            Some(Arc::new(Followed::open("the users", source, clock, People::parse).await?))
        }
        None => None,
    };
    if users.is_some() && tls.is_none() && !config.listen.ip().is_loopback() {
        tracing::warn!("keys come in plain text: give --tls-cert and --tls-key");
    }
    Ok(Admitted { tls, users })
}

async fn run(
    config: Config,
    settings: Place,
    admitted: Admitted,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<()> {
    let shutdown = Shutdown::new().with_grace(config.grace).on_signals()?;
    if config.until_eof {
        let shutdown = shutdown.clone();
        let watch = move || {
            // A broken input has ended too.
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            shutdown.request();
        };
        std::thread::Builder::new().name("stdin".to_owned()).spawn(watch)?;
    }
    // First, so that a server that can't listen changes no store.
    let mut doors = open_doors(&config, &clock, admitted.tls.as_ref()).await?;
    let http = doors.http.clone();
    let starting = |doing| http.iter().for_each(|http| http.starting(doing));
    (doors.tls, doors.users, doors.settings) = (admitted.tls, admitted.users, settings);
    doors.without_keys = config.without_keys;
    let opening = Box::pin(open_stores(&config, &clock, &starting));
    let opened = tokio::select! {
        opened = opening => opened?,
        // No work needs an end yet.
        () = shutdown.requested() => return Ok(()),
    };
    let (meta, last_stop, store) = (opened.meta, opened.last_stop, opened.store);
    // Held to the end, so that no server with other metadata comes between.
    let _served = opened.served;
    doors.fast_store = opened.fast_store;
    let following = doors.settings.clone().map(|settings| {
        // From now on, as a change may stop work of the preparation.
        dl_runtime::spawn(async move { settings.follow().await })
    });
    let context = ServerContext {
        store,
        meta: Arc::clone(&meta),
        clock: Arc::clone(&clock),
        random: Arc::new(OsRandom),
        limits: config.limits,
        reserve: DiskReserve::of(config.folders())
            .with_scratch(&config.scratch)
            .with_fast_store(config.fast_folder()),
        replaced: Replaced::default(),
        settings: Settings::of(doors.settings.as_deref()),
        names: NameCache::default(),
    };
    starting("comparing the metadata with the chunk store");
    let prepared = tokio::select! {
        prepared = prepare(&context, last_stop) => Some(prepared.map_err(anyhow::Error::from)),
        () = shutdown.requested() => None,
    };
    let ended = match prepared {
        Some(Ok(())) => answer(doors, &config, context, shutdown).await,
        // The next start repeats the unfinished check; a clean stop would prevent it.
        unprepared if last_stop == Stop::Unclean => return unprepared.unwrap_or(Ok(())),
        unprepared => unprepared.unwrap_or(Ok(())),
    };
    if let Some(following) = following {
        following.abort();
    }
    // Also after a failure, so that the next start has nothing to check.
    let closed = close(&*meta, &*clock).await;
    ended?;
    closed?;
    tracing::info!("stopped");
    Ok(())
}

async fn close(meta: &dyn MetaStore, clock: &dyn Clock) -> anyhow::Result<()> {
    let closed = Deadline::after(clock, CLOSING).bound(clock, meta.close()).await;
    closed.map_err(|_| anyhow::anyhow!("close {meta}: gave up after {CLOSING:?}"))??;
    Ok(())
}

struct Opened {
    store: Arc<dyn Store>,
    served: Served,
    fast_store: Option<Arc<TierStore>>,
    meta: Arc<dyn MetaStore>,
    last_stop: Stop,
}

async fn open_stores(
    config: &Config,
    clock: &Arc<dyn Clock>,
    starting: impl Fn(&'static str),
) -> anyhow::Result<Opened> {
    starting("opening the chunk store");
    let store = dl_store::open(&config.store).await?;
    // Redis serves all servers of a chunk store; other metadata belongs to a single process.
    let servers = Redis::check(&config.meta).map_or(Servers::One, |_| Servers::Several);
    let served = dl_store::serve(&config.store, servers).await?;
    if config.fast_store.is_some() {
        starting("opening the fast store");
    }
    let fast_store = open_fast_store(config, &store, clock).await;
    let store = fast_store.as_ref().map_or(store, |tier| Arc::<TierStore>::clone(tier));
    starting("opening the metadata store");
    let opened = dl_meta::open(&config.meta, Arc::clone(clock)).await;
    let (meta, last_stop) = opened.map_err(|error| match error.kind {
        dl_meta::Kind::Corrupt => anyhow::Error::new(error).context(
            "the metadata is damaged; move it away, start again, and run `dlcmd recover --all`",
        ),
        _ => error.into(),
    })?;
    Ok(Opened { store, served, fast_store, meta, last_stop })
}

async fn open_doors(
    config: &Config,
    clock: &Arc<dyn Clock>,
    tls: Option<&Arc<Certificate>>,
) -> anyhow::Result<Doors> {
    let listen = async |address: SocketAddr| {
        let listener = TcpListener::bind(address).await;
        listener.map_err(|why| {
            let advice = match why.kind() {
                ErrorKind::AddrInUse => "; is another server running?",
                ErrorKind::PermissionDenied => "; ports below 1024 may need a privilege",
                ErrorKind::AddrNotAvailable => "; it is no address of this machine",
                _ => "",
            };
            anyhow::Error::new(why).context(format!("listen on {address}{advice}"))
        })
    };
    let mut doors = Doors::open(listen(config.listen).await?);
    let http = match config.http {
        Some(Http { address, is_asked: true }) => Some(listen(address).await?),
        Some(Http { address, is_asked: false }) => match listen(address).await {
            Ok(listener) => Some(listener),
            // Several servers of a machine often differ only in --listen.
            Err(error) => {
                tracing::warn!(
                    "serving without /healthz, /livez and /metrics (--http ADDR): {error:#}"
                );
                None
            }
        },
        None => None,
    };
    let open =
        |listener| HttpPort::open(listener, Arc::clone(clock), tls.cloned()).context("listen");
    doors.http = http.map(open).transpose()?;
    // The stores get the other half.
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    doors.connections_max = doors.connections_max.min(files);
    Ok(doors)
}

async fn open_fast_store(
    config: &Config,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
) -> Option<Arc<TierStore>> {
    let FastStore { url, quota } = config.fast_store.as_ref()?;
    let fast = Arc::new(DeferredStore::new(url));
    let reached = Deadline::after(&**clock, FAST_STORE).bound(&**clock, fast.reach()).await;
    let reached = match reached {
        Ok(reached) => reached.map_err(anyhow::Error::new),
        // The opening goes on, and the tier waits for it without limit.
        Err(_) => Err(anyhow::anyhow!("open {fast}: no answer within {FAST_STORE:?}")),
    };
    if let Err(error) = reached {
        tracing::warn!("serving without the fast store until it can be opened: {error:#}");
    }
    let (store, clock) = (Arc::clone(store), Arc::clone(clock));
    Some(Arc::new(TierStore::with_groups(store, fast, *quota, clock, dataset_of)))
}

async fn answer(
    doors: Doors,
    config: &Config,
    context: ServerContext,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let address = doors.grpc.local_addr().context("listen")?;
    // A line for scripts that asked for a free port.
    let mut said = format!("listening on {address}\n");
    if let Some(http) = &doors.http {
        let http = http.address();
        tracing::info!(%http, "answering /healthz, /livez and /metrics, and the status page at /");
        if config.http.is_some_and(|http| http.is_asked) {
            said += &format!("http on {http}\n");
        }
    }
    tracing::info!(%address, store = %context.store, meta = %context.meta, "serving");
    let serving = Box::pin(Box::pin(start(doors, context, shutdown)).await?);
    // In a single write, as a script may close the pipe after the first line.
    std::io::stdout().write_all(said.as_bytes()).context("say where it listens")?;
    Ok(serving.await?)
}

/// Allows as many open files as the system permits, as each connection is a file.
fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // With the default, the server takes fewer connections.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn fail(error: &anyhow::Error, code: ExitCode) -> ExitCode {
    // Without stderr the error is lost.
    let _ = writeln!(std::io::stderr(), "dlserver: {}", whole(error));
    code
}

fn whole(error: &anyhow::Error) -> String {
    format!("{error:#}")
}
