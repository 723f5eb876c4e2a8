//! Shared memory used again: pages that exist need not be made, zeroed and mapped for the next case.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::shared::{Shared, SharedError};

/// The largest memory that is kept, in bytes: more would be missing elsewhere, and is rare.
const LARGEST: usize = 16 << 20;

/// How many are kept: each case in flight has its inputs and the results of a device.
const KEPT: usize = 12;

/// Shared memory that nobody uses at the moment. Clones are the same pool.
#[derive(Clone, Debug, Default)]
pub struct SharedPool(Arc<Mutex<Vec<Shared>>>);

/// Shared memory out of a pool, into which it goes back. What it holds at first is whatever was there before.
#[derive(Debug)]
pub struct Pooled {
    /// Only dropping takes it.
    shared: Option<Shared>,
    pool: SharedPool,
    abandoned: AtomicBool,
}

/// Where a run has its shared memory from. Inputs and results are kept apart: a worker that breaks the protocol and writes
/// after its answer can spoil results of another case, never the bytes that a case is made of.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// For inputs.
    pub inputs: SharedPool,
    /// For what workers leave behind.
    pub results: SharedPool,
}

impl SharedPool {
    /// Memory of so many bytes: the smallest that is at hand, or else new.
    pub fn take(&self, len: usize) -> Result<Pooled, SharedError> {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = spare.iter().enumerate().filter(|(_, s)| s.capacity() >= len);
        let best = fitting.min_by_key(|(_, s)| s.capacity()).map(|(i, _)| i);
        let known = best.map(|i| spare.swap_remove(i));
        drop(spare);
        let shared = match known {
            Some(known) => known.with_len(len),
            // A power of two, so that it fits cases to come.
            None if len <= LARGEST => Shared::create(len.next_power_of_two())?.with_len(len),
            None => Shared::create(len)?,
        };
        Ok(Pooled { shared: Some(shared), pool: self.clone(), abandoned: AtomicBool::new(false) })
    }

    fn give(&self, shared: Shared) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.capacity() <= LARGEST && spare.len() < KEPT {
            spare.push(shared);
        }
    }
}

impl Pooled {
    /// Not to be used again: a process that could not be ended may still write to it.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

impl Deref for Pooled {
    type Target = Shared;

    #[allow(clippy::unreachable, reason = "only dropping takes the memory")]
    fn deref(&self) -> &Shared {
        match &self.shared {
            Some(shared) => shared,
            None => unreachable!(),
        }
    }
}

impl DerefMut for Pooled {
    #[allow(clippy::unreachable, reason = "only dropping takes the memory")]
    fn deref_mut(&mut self) -> &mut Shared {
        match &mut self.shared {
            Some(shared) => shared,
            None => unreachable!(),
        }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take().filter(|_| !self.abandoned.load(Ordering::Relaxed)) {
            self.pool.give(shared);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_an_abandoned_one_does_not() {
        let pool = SharedPool::default();
        let capacity = |len: usize| pool.take(len).unwrap().capacity();
        assert_eq!((capacity(5000), capacity(8192)), (8192, 8192));
        let small = pool.take(100).unwrap();
        assert_eq!((small.capacity(), small.len(), small.bytes().len()), (8192, 100, 100));
        assert_eq!(capacity(100), 128, "the other one is in use");
        small.abandon();
        drop(small);
        // One of 128 bytes is left, the other has gone.
        assert_eq!(pool.0.lock().unwrap().iter().map(Shared::capacity).collect::<Vec<_>>(), [128]);
    }

    #[test]
    fn large_memory_is_given_back_to_the_system() {
        let pool = SharedPool::default();
        drop(pool.take(LARGEST + 1).unwrap());
        assert!(pool.0.lock().unwrap().is_empty());
    }
}
