//! Values of one process that must not survive a fork, such as connections and unsent writes.
//!
//! Must hold: a child of a fork never uses, locks or drops values of its parent. No lock is held
//! while a value is made, so a fork can't leave a locked lock behind.

mod generation;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::OnceLock;

/// A value for each process, made on first use.
///
/// The values form a chain with a link for each process in a line of forks. The last link belongs
/// to the newest process.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(OnceLock<Box<Link<T>>>);

#[derive(Debug)]
struct Link<T> {
    value: Owned<T>,
    next: PerProcess<T>,
}

/// A value of the process that made it: a child neither uses nor drops the value.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    generation: u64,
    /// Present until the drop.
    value: Option<T>,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The value of the process; `make` makes the first value. Two threads may both make a first
    /// value at the same time: one value is dropped.
    pub(crate) fn get_or_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let generation = generation::current();
        let end = match self.last() {
            Some(link) if link.value.generation == generation => return Ok(link.value.made()),
            Some(link) => &link.next,
            None => self,
        };
        let value = Owned { generation, value: Some(make()?) };
        let made = Box::new(Link { value, next: Self::new() });
        // The value of a faster thread wins.
        drop(end.0.set(made));
        Ok(end.0.get().expect("set by this thread or a faster thread").value.made())
    }

    /// The value of this process; none before the first request for a value.
    pub(crate) fn get(&self) -> Option<&T> {
        self.last()?.value.get()
    }

    fn last(&self) -> Option<&Link<T>> {
        let mut link = self.0.get()?;
        while let Some(next) = link.next.0.get() {
            link = next;
        }
        Some(link)
    }
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { generation: generation::current(), value: Some(value) }
    }

    /// The value; none in a child of its process.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.value.as_mut().filter(|_| self.generation == generation::current())
    }

    /// The value; none in a child of its process.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.generation == generation::current())
    }

    /// The value, in any process.
    fn made(&self) -> &T {
        self.value.as_ref().expect("taken only by the drop")
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.generation != generation::current() {
            // The threads of the value are in the parent, and so may be the holders of its locks.
            std::mem::forget(self.value.take());
        }
    }
}
