//! Blocks of the types that only a build decodes: random bytes, and scales that a recipe chooses.
//!
//! Codes cannot be chosen, since nothing here knows what they mean, so recipes that ask for certain values have no such
//! weights. Any byte is a legal code in each of these formats.

use half::f16;

use super::Data;
use super::distributions::{finite_f16, heavy, power_of_two, sign, uniform};
use crate::formats::by_build::{ByBuild, Scales};
use crate::stream::{Stream, below, unit};

/// Words of the stream per block: those from here on are for scales.
const SCALE_WORDS: usize = 56;
const WORDS: usize = 64;

/// The recipes that say nothing of single values.
pub(super) const RECIPES: [Data; 8] =
    [Data::Normal, Data::Uniform, Data::Heavy, Data::Huge, Data::Tiny, Data::Zeros, Data::Scales, Data::Loud];

/// Fills block `index` of a row, whose stream is given.
pub(super) fn fill(format: &ByBuild, data: Data, stream: Stream, index: usize, block: &mut [u8]) {
    let word = |i: usize| stream.word((WORDS * index + i) as u64);
    for (i, bytes) in block.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&word(i).to_le_bytes()[..bytes.len()]);
    }
    let is_zero = data == Data::Zeros && stream.at(1).one_in(index as u64, 2);
    for i in 0..format.count() {
        let bits = match format.scales {
            _ if is_zero => 0,
            Scales::Ue4m3(_) => u16::from(byte_scale(data, word(SCALE_WORDS + i))),
            Scales::F16(_) | Scales::Spread(_) => half_scale(format, data, word(SCALE_WORDS + i)).to_bits(),
        };
        format.set_scale(i, bits, block);
    }
}

fn half_scale(format: &ByBuild, data: Data, word: u64) -> f16 {
    let usual = power_of_two(format.unit_scale);
    let value = match data {
        Data::Scales => return finite_f16(word),
        Data::Heavy => heavy(word) * usual,
        Data::Huge => uniform(word) * 65504.0,
        Data::Tiny => sign(word) * (word >> 54) as f64 * power_of_two(-24),
        _ => sign(word) * (0.5 + unit(word) / 2.0) * usual,
    };
    f16::from_f32(value as f32)
}

/// An e4m3 scale: four bits of exponent with bias 7, three of mantissa. 0x7e is the largest number.
fn byte_scale(data: Data, word: u64) -> u8 {
    let between = |low: u8, high: u8| low + below(word, u64::from(high - low) + 1) as u8;
    match data {
        Data::Scales => between(0, 0x7e),
        Data::Heavy => between(0x10, 0x5f),
        Data::Huge => between(0x70, 0x7e),
        // The subnormal numbers.
        Data::Tiny => between(1, 7),
        _ => between(0x20, 0x3f),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::ElemType;

    fn blocks(ty: ElemType, data: Data, count: usize) -> Vec<Vec<u8>> {
        let format = ty.by_build().unwrap();
        let block = |i| {
            let mut block = vec![0; format.block_bytes];
            fill(&format, data, Stream::new(7, 7), i, &mut block);
            block
        };
        (0..count).map(block).collect()
    }

    fn f16_at(block: &[u8], at: usize) -> f32 {
        f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
    }

    #[test]
    fn no_byte_is_constant_and_scales_are_of_their_recipe() {
        for ty in ElemType::DECODED_BY_BUILD {
            for data in RECIPES {
                let blocks = blocks(ty, data, 64);
                let format = ty.by_build().unwrap();
                let Scales::F16(at) = format.scales else { continue };
                for at in at {
                    let scales: Vec<f32> = blocks.iter().map(|b| f16_at(b, *at)).collect();
                    assert!(scales.iter().all(|s| s.is_finite()), "{ty} {data}");
                    assert!(scales.iter().any(|s| *s != scales[0]), "{ty} {data}");
                    if data == Data::Normal {
                        let usual = power_of_two(format.unit_scale) as f32;
                        assert!(scales.iter().all(|s| (0.5..=1.0).contains(&(s.abs() / usual))), "{ty}");
                    }
                }
                let is_code = |i: usize| !at.iter().any(|at| (*at..at + 2).contains(&i));
                for i in (0..format.block_bytes).filter(|i| is_code(*i)) {
                    assert!(blocks.iter().any(|b| b[i] != blocks[0][i]), "{ty} {data} byte {i}");
                }
            }
        }
    }

    #[test]
    fn every_e4m3_scale_occurs_and_none_is_nan() {
        let blocks = blocks(ElemType::Nvfp4, Data::Scales, 1000);
        let seen: std::collections::BTreeSet<u8> = blocks.iter().flat_map(|b| b[..4].to_vec()).collect();
        assert_eq!(seen.into_iter().collect::<Vec<u8>>(), (0..=0x7e).collect::<Vec<u8>>());
    }

    #[test]
    fn half_of_the_blocks_are_zero_where_asked() {
        let zeros = blocks(ElemType::Iq1M, Data::Zeros, 200)
            .iter()
            .filter(|b| b[48..].iter().skip(1).step_by(2).all(|h| *h < 16))
            .count();
        assert!((70..130).contains(&zeros), "{zeros}");
    }
}
