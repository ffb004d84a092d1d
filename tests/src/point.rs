//! A point among the writes that a process asks others for, at which it is killed.
//!
//! Must hold: what was passed on before the kill is done, and nothing that was asked for later is;
//! the process is named by its id and is a child that nobody has waited for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

/// On which side of a write a process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Before anything of the write was passed on.
    Before,
    /// When it is done, and its answer was not given.
    After,
}

/// Counts writes, and kills when it is armed. Handles share it.
#[derive(Debug, Clone, Default)]
pub struct KillPoint(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Writes since it was armed.
    writes: u64,
    armed: Option<(u64, Side, u32)>,
    is_over: bool,
}

impl KillPoint {
    /// From now on write number `number` (from 1) is the last one of the process `id`.
    pub fn arm(&self, number: u64, side: Side, id: u32) {
        *self.state() = State { armed: Some((number, side, id)), ..State::default() };
    }

    /// Everything passes from now on.
    pub fn disarm(&self) {
        *self.state() = State::default();
    }

    /// Writes that came since it was armed.
    pub fn writes(&self) -> u64 {
        self.state().writes
    }

    /// Whether the process was killed.
    pub fn is_over(&self) -> bool {
        self.state().is_over
    }

    /// A write comes: its number, or none when it must not be passed on.
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

    /// That write is done; false when nobody is left to be told.
    pub(crate) fn end(&self, number: u64) -> bool {
        let mut state = self.state();
        state.reach(number, Side::After);
        !state.is_over
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
            // It may have ended by itself.
            let _ = kill_process(id, Signal::KILL);
        }
    }
}
