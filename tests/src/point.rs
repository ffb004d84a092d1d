//! A point in a sequence of writes at which the writing process is killed.
//!
//! Must hold: writes forwarded before the kill are done, later writes are not forwarded. The
//! process is a child that nobody has waited for, so its id is not reused.

use std::sync::{Arc, Mutex, MutexGuard};

use dl_runtime::locked;
use rustix::process::{Pid, Signal, kill_process};

/// The side of a write on which the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Before the write is forwarded.
    Before,
    /// After the write, before its answer.
    After,
}

/// Counts writes, and kills a process at an armed number. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct KillPoint(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Writes since the last call of `arm`.
    writes: u64,
    armed: Option<(u64, Side, u32)>,
    is_over: bool,
}

impl KillPoint {
    /// Kills the process `id` at write `number`, counted from 1.
    pub fn arm(&self, number: u64, side: Side, id: u32) {
        *self.state() = State { armed: Some((number, side, id)), ..State::default() };
    }

    /// Lets all writes pass.
    pub fn disarm(&self) {
        *self.state() = State::default();
    }

    /// Writes since the last call of `arm`.
    pub fn writes(&self) -> u64 {
        self.state().writes
    }

    /// Whether the process was killed.
    pub fn is_over(&self) -> bool {
        self.state().is_over
    }

    /// Counts an incoming write; none when the process is dead and the write must be dropped.
    pub(crate) fn begin(&self) -> Option<u64> {
        let mut state = self.state();
        if state.is_over {
            return None;
        }
        state.writes += 1;
        let number = state.writes;
        state.reach(number, Side::Before);
        (!state.is_over).then_some(number)
    }

    /// Reports a finished write; false when the process is dead.
    pub(crate) fn end(&self, number: u64) -> bool {
        let mut state = self.state();
        state.reach(number, Side::After);
        !state.is_over
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0)
    }
}

impl State {
    fn reach(&mut self, number: u64, side: Side) {
        let Some((last, on, id)) = self.armed else { return };
        if (number, side) != (last, on) || self.is_over {
            return;
        }
        self.is_over = true;
        if let Some(id) = i32::try_from(id).ok().and_then(Pid::from_raw) {
            // The process may have ended by itself.
            let _ = kill_process(id, Signal::KILL);
        }
    }
}
