//! Values that belong to one process and must not survive a fork, such as connections and unsent
//! writes.
//!
//! Must hold: a child of a fork never uses, locks or drops values that its parent made. No lock is
//! held while a value is made, so that a fork in between can't leave one locked.

mod generation;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::OnceLock;

/// A value of which every process has its own, made when it first asks.
///
/// A chain, one link for each process in the line of forks that asked: the last link is the
/// newest process.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(OnceLock<Box<Link<T>>>);

#[derive(Debug)]
struct Link<T> {
    value: Owned<T>,
    next: PerProcess<T>,
}

/// A value of the process that made it: a child neither uses nor drops it.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    generation: u64,
    /// Always there, until the drop.
    value: Option<T>,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// This process's value; `make` makes the first one. Two threads that ask first at the same
    /// time may both make one: one of the two is dropped.
    pub(crate) fn get_or_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        self.get_or_make_as(generation::current(), make)
    }

    /// The value of this process; none before the first request for a value.
    pub(crate) fn get(&self) -> Option<&T> {
        self.last()?.value.get_as(generation::current())
    }

    fn get_or_make_as<E>(
        &self,
        generation: u64,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&T, E> {
        let end = match self.last() {
            Some(link) if link.value.generation == generation => return Ok(link.value.made()),
            Some(link) => &link.next,
            None => self,
        };
        let value = Owned { generation, value: Some(make()?) };
        let made = Box::new(Link { value, next: Self::new() });
        // When another thread was faster, its value holds.
        drop(end.0.set(made));
        Ok(end.0.get().expect("it was set by this thread or by a faster one").value.made())
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
    /// Of the process that runs now.
    pub(crate) fn new(value: T) -> Self {
        Self { generation: generation::current(), value: Some(value) }
    }

    /// None in a child of the process that made it.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.value.as_mut().filter(|_| self.generation == generation::current())
    }

    fn get_as(&self, generation: u64) -> Option<&T> {
        self.value.as_ref().filter(|_| self.generation == generation)
    }

    /// None in a child of the process that made it.
    pub(crate) fn get(&self) -> Option<&T> {
        self.get_as(generation::current())
    }

    /// In any process.
    fn made(&self) -> &T {
        self.value.as_ref().expect("taken only by the drop")
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.generation != generation::current() {
            // Its threads are in the parent, and so may be the holders of its locks.
            std::mem::forget(self.value.take());
        }
    }
}
