//! Drawing shapes and recipes: a thin layer over a portable generator.
//!
//! Everything drawn ends up in the id, so this stream may change between
//! versions of the crate without changing what an id means.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

/// A source of shapes.
pub struct Draw {
    rng: ChaCha8Rng,
    /// Operations that the case being drawn may cost.
    pub operations: u64,
    /// Input elements that the case being drawn may have.
    pub input_elements: u64,
}

impl Draw {
    /// A drawer with budgets drawn too: log-uniform, so that most cases are small and some are not.
    pub fn new(rng: ChaCha8Rng) -> Self {
        let mut draw = Draw { rng, operations: 0, input_elements: 0 };
        draw.operations = draw.log_uniform(1 << 10, 1 << 23);
        draw.input_elements = draw.log_uniform(1 << 12, 1 << 22);
        draw
    }

    /// A number in `low..=high`, every factor of two equally likely.
    pub fn log_uniform(&mut self, low: u64, high: u64) -> u64 {
        let (low, high) = (low.max(1), high.max(low).max(1));
        let bits = self.rng.random_range(low.ilog2()..=high.ilog2());
        let from = (1u64 << bits).max(low);
        let to = (1u64 << bits).checked_mul(2).map_or(high, |top| (top - 1).min(high));
        self.rng.random_range(from..=to)
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        self.rng.random_range(low..=high.max(low))
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_range(0..n) == 0
    }

    /// One of the values.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.random_range(0..from.len())]
    }

    /// Two times in three one of the edge values within `low..=high`, else log-uniform.
    pub fn edge(&mut self, edges: &[usize], low: usize, high: usize) -> usize {
        let fitting: Vec<usize> = edges.iter().copied().filter(|v| (low..=high).contains(v)).collect();
        if !fitting.is_empty() && !self.one_in(3) {
            return self.pick(&fitting);
        }
        self.log_uniform(low as u64, high as u64) as usize
    }

    /// The next 32 bits.
    pub fn bits32(&mut self) -> u32 {
        self.rng.random()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::rand_core::SeedableRng;

    #[test]
    fn draws_stay_in_range() {
        let mut d = Draw::new(ChaCha8Rng::from_seed([3; 32]));
        for _ in 0..2000 {
            assert!((5..=77).contains(&d.log_uniform(5, 77)));
            assert!((3..=9).contains(&d.edge(&[1, 4, 100], 3, 9)));
            assert_eq!(d.between(4, 4), 4);
        }
        assert_eq!(d.log_uniform(0, 0), 1);
    }
}
