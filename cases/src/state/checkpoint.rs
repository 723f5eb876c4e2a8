//! Checkpoints of a prompt: snapshots of one sequence, kept in a ring and updated in place.

use std::collections::VecDeque;

use super::io::{StateError, Transfers};
use super::memory::{Memory, What};

/// A snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Number of the save, for whoever made it.
    pub save: usize,
    /// First position, and last.
    pub positions: (i32, i32),
    /// Positions that it holds.
    pub tokens: usize,
    /// The state.
    pub blob: Vec<u8>,
}

/// The newest checkpoints, the oldest first.
#[derive(Clone, Debug)]
pub struct Ring {
    kept: VecDeque<Checkpoint>,
    most: usize,
}

impl Ring {
    /// Room for so many.
    pub fn new(most: usize) -> Self {
        Ring { kept: VecDeque::new(), most }
    }

    /// Takes a snapshot. Where there is no room the oldest makes way, and its buffer is used again. On an error the
    /// oldest is gone and nothing has taken its place.
    pub fn update(
        &mut self,
        save: usize,
        memory: &Memory,
        what: What,
        partial: bool,
        device: &mut dyn Transfers,
    ) -> Result<(), StateError> {
        let buffer = if self.kept.len() >= self.most { self.kept.pop_front().map(|c| c.blob) } else { None };
        let blob = memory.save(what, partial, buffer.unwrap_or_default(), device)?;
        let (positions, tokens) = memory.positions(what);
        self.kept.push_back(Checkpoint { save, positions, tokens, blob });
        Ok(())
    }

    /// The checkpoint of that number, if it is still kept.
    pub fn find(&self, save: usize) -> Option<&Checkpoint> {
        self.kept.iter().find(|c| c.save == save)
    }
}
