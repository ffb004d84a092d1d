//! Sending sealed objects in the background.
//!
//! Must hold: the same object is sent in every try, so that a try whose answer was lost is
//! harmless; its id is drawn when it may leave, as servers refuse old ones; whatever happens to a
//! try, the ledger hears of it. When no server takes one object, none waits for longer than it did.

use std::sync::Arc;

use bytes::Bytes;
use dl_format::{ChunkId, ChunkWriter, DatasetId, FilePath, Header};
use dl_proto::PutFrames;
use futures::stream;

use crate::error::{Error, Kind};
use crate::remote::connections::Connections;
use crate::remote::wire::ChunkBody;
use crate::remote::writer::ledger::{FailedWrite, InFlight};
use crate::remote::writer::{Open, Token, Writer};

type Landed = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// An object under way. When it is dropped, what became of it is told, and it is no longer.
pub(super) struct Flight {
    _under_way: InFlight,
    landed: Option<Landed>,
    became: Result<(), Error>,
}

impl Flight {
    fn end(mut self, became: Result<(), Error>) {
        self.became = became;
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(landed) = self.landed.take() {
            landed(std::mem::replace(&mut self.became, Ok(())));
        }
    }
}

impl Writer {
    /// Seals a chunk and sends it; one without files is forgotten.
    pub(super) fn send_open(&self, open: Open) {
        let Open { token, chunk } = open;
        if chunk.is_empty() {
            return self.ledger.settle(token, Ok((0, 0)));
        }
        let holds = (u64::from(chunk.count()), chunk.file_bytes());
        self.send_chunk(token, chunk, holds);
    }

    /// Seals a chunk and sends it; settles it with the files and bytes it holds.
    pub(super) fn send_chunk(&self, token: Token, chunk: ChunkWriter, holds: (u64, u64)) {
        let under_way = self.ledger.begin_sending();
        let id = self.session.process.next_id();
        let (buffer, start) = chunk.seal(id, self.dataset).into_parts();
        let object = self.buffers.lend(buffer, start);
        let ledger = Arc::clone(&self.ledger);
        let sent = Bytes::clone(&object);
        let landed = move |became: Result<(), Error>| {
            let became = became.map(|()| holds);
            let failed = |error| FailedWrite { paths: paths_of(&sent), error };
            ledger.settle(token, became.map_err(failed));
        };
        match under_way {
            Ok(under_way) => self.send(under_way, id, object, landed),
            Err(given_up) => landed(Err(given_up)),
        }
    }

    /// Sends an object; `landed` hears what became of it.
    pub(super) fn send(
        &self,
        under_way: InFlight,
        id: ChunkId,
        object: Bytes,
        landed: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) {
        let subject = format!("chunk {id} of dl://{}", self.name);
        let lost = Error::new(Kind::Internal, "write", &subject, "the task that sends it ended");
        let flight =
            Flight { _under_way: under_way, landed: Some(Box::new(landed)), became: Err(lost) };
        let connections = Arc::clone(&self.session.connections);
        let dataset = self.dataset;
        let ledger = Arc::clone(&self.ledger);
        dl_runtime::spawn_on(self.session.process.runtime.handle(), async move {
            let became = tokio::select! {
                became = put_chunk(&connections, dataset, &subject, object) => {
                    if let Err(error) = &became
                        && error.kind().is_retryable()
                    {
                        // It was tried for as long as a request may take; the others need not be.
                        ledger.give_up(error);
                    }
                    became
                }
                given_up = ledger.given_up() => Err(given_up),
            };
            flight.end(became);
        });
    }
}

async fn put_chunk(
    connections: &Connections,
    dataset: DatasetId,
    subject: &str,
    object: Bytes,
) -> Result<(), Error> {
    let body = ChunkBody(PutFrames::new(dataset, object));
    connections
        .call(
            "write",
            || subject.to_owned(),
            connections.usual(),
            |mut server, this| {
                let mut request = this.request(stream::empty());
                request.extensions_mut().insert(body.clone());
                async move {
                    this.answer(server.put_chunk(request)).await?;
                    Ok(())
                }
            },
        )
        .await
}

/// The files of a chunk that was sealed here.
fn paths_of(object: &Bytes) -> Vec<FilePath> {
    let header = Header::decode(object);
    header.iter().flat_map(Header::entries).map(|entry| entry.path).collect()
}
