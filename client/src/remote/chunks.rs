//! Ranges of chunks from the servers, for an epoch and for the node agent.
//!
//! Must hold: each byte of a range is handed over once, in order; after a broken answer only the missing
//! bytes are asked for; bytes that nobody asked for are refused. Nothing is checked by a checksum here.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dl_format::ChunkId;
use dl_proto::{
    CHUNK_RANGES_MAX, ChunkPiece, ChunkRange, Dataset as DatasetInfo, GetChunksRequest, pb,
};

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

    /// Reads ranges of chunks, in as few requests as is useful: for each range nothing, or the reason why
    /// the range has an end before its length. `take` gets the number of the range, the offset within the
    /// range, and the next bytes; they are not checked. The future runs on [`runtime`](Self::runtime).
    ///
    /// The error of a range is [`Kind::NotFound`] for a chunk that is gone, as after a purge, and
    /// [`Kind::Corrupt`] for a damaged chunk and for a range behind the end of its chunk.
    ///
    /// # Errors
    /// When a request fails as a whole: [`Kind::Invalid`] for a range that is empty or longer than a chunk,
    /// and for servers that are too old for this request; else those of the servers and of the way to them.
    pub async fn fetch(
        &self,
        ranges: &[ChunkRange],
        pass_copies: bool,
        mut take: impl FnMut(usize, u64, &[u8]) + Send,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let take = |range, offset, bytes: Bytes| take(range, offset, &bytes);
        get_chunks(&self.session, &self.info, ranges, pass_copies, take).await
    }

    /// The runtime of this process, on which the library waits for the servers.
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        self.session.process.runtime.handle()
    }
}

/// How far a range has come.
#[derive(Debug)]
enum RangeState {
    /// Not to the end; why not, when it was tried.
    Missing(Option<Failure>),
    Whole,
    Failed(Failure),
}

/// How far the tries of one request got.
struct RangeProgress<Take> {
    /// For each range, and how many of its bytes were handed over.
    ranges: Vec<(RangeState, u32)>,
    /// When new bytes came, if so since this was last looked at.
    moved: Option<Duration>,
    /// Whether the last try was answered to its end.
    is_answered: bool,
    take: Take,
}

/// Reads ranges of chunks; `take` gets the number of a range, the offset within the range, and the next
/// bytes. For each range nothing, or why it ended early; or the error of a request as a whole.
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

/// The same for so many ranges as fit into one request.
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
    let moved = || lock(&progress).moved.take();
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
            RangeState::Missing(None) => Failure::new(Kind::Internal, "no answer came for it"),
        };
        Err(Error::new(failure.kind, ACTION, subject(info, &[*range]), failure))
    });
    Ok(ended.collect())
}

/// One try: asks for the missing bytes, and hands over those that come.
async fn attempt<Take: FnMut(usize, u64, Bytes)>(
    mut server: Connection,
    this: Try,
    info: &DatasetInfo,
    (ranges, pass_copies): (&[ChunkRange], bool),
    progress: &Mutex<RangeProgress<Take>>,
) -> Result<(), Failure> {
    let (asked, missing) = lock(progress).begin(ranges);
    // The last answer broke behind the last byte.
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
        let (mut progress, now) = (lock(progress), this.now());
        for piece in message.pieces {
            let piece = ChunkPiece::from(piece);
            let number = asked.get(piece.range as usize).copied();
            progress.add(number, ranges, piece.data, now)?;
        }
    }
    lock(progress).end()
}

impl<Take: FnMut(usize, u64, Bytes)> RangeProgress<Take> {
    /// A new try: the numbers of the ranges to ask for, and the rest of each.
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

    /// The next bytes of a range, or its end; `number` is none for a range that was not asked for.
    fn add(
        &mut self,
        number: Option<usize>,
        ranges: &[ChunkRange],
        data: Result<Bytes, (dl_proto::Kind, String)>,
        now: Duration,
    ) -> Result<(), Failure> {
        let no_sense = |why: &str| {
            Failure::new(Kind::Internal, format!("an answer that makes no sense: {why}"))
        };
        let found = number.and_then(|number| {
            let (state, came) = self.ranges.get_mut(number)?;
            Some((number, state, came, ranges.get(number)?.length))
        });
        let Some((number, state, came, length)) = found else {
            return Err(no_sense("a range that was not asked for"));
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

    /// The answer ended.
    fn end(&mut self) -> Result<(), Failure> {
        let mut missing = self.ranges.iter().filter_map(|(state, _)| match state {
            RangeState::Missing(why) => Some(why),
            RangeState::Whole | RangeState::Failed(_) => None,
        });
        let Some(first) = missing.next() else { return Ok(()) };
        let problem = match first {
            Some(why) => why.to_string(),
            None => "the answer leaves out bytes that were asked for".to_owned(),
        };
        self.is_answered = true;
        Err(Failure::new(Kind::Unavailable, problem))
    }
}

/// The ranges in the words of an error.
fn subject(info: &DatasetInfo, ranges: &[ChunkRange]) -> String {
    let address = dataset_address(&info.name);
    let of_one = |chunk: ChunkId| format!("chunk {chunk} of {address}");
    match ranges {
        [one] => of_one(one.chunk),
        many => format!("{} ranges of chunks of {address}", many.len()),
    }
}

fn lock<Take>(progress: &Mutex<RangeProgress<Take>>) -> MutexGuard<'_, RangeProgress<Take>> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
