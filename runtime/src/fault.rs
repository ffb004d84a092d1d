//! Injected faults for the layers of all stores, so that a seed or a cut covers chunk store and metadata
//! store together.
//!
//! Must hold: the same seed or script over the same calls gives the same faults. After a cut all calls
//! fail, like calls of a dead process.

use std::collections::{HashMap, VecDeque};
use std::fmt::{Debug, Display};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::locked;
use crate::storage::{Error, Kind};
use crate::{Clock, Random};

/// The moment at which a process "dies": counts the points of its calls, and fails all calls from the
/// armed point on. Clones share a count.
///
/// A write has two points: before its effect, and after, where only the answer is lost. A test counts the
/// points of a scenario, then runs the scenario again for each point.
#[derive(Debug, Clone)]
pub struct CutPoint(Arc<Points>);

#[derive(Debug)]
struct Points {
    passed: AtomicU64,
    cut_at: AtomicU64,
}

const NEVER: u64 = u64::MAX;

/// The process is dead: the operation had no effect, or its answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the process was cut off by an injected crash")]
pub struct Cut;

impl CutPoint {
    /// Counts without a cut until armed.
    pub fn new() -> Self {
        Self(Arc::new(Points { passed: AtomicU64::new(0), cut_at: AtomicU64::new(NEVER) }))
    }

    /// Cuts after `points` more points: with 0 the next call and all later calls fail.
    pub fn arm(&self, points: u64) {
        self.0.cut_at.store(self.passed().saturating_add(points), Ordering::SeqCst);
    }

    /// Lets calls pass again, like after a restart.
    pub fn disarm(&self) {
        self.0.cut_at.store(NEVER, Ordering::SeqCst);
    }

    /// Points passed so far.
    pub fn passed(&self) -> u64 {
        self.0.passed.load(Ordering::SeqCst)
    }

    /// Whether the cut has happened.
    pub fn is_cut(&self) -> bool {
        self.passed() > self.0.cut_at.load(Ordering::SeqCst)
    }

    /// A point at which a write can be cut.
    ///
    /// # Errors
    /// [`Cut`] at the armed point and ever after.
    pub fn write_point(&self) -> Result<(), Cut> {
        let point = self.0.passed.fetch_add(1, Ordering::SeqCst);
        if point >= self.0.cut_at.load(Ordering::SeqCst) { Err(Cut) } else { Ok(()) }
    }

    /// The check of a read. Reads are no points: a cut before a read is the same as a cut before the next
    /// write.
    ///
    /// # Errors
    /// [`Cut`] once the process is dead.
    pub fn read_point(&self) -> Result<(), Cut> {
        if self.is_cut() { Err(Cut) } else { Ok(()) }
    }

    /// Runs a write between its two points.
    ///
    /// # Errors
    /// [`Cut`] before the write, which then has no effect, or after the write, whose answer is lost.
    pub async fn around<T>(&self, write: impl Future<Output = T>) -> Result<T, Cut> {
        self.write_point()?;
        let answer = write.await;
        self.write_point()?;
        Ok(answer)
    }
}

impl Default for CutPoint {
    fn default() -> Self {
        Self::new()
    }
}

/// A fault of a call. `K` is the kind of the caller's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault<K> {
    /// The call has no effect, and the caller gets an error.
    Before(K),
    /// The call takes effect, and the caller gets an error: the answer is lost.
    AnswerLost(K),
    /// The call takes effect after a delay.
    Delay(Duration),
}

/// Probabilities of faults, which add up to at most 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates<K> {
    /// Probability of [`Fault::Before`].
    pub before: f64,
    /// Probability of [`Fault::AnswerLost`].
    pub answer_lost: f64,
    /// Probability of [`Fault::Delay`].
    pub delay: f64,
    /// Longest delay; each delay is a random part.
    pub longest_delay: Duration,
    /// Kind of the caller's error.
    pub error: K,
}

/// The controller of a fault layer, which chooses the fault of each call. Clones share a plan. The script
/// of an operation is used up before its rates apply.
#[derive(Debug, Clone)]
pub struct Faults<K> {
    random: Arc<dyn Random>,
    plans: Arc<Mutex<HashMap<&'static str, Plan<K>>>>,
}

#[derive(Debug)]
struct Plan<K> {
    script: VecDeque<Option<Fault<K>>>,
    rates: Option<Rates<K>>,
}

impl<K: Copy + Debug> Faults<K> {
    /// A plan without faults. Rates draw from `random`.
    pub fn new(random: Arc<dyn Random>) -> Self {
        Self { random, plans: Arc::default() }
    }

    /// Gives the next calls of `operation` these faults, in order; `None` lets a call pass.
    pub fn script(
        &self,
        operation: &'static str,
        faults: impl IntoIterator<Item = Option<Fault<K>>>,
    ) {
        self.plan(operation, |plan| plan.script.extend(faults));
    }

    /// Whether every call in the script of `operation` was made.
    pub fn is_used_up(&self, operation: &'static str) -> bool {
        self.plan(operation, |plan| plan.script.is_empty())
    }

    /// Sets the rates of faults for `operation`; `None` for no faults.
    pub fn set_rates(&self, operation: &'static str, rates: Option<Rates<K>>) {
        self.plan(operation, |plan| plan.rates = rates);
    }

    /// The fault of a call of `operation`.
    pub fn next(&self, operation: &'static str) -> Option<Fault<K>> {
        self.plan(operation, |plan| {
            if let Some(scripted) = plan.script.pop_front() {
                return scripted;
            }
            let rates = plan.rates?;
            let drawn = self.random.unit();
            if drawn < rates.before {
                Some(Fault::Before(rates.error))
            } else if drawn < rates.before + rates.answer_lost {
                Some(Fault::AnswerLost(rates.error))
            } else if drawn < rates.before + rates.answer_lost + rates.delay {
                Some(Fault::Delay(rates.longest_delay.mul_f64(self.random.unit())))
            } else {
                None
            }
        })
    }

    fn plan<T>(&self, operation: &'static str, with: impl FnOnce(&mut Plan<K>) -> T) -> T {
        let mut plans: MutexGuard<'_, _> = locked(&self.plans);
        with(plans.entry(operation).or_insert(Plan { script: VecDeque::new(), rates: None }))
    }
}

/// The faults of a store: those of a plan, and the cut of the process.
#[derive(Debug)]
pub struct FaultLayer {
    /// The clock of delays.
    pub clock: Arc<dyn Clock>,
    /// The plan.
    pub faults: Faults<Kind>,
    /// The cut.
    pub cut: CutPoint,
}

impl FaultLayer {
    /// Runs a write with the fault that is next for `operation`.
    ///
    /// # Errors
    /// Errors of the write, of the fault and of the cut.
    pub async fn write<T>(
        &self,
        operation: &'static str,
        what: impl Display + Send + Sync,
        write: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let fault = self.faults.next(operation);
        match fault {
            Some(Fault::Before(kind)) => return Err(injected(kind, operation, what)),
            Some(Fault::Delay(delay)) => self.clock.sleep(delay).await,
            Some(Fault::AnswerLost(_)) | None => {}
        }
        let answer = self.cut.around(write).await;
        let answer = answer.map_err(|cut| dead(cut, operation, &what))?;
        match fault {
            Some(Fault::AnswerLost(kind)) => Err(injected(kind, operation, what)),
            Some(Fault::Before(_) | Fault::Delay(_)) | None => answer,
        }
    }

    /// The fault before a read; a lost answer of a read is an error like any other.
    ///
    /// # Errors
    /// Errors of the fault and of the cut.
    pub async fn before_read(
        &self,
        operation: &'static str,
        what: impl Display + Send + Sync,
    ) -> Result<(), Error> {
        self.cut.read_point().map_err(|cut| dead(cut, operation, &what))?;
        match self.faults.next(operation) {
            Some(Fault::Before(kind) | Fault::AnswerLost(kind)) => {
                return Err(injected(kind, operation, what));
            }
            Some(Fault::Delay(delay)) => self.clock.sleep(delay).await,
            None => {}
        }
        Ok(())
    }
}

fn injected(kind: Kind, operation: &'static str, what: impl Display) -> Error {
    Error::because(kind, operation, what, "injected fault")
}

fn dead(cut: Cut, operation: &'static str, what: impl Display) -> Error {
    Error::because(Kind::Unavailable, operation, what, cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeededRandom;

    #[test]
    fn nothing_gets_through_from_the_armed_point_on() {
        let cut = CutPoint::new();
        assert_eq!(cut.write_point(), Ok(()));
        cut.arm(1);
        assert_eq!((cut.write_point(), cut.read_point()), (Ok(()), Ok(())));
        assert_eq!((cut.write_point(), cut.read_point()), (Err(Cut), Err(Cut)));
        assert_eq!(cut.clone().write_point(), Err(Cut));
        assert!(cut.is_cut());
        cut.disarm();
        assert_eq!((cut.write_point(), cut.read_point()), (Ok(()), Ok(())));
    }

    #[tokio::test]
    async fn a_write_is_cut_before_it_or_after_it() {
        for (point, done) in [(0, 0), (1, 1)] {
            let (cut, effect) = (CutPoint::new(), AtomicU64::new(0));
            cut.arm(point);
            let answer = cut.around(async { effect.fetch_add(1, Ordering::SeqCst) }).await;
            assert_eq!((answer, effect.into_inner()), (Err(Cut), done));
        }
    }

    #[test]
    fn a_script_is_followed_exactly_then_used_up() {
        let faults = Faults::new(Arc::new(SeededRandom::new(0)));
        faults.script("put", [None, Some(Fault::AnswerLost('x'))]);
        assert_eq!((faults.next("get"), faults.is_used_up("put")), (None, false));
        let met = [faults.next("put"), faults.next("put"), faults.next("put")];
        assert_eq!(met, [None, Some(Fault::AnswerLost('x')), None]);
        assert!(faults.is_used_up("put"));
    }

    #[test]
    fn a_seed_gives_the_same_faults_at_about_the_rates() {
        let rates = Rates {
            before: 0.1,
            answer_lost: 0.2,
            delay: 0.3,
            longest_delay: Duration::from_secs(1),
            error: (),
        };
        let draw = || {
            let faults = Faults::new(Arc::new(SeededRandom::new(42)));
            faults.set_rates("put", Some(rates));
            (0..1000).map(|_| faults.next("put")).collect::<Vec<_>>()
        };
        let drawn = draw();
        assert_eq!(drawn, draw());
        let count =
            |wanted: fn(&Option<Fault<()>>) -> bool| drawn.iter().filter(|f| wanted(f)).count();
        assert!((60..140).contains(&count(|f| matches!(f, Some(Fault::Before(()))))));
        assert!((150..250).contains(&count(|f| matches!(f, Some(Fault::AnswerLost(()))))));
        assert!((240..360).contains(&count(|f| matches!(f, Some(Fault::Delay(_))))));
    }
}
