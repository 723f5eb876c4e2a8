//! What bounds need to know of a row of weights or activations.

use pulp::{Arch, NullaryFnOnce};

use crate::formats::{ElemType, mxfp4_scale};
use crate::model::Conversion;

/// What bounds need of one row of weights or activations.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowSums {
    pub(super) sum_abs: f64,
    pub(super) sum_squares: f64,
    pub(super) max_abs: f64,
    /// Every value is finite.
    pub(super) is_finite: bool,
    /// Every value is a multiple of this power of two; 0 where that is so small that no sum can be exact.
    pub(super) unit: f64,
    /// Every value survives a conversion to f16, to bf16. Not asked where the unit is 0.
    pub(super) fits_f16: bool,
    pub(super) fits_bf16: bool,
    /// And to tf32.
    pub(super) fits_tf32: bool,
    /// Sum of the magnitudes of the block scales (weights whose sums may be scaled).
    pub(super) scales: f64,
}

impl RowSums {
    pub(super) fn new(values: &[f64]) -> Self {
        let sums = Self::inexact(values);
        let unit = unit(values, sums.max_abs);
        let fits = |c: Conversion| unit > 0.0 && values.iter().all(|v| c.keeps(*v));
        let (fits_f16, fits_bf16) = (fits(Conversion::F16), fits(Conversion::Bf16));
        // tf32 has the fraction of f16 and the exponents of bf16.
        let fits_tf32 = fits_f16 || fits_bf16 || fits(Conversion::Tf32);
        RowSums { unit, fits_f16, fits_bf16, fits_tf32, ..sums }
    }

    /// The same for a row of which no sum is exact in any case: it has no unit.
    pub(super) fn inexact(values: &[f64]) -> Self {
        let [sum_abs, sum_squares, max_abs] = Arch::new().dispatch(Sums(values));
        RowSums {
            sum_abs,
            sum_squares,
            max_abs,
            is_finite: sum_abs.is_finite(),
            unit: 0.0,
            fits_f16: false,
            fits_bf16: false,
            fits_tf32: false,
            scales: 0.0,
        }
    }

    /// Whether every value survives a conversion.
    pub(super) fn survives(&self, conversion: Conversion) -> bool {
        match conversion {
            Conversion::None => true,
            Conversion::F16 => self.fits_f16,
            Conversion::Bf16 => self.fits_bf16,
            Conversion::Tf32 => self.fits_tf32,
        }
    }
}

/// Lanes of the sums: a fixed number, so that every host adds in the same order.
const LANES: usize = 16;

/// Σ|v|, Σv² and the largest |v|.
struct Sums<'a>(&'a [f64]);

impl NullaryFnOnce for Sums<'_> {
    type Output = [f64; 3];

    #[inline(always)]
    fn call(self) -> [f64; 3] {
        let (mut abs, mut squares, mut max) = ([0.0f64; LANES], [0.0f64; LANES], [0.0f64; LANES]);
        let (body, tail) = self.0.as_chunks::<LANES>();
        let mut add = |l: usize, v: f64| {
            let v = v.abs();
            abs[l] += v;
            squares[l] += v * v;
            max[l] = if v > max[l] { v } else { max[l] };
        };
        for chunk in body {
            for (l, v) in chunk.iter().enumerate() {
                add(l, *v);
            }
        }
        tail.iter().enumerate().for_each(|(l, v)| add(l, *v));
        [abs.iter().sum(), squares.iter().sum(), max.into_iter().fold(0.0, f64::max)]
    }
}

/// The power of two that every value is a multiple of; infinite for a row of zeros. The longest sums that can be exact
/// have 24 bits: a row that needs more beside its largest value has no unit, and the rest of it is not looked at.
fn unit(values: &[f64], max_abs: f64) -> f64 {
    let needed = (max_abs.to_bits() >> 52) as i32 - 1023 - 24;
    let mut lowest = i32::MAX;
    for v in values {
        lowest = lowest.min(lowest_bit(*v));
        if lowest < needed {
            return 0.0;
        }
    }
    if lowest == i32::MAX { f64::INFINITY } else { 2f64.powi(lowest) }
}

/// The exponent of the lowest set bit of a normal f64; `i32::MAX` for zero and what is not finite.
fn lowest_bit(v: f64) -> i32 {
    if v == 0.0 || !v.is_finite() {
        return i32::MAX;
    }
    let bits = v.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1075;
    exponent + (bits | 1 << 52).trailing_zeros() as i32
}

/// Sum of the magnitudes of a row's block scales. Only mxfp4 has a path that scales sums.
pub(super) fn block_scales(ty: ElemType, row: &[u8]) -> f64 {
    match ty {
        ElemType::Mxfp4 => row.chunks_exact(ty.block_bytes()).map(|b| mxfp4_scale(b[0])).sum(),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_odd_lengths() {
        for k in [1, 15, 16, 17, 33, 100] {
            let v: Vec<f64> = (0..k).map(|i| f64::from(i % 7 - 3)).collect();
            let sums = RowSums::new(&v);
            assert_eq!(sums.sum_abs, v.iter().map(|v| v.abs()).sum::<f64>());
            assert_eq!(sums.sum_squares, v.iter().map(|v| v * v).sum::<f64>());
            assert_eq!(sums.max_abs, 3.0);
            assert!(sums.is_finite && !RowSums::new(&[1.0, f64::NAN]).is_finite);
        }
    }

    #[test]
    fn lowest_bits() {
        assert_eq!(lowest_bit(1.0), 0);
        assert_eq!(lowest_bit(12.0), 2);
        assert_eq!(lowest_bit(-0.375), -3);
        assert_eq!(lowest_bit(f64::from(f32::from_bits(1))), -149);
        assert_eq!(lowest_bit(0.0), i32::MAX);
    }

    #[test]
    fn units() {
        let unit = |values: &[f64]| RowSums::new(values).unit;
        assert_eq!(unit(&[4.0, 6.0, 0.0]), 2.0);
        assert_eq!(unit(&[0.0]), f64::INFINITY);
        // 2^24 and 1 add up in f32, 2^25 and 1 do not.
        assert_eq!((unit(&[16_777_216.0, 1.0]), unit(&[33_554_432.0, 1.0])), (1.0, 0.0));
    }
}
