//! Keys from the stream.

use super::Keys;
use crate::stream::{Stream, below, unit};

const KEYS: u64 = 0x6b;

/// Fills a row of keys.
pub(super) fn fill_keys(keys: Keys, cols: usize, seed: u64, at: [usize; 3], row: &mut [u8]) {
    let stream = at.iter().fold(Stream::new(seed, KEYS), |s, c| s.at(*c as u64));
    let shuffle = Shuffle::new(stream, cols as u64);
    for (i, key) in row.chunks_exact_mut(4).enumerate() {
        let value = key_at(keys, stream.word(i as u64), i, cols, &shuffle);
        key.copy_from_slice(&value.to_le_bytes());
    }
}

/// Keys outside a view: they would win every comparison.
pub(super) fn fill_decoys(seed: u64, bytes: &mut [u8]) {
    let stream = Stream::new(seed, KEYS).at(u64::MAX);
    for (i, key) in bytes.chunks_exact_mut(4).enumerate() {
        let value = if stream.one_in(i as u64, 2) { f32::NEG_INFINITY } else { f32::INFINITY };
        key.copy_from_slice(&value.to_le_bytes());
    }
}

fn key_at(keys: Keys, word: u64, i: usize, cols: usize, shuffle: &Shuffle) -> f32 {
    let sign = if word & 1 == 0 { 1.0f32 } else { -1.0 };
    let uniform = sign * unit(word) as f32;
    match keys {
        Keys::Uniform => uniform,
        Keys::Distinct => shuffle.at(i as u64) as f32,
        Keys::Ties => below(word, 4) as f32 - 1.5,
        Keys::Same => 2.5,
        Keys::Zeros => match word >> 60 {
            0 => uniform,
            _ => sign * 0.0,
        },
        Keys::Inf => match word >> 61 {
            0 => f32::INFINITY,
            1 => f32::NEG_INFINITY,
            _ => uniform,
        },
        Keys::Sub => f32::from_bits((word >> 41) as u32) * sign,
        Keys::Cluster => f32::from_bits(0x3f80_0000 | (word >> 56) as u32),
        Keys::Bits => {
            let bits = (word >> 32) as u32;
            f32::from_bits(if bits & 0x7f80_0000 == 0x7f80_0000 { bits & !0x0080_0000 } else { bits })
        }
        Keys::Sorted => i as f32,
        Keys::Reverse => (cols - i) as f32,
        Keys::Nan => match word >> 61 {
            0 => f32::from_bits(0x7fc0_0000),
            // A negative one with a payload.
            1 => f32::from_bits(0xffc0_0001),
            2 => sign * f32::INFINITY,
            _ => uniform,
        },
    }
}

/// A random permutation of `0..n` that can be asked at any place: i → (a·i + b) mod p restricted to the range by
/// walking the cycle, with p the next power of two and an odd multiplier.
struct Shuffle {
    n: u64,
    mask: u64,
    multiplier: u64,
    offset: u64,
}

impl Shuffle {
    fn new(stream: Stream, n: u64) -> Self {
        let s = stream.at(u64::MAX);
        Shuffle { n, mask: n.next_power_of_two() - 1, multiplier: s.word(0) | 1, offset: s.word(1) }
    }

    fn at(&self, i: u64) -> u64 {
        let mut v = i;
        loop {
            // Both steps are permutations of 0..=mask.
            v = v.wrapping_mul(self.multiplier).wrapping_add(self.offset) & self.mask;
            v ^= v >> (self.mask.count_ones() / 2 + 1);
            if v < self.n {
                return v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::case::Case;
    use crate::formats::read_f32;

    fn keys(data: &str, cols: usize) -> Vec<f32> {
        let case: Case = format!("argsort/c={cols}/data={data}/v1-5").parse().unwrap();
        let mut row = vec![0; 4 * cols];
        case.body().fill_row(case.seed, 0, [0; 3], &mut row);
        read_f32(&row).collect()
    }

    #[test]
    fn shuffles_are_permutations() {
        for n in [1, 2, 3, 7, 8, 9, 1000] {
            let mut seen: Vec<f32> = keys("distinct", n);
            seen.sort_by(f32::total_cmp);
            assert!(seen.iter().enumerate().all(|(i, v)| *v == i as f32), "{n}: {seen:?}");
        }
        assert_ne!(keys("distinct", 100), keys("sorted", 100));
    }

    #[test]
    fn recipes_hold_what_they_name() {
        let distinct = |k: &[f32]| k.iter().map(|v| v.to_bits()).collect::<std::collections::BTreeSet<_>>().len();
        assert_eq!(distinct(&keys("ties", 200)), 4);
        assert_eq!(distinct(&keys("same", 200)), 1);
        let zeros = keys("zeros", 200);
        assert!(zeros.iter().any(|v| v.to_bits() == 0) && zeros.iter().any(|v| v.to_bits() == 1 << 31));
        let inf = keys("inf", 200);
        assert!(inf.contains(&f32::INFINITY) && inf.contains(&f32::NEG_INFINITY) && inf.iter().any(|v| v.is_finite()));
        assert!(keys("sub", 200).iter().all(|v| v.abs() < f32::MIN_POSITIVE));
        assert!(distinct(&keys("sub", 200)) > 150);
        assert!(keys("cluster", 5000).iter().all(|v| (1.0..1.001).contains(v)));
        assert!(keys("bits", 5000).iter().all(|v| v.is_finite()));
        let nan = keys("nan", 200);
        assert!(nan.iter().any(|v| v.is_nan()) && nan.iter().any(|v| v.is_infinite()));
        assert_eq!(keys("reverse", 3), [3.0, 2.0, 1.0]);
    }
}
