//! Ranges of chunks from the servers, for an epoch and for the node agent.
//!
//! Must hold: each byte of a range is delivered once, in order. After a break, a new request asks
//! only for the missing bytes. Bytes outside the requested ranges are refused. No checksum is
//! verified here.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dl_format::ChunkId;
use dl_proto::{
    CHUNK_RANGES_MAX, ChunkPiece, ChunkRange, Dataset as DatasetInfo, GetChunksRequest, pb,
};
use dl_runtime::locked;

use crate::error::{Error, Kind};
use crate::remote::connections::{Connection, Try};
use crate::remote::dataset::RemoteDataset;
use crate::remote::failure::Failure;
use crate::remote::lookup::dataset_address;
use crate::remote::session::Session;
use crate::remote::wire::Replies;

const ACTION: &str = "read";

/// Reads ranges of the chunks of one dataset.
#[derive(Debug, Clone)]
pub struct ChunkSource {
    session: Session,
    info: DatasetInfo,
}

impl ChunkSource {
    /// The chunks of a dataset, for the current process.
    pub(crate) fn new(dataset: &RemoteDataset) -> Result<Self, Error> {
        Ok(Self { session: dataset.session()?, info: dataset.info().clone() })
    }

    /// Reads ranges of chunks, in as few requests as useful. Gives for each range nothing, or the
    /// error that ended the range early. `take` receives the index of the range, the offset within
    /// the range, and the next bytes, unchecked. The future runs on [`runtime`](Self::runtime).
    ///
    /// The error of a range is [`Kind::NotFound`] for a missing chunk, for example after a purge.
    /// The error is [`Kind::Corrupt`] for a damaged chunk, or a range beyond its end.
    ///
    /// # Errors
    /// Errors of a whole request: [`Kind::Invalid`] for an empty range, a range longer than a
    /// chunk, or a server too old for the request. Otherwise errors of the servers and of the
    /// connection.
    pub async fn fetch(
        &self,
        ranges: &[ChunkRange],
        pass_copies: bool,
        mut take: impl FnMut(usize, u64, &[u8]) + Send,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let take = |range, offset, bytes: Bytes| take(range, offset, &bytes);
        get_chunks(&self.session, &self.info, ranges, pass_copies, take).await
    }

    /// The runtime of the process, for waits for the servers.
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        self.session.process.runtime.handle()
    }
}

#[derive(Debug)]
enum RangeState {
    /// Incomplete; with the failure of the last try, if any.
    Missing(Option<Failure>),
    Whole,
    Failed(Failure),
}

/// The progress over all tries of a request.
struct RangeProgress<Take> {
    /// The state of each range, with the number of delivered bytes.
    ranges: Vec<(RangeState, u32)>,
    /// The time of the last new bytes, unless read since.
    moved: Option<Duration>,
    /// Whether the last answer was complete.
    is_answered: bool,
    take: Take,
}

/// Reads ranges of chunks; `take` receives the index of a range, the offset within the range, and
/// the next bytes. Gives for each range nothing or its error; or the error of a whole request.
pub(crate) async fn get_chunks(
    session: &Session,
    info: &DatasetInfo,
    ranges: &[ChunkRange],
    pass_copies: bool,
    mut take: impl FnMut(usize, u64, Bytes),
) -> Result<Vec<Result<(), Error>>, Error> {
    for range in ranges {
        let invalid = |why| Error::new(Kind::Invalid, ACTION, subject(info, &[*range]), why);
        range.check().map_err(invalid)?;
    }
    let mut ended = Vec::with_capacity(ranges.len());
    for batch in ranges.chunks(CHUNK_RANGES_MAX) {
        let first = ended.len();
        let take = |range: usize, offset, bytes| take(first + range, offset, bytes);
        ended.extend(get_batch(session, info, batch, pass_copies, take).await?);
    }
    Ok(ended)
}

/// The same for ranges of a single request.
async fn get_batch(
    session: &Session,
    info: &DatasetInfo,
    ranges: &[ChunkRange],
    pass_copies: bool,
    take: impl FnMut(usize, u64, Bytes),
) -> Result<Vec<Result<(), Error>>, Error> {
    let states = ranges.iter().map(|_| (RangeState::Missing(None), 0)).collect();
    let progress = RangeProgress { ranges: states, moved: None, is_answered: false, take };
    let progress = Mutex::new(progress);
    let attempt = |server, this| attempt(server, this, info, (ranges, pass_copies), &progress);
    let moved = || locked(&progress).moved.take();
    let of_all = || subject(info, ranges);
    let asked = session.connections.call_while_moving(ACTION, of_all, attempt, moved).await;
    let progress = progress.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = asked
        && !progress.is_answered
    {
        return Err(error);
    }
    let ended = ranges.iter().zip(progress.ranges).map(|(range, (state, _))| {
        let failure = match state {
            RangeState::Whole => return Ok(()),
            RangeState::Failed(failure) | RangeState::Missing(Some(failure)) => failure,
            RangeState::Missing(None) => {
                Failure::new(Kind::Internal, "the answer has no result for the range")
            }
        };
        Err(Error::new(failure.kind, ACTION, subject(info, &[*range]), failure))
    });
    Ok(ended.collect())
}

/// A try: requests the missing bytes, and delivers the received bytes.
async fn attempt<Take: FnMut(usize, u64, Bytes)>(
    mut server: Connection,
    this: Try,
    info: &DatasetInfo,
    (ranges, pass_copies): (&[ChunkRange], bool),
    progress: &Mutex<RangeProgress<Take>>,
) -> Result<(), Failure> {
    let (asked, missing) = locked(progress).begin(ranges);
    // The last answer broke off after the last byte.
    if asked.is_empty() {
        return Ok(());
    }
    let message = GetChunksRequest { dataset: info.id, ranges: missing, pass_copies };
    let mut request = this.request(pb::GetChunksRequest::from(message));
    let replies = Replies::<pb::GetChunksReply>::default();
    request.extensions_mut().insert(replies.clone());
    let mut stream = this.answer(server.get_chunks(request)).await?;
    while let Some(shown) = this.message(&mut stream).await? {
        let message = replies.next().unwrap_or(shown);
        let (mut progress, now) = (locked(progress), this.now());
        for piece in message.pieces {
            let piece = ChunkPiece::from(piece);
            let number = asked.get(piece.range as usize).copied();
            progress.add(number, ranges, piece.data, now)?;
        }
    }
    locked(progress).end()
}

impl<Take: FnMut(usize, u64, Bytes)> RangeProgress<Take> {
    /// Begins a try: the indices of the missing ranges, and the rest of each range.
    fn begin(&mut self, ranges: &[ChunkRange]) -> (Vec<usize>, Vec<ChunkRange>) {
        self.is_answered = false;
        let states = self.ranges.iter().zip(ranges).enumerate();
        let missing = states.filter_map(|(number, ((state, came), range))| {
            let rest = ChunkRange {
                chunk: range.chunk,
                offset: range.offset.saturating_add(*came),
                length: range.length.saturating_sub(*came),
            };
            matches!(state, RangeState::Missing(_)).then_some((number, rest))
        });
        missing.unzip()
    }

    /// Takes the next bytes of a range, or its failure; `number` is none for an unknown range.
    fn add(
        &mut self,
        number: Option<usize>,
        ranges: &[ChunkRange],
        data: Result<Bytes, (dl_proto::Kind, String)>,
        now: Duration,
    ) -> Result<(), Failure> {
        let no_sense =
            |why: &str| Failure::new(Kind::Internal, format!("the answer makes no sense: {why}"));
        let found = number.and_then(|number| {
            let (state, came) = self.ranges.get_mut(number)?;
            Some((number, state, came, ranges.get(number)?.length))
        });
        let Some((number, state, came, length)) = found else {
            return Err(no_sense("a range outside of the request"));
        };
        let data = match data {
            Ok(data) => data,
            Err(_) if matches!(state, RangeState::Whole) => {
                return Err(no_sense("a failure behind the end of a range"));
            }
            Err((kind, problem)) => {
                let failure = Failure::of_object(kind.into(), problem);
                *state = match failure.kind {
                    kind if kind.is_retryable() => RangeState::Missing(Some(failure)),
                    _ => RangeState::Failed(failure),
                };
                return Ok(());
            }
        };
        let fits = u32::try_from(data.len()).is_ok_and(|more| more <= length.saturating_sub(*came));
        if !fits || matches!(state, RangeState::Failed(_)) {
            return Err(no_sense("bytes behind the end of a range"));
        }
        if data.is_empty() {
            return Ok(());
        }
        let offset = u64::from(*came);
        *came += data.len() as u32;
        if *came == length {
            *state = RangeState::Whole;
        }
        self.moved = Some(now);
        (self.take)(number, offset, data);
        Ok(())
    }

    /// Ends a complete answer; fails if bytes are missing.
    fn end(&mut self) -> Result<(), Failure> {
        let mut missing = self.ranges.iter().filter_map(|(state, _)| match state {
            RangeState::Missing(why) => Some(why),
            RangeState::Whole | RangeState::Failed(_) => None,
        });
        let Some(first) = missing.next() else { return Ok(()) };
        let problem = match first {
            Some(why) => why.to_string(),
            None => "the answer leaves out requested bytes".to_owned(),
        };
        self.is_answered = true;
        Err(Failure::new(Kind::Unavailable, problem))
    }
}

/// The ranges, for an error text.
fn subject(info: &DatasetInfo, ranges: &[ChunkRange]) -> String {
    let address = dataset_address(&info.name);
    let chunk = |chunk: ChunkId| format!("chunk {chunk} of {address}");
    match ranges {
        [range] => chunk(range.chunk),
        ranges => format!("{} ranges of chunks of {address}", ranges.len()),
    }
}

#[cfg(test)]
mod tests;
