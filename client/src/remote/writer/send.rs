//! Sending of sealed objects in the background.
//!
//! Must hold: every try sends the same object, so a try with a lost answer is harmless. The id is
//! drawn right before sending, for servers refuse old ids. The ledger learns the result of every
//! object. If no server takes an object, no other object waits longer.

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

type Done = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// An object in flight. The drop reports the result and ends the flight.
pub(super) struct Sending {
    _in_flight: InFlight,
    done: Option<Done>,
    result: Result<(), Error>,
}

impl Sending {
    fn end(mut self, result: Result<(), Error>) {
        self.result = result;
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(std::mem::replace(&mut self.result, Ok(())));
        }
    }
}

impl Writer {
    /// Seals a chunk and sends it; forgets an empty chunk.
    pub(super) fn send_open(&self, open: Open) {
        let Open { token, chunk } = open;
        if chunk.is_empty() {
            return self.ledger.record(token, Ok((0, 0)));
        }
        let holds = (u64::from(chunk.count()), chunk.file_bytes());
        self.send_chunk(token, chunk, holds);
    }

    /// Seals a chunk and sends it; settles it with its numbers of files and bytes.
    pub(super) fn send_chunk(&self, token: Token, chunk: ChunkWriter, holds: (u64, u64)) {
        let in_flight = self.ledger.begin_sending();
        let id = self.session.process.next_id();
        let (buffer, start) = chunk.seal(id, self.dataset).into_parts();
        let object = self.buffers.lend(buffer, start);
        let ledger = Arc::clone(&self.ledger);
        let sent = Bytes::clone(&object);
        let done = move |result: Result<(), Error>| {
            let result = result.map(|()| holds);
            let failed = |error| FailedWrite { paths: paths_of(&sent), error };
            ledger.record(token, result.map_err(failed));
        };
        match in_flight {
            Ok(in_flight) => self.send(in_flight, id, object, done),
            Err(given_up) => done(Err(given_up)),
        }
    }

    /// Sends an object; `done` receives the result.
    pub(super) fn send(
        &self,
        in_flight: InFlight,
        id: ChunkId,
        object: Bytes,
        done: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) {
        let subject = format!("chunk {id} of dl://{}", self.name);
        let lost = Error::new(Kind::Internal, "write", &subject, "the sending task ended early");
        let sending =
            Sending { _in_flight: in_flight, done: Some(Box::new(done)), result: Err(lost) };
        let connections = Arc::clone(&self.session.connections);
        let dataset = self.dataset;
        let ledger = Arc::clone(&self.ledger);
        dl_runtime::spawn_on(self.session.process.runtime.handle(), async move {
            let result = tokio::select! {
                result = put_chunk(&connections, dataset, &subject, object) => {
                    if let Err(error) = &result
                        && error.kind().is_retryable()
                    {
                        // The object had the time of a request; no other object need wait too.
                        ledger.give_up(error);
                    }
                    result
                }
                given_up = ledger.given_up() => Err(given_up),
            };
            sending.end(result);
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

/// The files of an object sealed by this writer.
fn paths_of(object: &Bytes) -> Vec<FilePath> {
    let header = Header::decode(object);
    header.iter().flat_map(Header::entries).map(|entry| entry.path).collect()
}
