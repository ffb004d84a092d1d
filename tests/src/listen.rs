//! Listeners of tests, each on a free port with its own thread.
//!
//! Must hold: dropping the handle ends the listener, in asynchronous tests too.

use std::net::SocketAddr;
use std::thread::JoinHandle;

use anyhow::Result;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// A listener with the thread that serves its connections.
#[derive(Debug)]
pub(crate) struct Listening {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    /// Serves each connection in a separate task.
    ///
    /// # Errors
    /// When the port or the thread can't be had.
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

    /// The address of the listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The thread may have ended already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
