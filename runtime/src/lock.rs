//! Locks, also after a panic of an earlier holder.
//!
//! Must hold: a panic under a lock takes no further threads with it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a value, also after a panic of an earlier holder.
#[inline]
pub fn locked<T: ?Sized>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_holder_is_survived() {
        let value = Mutex::new(1);
        let panics = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let mut value = locked(&value);
                *value = 2;
                panic!("under the lock");
            });
            holder.join().is_err()
        });
        assert!(panics && value.is_poisoned());
        assert_eq!(*locked(&value), 2);
    }
}
