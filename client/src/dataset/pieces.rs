//! The last pieces of files that came from the servers, for readers of ranges.
//!
//! Must hold: readers of the same piece at the same time share one request, and its error. A few pieces
//! are kept, whatever is read.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use bytes::Bytes;
use dl_runtime::locked;

use crate::error::{Error, Kind};

/// Pieces kept, at most: for a few readers of successive ranges, in up to 16 MiB.
const PIECES_MAX: usize = 4;

/// The place of a piece: its chunk, and the offset there.
type Place = (u32, u32);

/// A piece on its way, or its end.
#[derive(Debug, Default)]
struct Piece {
    ended: Mutex<Option<Result<Bytes, Error>>>,
    came: Condvar,
}

/// The last pieces, oldest first.
#[derive(Debug, Default)]
pub(super) struct Pieces(Mutex<VecDeque<(Place, Arc<Piece>)>>);

/// Ends the wait of other readers, also when the read panics.
struct Reading<'a> {
    pieces: &'a Pieces,
    place: Place,
    piece: Arc<Piece>,
}

impl Pieces {
    /// A piece: kept, or by `read`.
    pub(super) fn get(
        &self,
        place: Place,
        read: impl FnOnce() -> Result<Bytes, Error>,
    ) -> Result<Bytes, Error> {
        let mut pieces = locked(&self.0);
        if let Some((_, piece)) = pieces.iter().find(|(of, _)| *of == place) {
            let piece = Arc::clone(piece);
            drop(pieces);
            return piece.wait();
        }
        let piece = Arc::<Piece>::default();
        pieces.push_back((place, Arc::clone(&piece)));
        if pieces.len() > PIECES_MAX {
            // Its readers hold it until it has come.
            pieces.pop_front();
        }
        drop(pieces);
        let reading = Reading { pieces: self, place, piece };
        let ended = read();
        reading.end(ended.clone());
        ended
    }
}

impl Piece {
    fn wait(&self) -> Result<Bytes, Error> {
        let ended = locked(&self.ended);
        // The reader has a deadline.
        let ended = self.came.wait_while(ended, |ended| ended.is_none());
        let ended = ended.unwrap_or_else(PoisonError::into_inner);
        let lost = || Error::new(Kind::Internal, "read", "a piece", "its reader has ended");
        ended.clone().unwrap_or_else(|| Err(lost()))
    }
}

impl Reading<'_> {
    fn end(&self, ended: Result<Bytes, Error>) {
        if ended.is_err() {
            // The next reader asks again.
            let is_it = |piece: &Arc<Piece>| Arc::ptr_eq(piece, &self.piece);
            locked(&self.pieces.0).retain(|(place, piece)| *place != self.place || !is_it(piece));
        }
        *locked(&self.piece.ended) = Some(ended);
        self.piece.came.notify_all();
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if locked(&self.piece.ended).is_none() {
            self.end(Err(Error::new(Kind::Internal, "read", "a piece", "its reader has ended")));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn readers_of_a_piece_share_one_read_and_its_error() {
        for is_good in [true, false] {
            let (pieces, reads) = (Pieces::default(), AtomicU32::new(0));
            let read = || {
                reads.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(200));
                let failed = || Error::new(Kind::Unavailable, "read", "x", "away");
                is_good.then(|| Bytes::from_static(b"x")).ok_or_else(failed)
            };
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| assert_eq!(pieces.get((1, 2), read).is_ok(), is_good));
                }
            });
            assert_eq!(reads.load(Ordering::Relaxed), 1);
            let _ = pieces.get((1, 2), read);
            assert_eq!(reads.load(Ordering::Relaxed), if is_good { 1 } else { 2 });
        }
    }

    #[test]
    fn few_pieces_are_kept() {
        let pieces = Pieces::default();
        for place in 0..10 {
            pieces.get((place, 0), || Ok(Bytes::new())).unwrap();
        }
        pieces.get((9, 0), || panic!("kept")).unwrap();
        assert!(locked(&pieces.0).len() <= PIECES_MAX);
    }
}
