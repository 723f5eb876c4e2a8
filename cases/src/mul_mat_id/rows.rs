//! Sums over rows: dot products, and what bounds need to know of a row of weights or activations.

use pulp::Arch;

use super::exact::ACTIVATION_BLOCK;
use crate::formats::{ElemType, mxfp4_scale};
use crate::inputs::Row;
use crate::model::Conversion;

/// y = Σ w·x, S = Σ|w||x| and R² = Σ(w·x)² of one output element.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub(super) struct Element {
    pub(super) y: f64,
    pub(super) s: f64,
    pub(super) r2: f64,
}

/// What bounds need of one row of weights or activations.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowSums {
    pub(super) sum_abs: f64,
    pub(super) sum_squares: f64,
    pub(super) max_abs: f64,
    /// Every value is a multiple of this power of two.
    pub(super) unit: f64,
    /// Every value survives a conversion to f16, to bf16.
    pub(super) fits_f16: bool,
    pub(super) fits_bf16: bool,
    /// Sum of the magnitudes of the block scales (weights whose sums may be scaled).
    pub(super) scales: f64,
}

impl RowSums {
    pub(super) fn new(values: impl Iterator<Item = f64>) -> Self {
        let mut sums = RowSums {
            sum_abs: 0.0,
            sum_squares: 0.0,
            max_abs: 0.0,
            unit: f64::INFINITY,
            fits_f16: true,
            fits_bf16: true,
            scales: 0.0,
        };
        let mut lowest = i32::MAX;
        for v in values {
            sums.sum_abs += v.abs();
            sums.sum_squares += v * v;
            sums.max_abs = sums.max_abs.max(v.abs());
            sums.fits_f16 &= Conversion::F16.keeps(v);
            sums.fits_bf16 &= Conversion::Bf16.keeps(v);
            lowest = lowest.min(lowest_bit(v));
        }
        if lowest != i32::MAX {
            sums.unit = 2f64.powi(lowest);
        }
        sums
    }

    /// Whether every value survives a conversion.
    pub(super) fn survives(&self, conversion: Conversion) -> bool {
        match conversion {
            Conversion::None => true,
            Conversion::F16 => self.fits_f16,
            Conversion::Bf16 => self.fits_bf16,
        }
    }
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

/// One row of decoded weights, with its offset parts where the type has them.
pub(super) struct Weights {
    /// w, k values.
    pub(super) w: Vec<f64>,
    /// o, k values; empty where it is zero.
    pub(super) o: Vec<f64>,
    /// |p| + |o|; empty where o is zero.
    pub(super) plus: Vec<f64>,
    /// The values were rounded when they were decoded.
    rounded: bool,
}

impl Weights {
    pub(super) fn new(k: usize) -> Self {
        Weights { w: vec![0.0; k], o: Vec::new(), plus: Vec::new(), rounded: false }
    }

    /// Decodes a stored row into the same memory.
    pub(super) fn decode(&mut self, row: &Row<'_>) {
        row.decode(&mut self.w);
        self.rounded = row.ty.rounds_when_decoded();
        self.plus.clear();
        if let Some(share) = row.ty.largest_parts() {
            self.plus.extend(self.w.iter().map(|w| w.abs() * share));
        } else if row.ty.has_offsets() {
            self.o.resize(self.w.len(), 0.0);
            row.ty.offsets(row.stored, false, &mut self.o);
            self.plus.extend(self.w.iter().zip(&self.o).map(|(w, o)| (w - o).abs() + o.abs()));
        }
    }

    /// Sums of the row. Where there are offset parts their bits count as well: a device may multiply them apart.
    pub(super) fn sums(&self) -> RowSums {
        let sums = RowSums::new(self.w.iter().copied());
        let parts = self.w.iter().zip(&self.o).flat_map(|(w, o)| [w - o, *o]);
        // A sum of rounded weights is not the device's, which rounds elsewhere: nothing is exact.
        let unit = if self.rounded { 0.0 } else { sums.unit.min(RowSums::new(parts).unit) };
        RowSums { unit, ..sums }
    }

    /// Σ|w| and Σw² by activation block.
    pub(super) fn block_sums(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.w
            .chunks(ACTIVATION_BLOCK)
            .map(|b| b.iter().fold((0.0, 0.0), |(sum, squares), w| (sum + w.abs(), squares + w * w)))
    }
}

/// Lanes of the sums: a fixed number, so that every host adds in the same order.
const LANES: usize = 16;

/// The sums of one output element.
///
/// A product of a stored weight and an f32 activation has at most 48 significant bits, so it is exact in f64.
pub(super) fn dot<X: Copy + Into<f64>>(w: &[f64], x: &[X]) -> Element {
    Arch::new().dispatch(
        #[inline(always)]
        || dot_lanes(w, x),
    )
}

#[inline(always)]
fn dot_lanes<X: Copy + Into<f64>>(w: &[f64], x: &[X]) -> Element {
    let (mut y, mut s, mut r2) = ([0.0f64; LANES], [0.0f64; LANES], [0.0f64; LANES]);
    let (w_body, w_tail) = w.as_chunks::<LANES>();
    let (x_body, x_tail) = x.as_chunks::<LANES>();
    for (w, x) in w_body.iter().zip(x_body) {
        for l in 0..LANES {
            let product = w[l] * x[l].into();
            y[l] += product;
            s[l] += product.abs();
            r2[l] += product * product;
        }
    }
    for (l, (w, x)) in w_tail.iter().zip(x_tail).enumerate() {
        let product = w * (*x).into();
        y[l] += product;
        s[l] += product.abs();
        r2[l] += product * product;
    }
    Element { y: y.iter().sum(), s: s.iter().sum(), r2: r2.iter().sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_is_exact_for_integers_and_odd_lengths() {
        for k in [1, 15, 16, 17, 33, 100] {
            let w: Vec<f64> = (0..k).map(|i| f64::from(i % 7 - 3)).collect();
            let x: Vec<f32> = (0..k).map(|i| (i % 5 - 2) as f32).collect();
            let want: f64 = w.iter().zip(&x).map(|(w, x)| w * f64::from(*x)).sum();
            let magnitude: f64 = w.iter().zip(&x).map(|(w, x)| (w * f64::from(*x)).abs()).sum();
            let e = dot(&w, &x);
            assert_eq!((e.y, e.s), (want, magnitude));
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
    fn offset_parts_count_in_the_unit() {
        let mut row = Weights::new(2);
        (row.w, row.o) = (vec![1.0, 2.0], vec![0.25, 0.25]);
        assert_eq!(row.sums().unit, 0.25);
        row.o.clear();
        assert_eq!(row.sums().unit, 1.0);
    }
}
