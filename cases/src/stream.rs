//! The counter-based stream behind every generated value.
//!
//! A value depends on (seed, tensor, coordinates) and on nothing else: no state
//! is carried from one value to the next. A tensor may therefore be filled in
//! any order, by any number of threads, and a smaller shape sees the same values
//! at the coordinates it still has.
//!
//! The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood,
//! "Fast splittable pseudorandom number generators", 2014, variant 13 of
//! Stafford's mixers). Only integer arithmetic is used, so the bytes are equal
//! on every host. A change to this file changes the inputs of every case id that
//! was ever written down; `golden/` guards against that.

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A point in the tree of streams: [`at`](Stream::at) descends by a coordinate,
/// [`word`](Stream::word) reads a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(u64);

impl Stream {
    /// The stream of one purpose (`domain` is a fixed, unique number per purpose) under a case seed.
    pub fn new(seed: u64, domain: u64) -> Self {
        Stream(mix(seed.wrapping_add(GOLDEN_GAMMA))).at(domain)
    }

    /// The sub-stream at a coordinate.
    pub fn at(self, coordinate: u64) -> Self {
        Stream(mix(self.0 ^ mix(coordinate.wrapping_add(1).wrapping_mul(GOLDEN_GAMMA))))
    }

    /// The `index`-th 64-bit value of this stream.
    pub fn word(self, index: u64) -> u64 {
        mix(self.0.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN_GAMMA)))
    }

    /// A value in `0..n` (0 for an empty range), biased by less than n / 2^64.
    pub fn below(self, index: u64, n: u64) -> u64 {
        below(self.word(index), n)
    }

    /// True once in `n` times.
    pub fn one_in(self, index: u64, n: u64) -> bool {
        self.below(index, n) == 0
    }
}

/// Maps a uniform word to `0..n` by the high half of a 128-bit product.
pub fn below(word: u64, n: u64) -> u64 {
    ((u128::from(word) * u128::from(n)) >> 64) as u64
}

/// Maps a uniform word to [0, 1) with 53 bits.
pub fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_depend_on_every_coordinate() {
        let base = Stream::new(1, 2).at(3).word(4);
        assert_ne!(base, Stream::new(2, 2).at(3).word(4));
        assert_ne!(base, Stream::new(1, 3).at(3).word(4));
        assert_ne!(base, Stream::new(1, 2).at(4).word(4));
        assert_ne!(base, Stream::new(1, 2).at(3).word(5));
        assert_ne!(Stream::new(1, 2).at(3).at(4), Stream::new(1, 2).at(4).at(3));
    }

    /// The values of version 1, computed independently of this code's structure:
    /// SplitMix64 seeded with 0 starts with 0xe220a8397b1dcdaf.
    #[test]
    fn mixing_is_splitmix64() {
        assert_eq!(Stream(0).word(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(Stream(0).word(1), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn below_stays_below_and_reaches_both_ends() {
        let s = Stream::new(7, 7);
        let seen: Vec<u64> = (0..200).map(|i| s.below(i, 5)).collect();
        assert!((0..5).all(|v| seen.contains(&v)) && seen.iter().all(|&v| v < 5));
        assert_eq!(s.below(0, 0), 0);
        assert_eq!(below(u64::MAX, 3), 2);
    }

    #[test]
    fn unit_is_half_open() {
        assert_eq!(unit(0), 0.0);
        assert!(unit(u64::MAX) < 1.0);
    }
}
