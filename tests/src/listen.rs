//! Listeners of tests, each on a free port and on a thread of its own.
//!
//! Must hold: a listener ends when its handle is dropped, also within a test that is async.

use std::net::SocketAddr;
use std::thread::JoinHandle;

use anyhow::Result;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// A listener, and what serves its connections.
#[derive(Debug)]
pub(crate) struct Listening {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    /// Serves each connection in a task of its own.
    ///
    /// # Errors
    /// When there is no port or no thread.
    pub(crate) fn start<Served: Future<Output = ()> + Send + 'static>(
        serve: impl Fn(TcpStream) -> Served + Send + 'static,
    ) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let accept = async move {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                while let Ok((client, _)) = listener.accept().await {
                    dl_runtime::spawn(serve(client));
                }
            };
            runtime.block_on(async {
                tokio::select! {
                    () = accept => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It may have ended already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
