//! `dlserver`: reads its configuration, opens its stores, serves until SIGTERM.

mod allocator;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use dl_meta::Stop;
use dl_runtime::{Clock, OsRandom, Shutdown, SystemClock, telemetry};
use dl_server::config::{Config, Flags};
use dl_server::{Parts, Room, prepare, serve};
use tokio::net::TcpListener;

fn main() -> ExitCode {
    allocator::bound();
    let flags = Flags::parse();
    let config = match Config::load(flags) {
        Ok(config) => config,
        Err(error) => return fail(&error.into(), ExitCode::from(2)),
    };
    if let Err(error) = telemetry::init(&config.log, config.log_json) {
        return fail(&error.into(), ExitCode::from(2));
    }
    let ended = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")
        .and_then(|runtime| runtime.block_on(run(config)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, ExitCode::FAILURE),
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    let shutdown = Shutdown::new().with_grace(config.grace).on_signals()?;
    // First of all: a server that can't listen leaves the stores as they are.
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("listen on {}; is another server running?", config.listen))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let store = dl_store::open(&config.store).await?;
    let opened = dl_meta::open(&config.meta, Arc::clone(&clock)).await;
    let (meta, last_stop) = opened.map_err(|error| match error.kind {
        dl_meta::Kind::Corrupt => anyhow::Error::new(error).context(
            "the metadata is damaged; move it away, start again, and run `dlcmd recover --all`",
        ),
        _ => error.into(),
    })?;
    let random = Arc::new(OsRandom);
    let (limits, room) = (config.limits, Room::of(config.folders()));
    let parts = Parts { store, meta: Arc::clone(&meta), clock, random, limits, room };
    let prepared = tokio::select! {
        prepared = prepare(&parts, last_stop) => Some(prepared.map_err(anyhow::Error::from)),
        () = shutdown.requested() => None,
    };
    let ended = match prepared {
        Some(Ok(())) => answer(listener, parts, shutdown).await,
        // What was not looked at is for the next start, which a clean stop would keep from it.
        unprepared if last_stop == Stop::Unclean => return unprepared.unwrap_or(Ok(())),
        unprepared => unprepared.unwrap_or(Ok(())),
    };
    // Also after a failure: the next start has nothing to look for then.
    meta.close().await?;
    ended?;
    tracing::info!("stopped");
    Ok(())
}

async fn answer(listener: TcpListener, parts: Parts, shutdown: Shutdown) -> anyhow::Result<()> {
    let address = listener.local_addr().context("listen")?;
    tracing::info!(%address, store = %parts.store, meta = %parts.meta, "serving");
    // One line for scripts that asked for any free port.
    writeln!(std::io::stdout(), "listening on {address}").context("say where it listens")?;
    serve(listener, parts, shutdown).await?;
    Ok(())
}

fn fail(error: &anyhow::Error, code: ExitCode) -> ExitCode {
    // Nobody to tell when stderr is gone.
    let _ = writeln!(std::io::stderr(), "dlserver: {error:#}");
    code
}
