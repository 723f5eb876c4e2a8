//! Products of matrices: what sums over columns cost at least, on the vector units of any host.
//!
//! Right values need f64. The sums of magnitudes that only bounds are made of
//! do with f32, each row scaled by a power of two so that nothing overflows.
//! Which vector units there are decides the order of additions, and so the last
//! bits of these sums, but not whether an element is exact.
//! A few rows are not worth the copies that a product of matrices makes of both
//! operands: they are multiplied one by one, all sums at once in f64.

use ndarray::{Array2, ArrayView2, Axis, Zip};
use pulp::{Arch, NullaryFnOnce};

/// Sums of magnitudes in f32 are raised by this in a bound: partial sums of a few hundred terms are added in f32.
pub(super) const RAISE: f64 = 1.0 + 1.0 / 1024.0;

/// |v| and v² of the rows of a matrix, in f32, scaled.
#[derive(Clone, Debug)]
pub(super) struct Magnitudes {
    abs: Array2<f32>,
    squares: Array2<f32>,
    /// The power of two that each row was divided by; 0 for a row of zeros.
    scales: Vec<f64>,
}

impl Magnitudes {
    /// `largest` are the largest magnitudes of the rows. A row with an infinity comes out wrong, and is of no use: no
    /// output of it has a bound.
    pub(super) fn new(rows: ArrayView2<'_, f64>, largest: impl Iterator<Item = f64>) -> Self {
        let scales: Vec<f64> = largest.map(power_below).collect();
        let (mut abs, mut squares) = (Array2::zeros(rows.dim()), Array2::zeros(rows.dim()));
        for (row, scale) in scales.iter().enumerate().filter(|(_, scale)| **scale != 0.0) {
            let (from, mut abs, mut squares) = (rows.row(row), abs.row_mut(row), squares.row_mut(row));
            if let (Some(from), Some(abs), Some(squares)) =
                (from.as_slice(), abs.as_slice_mut(), squares.as_slice_mut())
            {
                Arch::new().dispatch(Scaled { from, factor: 1.0 / scale, abs, squares });
            } else {
                debug_assert!(false, "every caller's rows lie in one piece");
            }
        }
        Magnitudes { abs, squares, scales }
    }

    /// Some of the rows, in any order.
    pub(super) fn select(&self, rows: &[usize]) -> Self {
        Magnitudes {
            abs: self.abs.select(Axis(0), rows),
            squares: self.squares.select(Axis(0), rows),
            scales: rows.iter().map(|row| self.scales[*row]).collect(),
        }
    }

    /// Σ|v||v'| and Σ(v·v')² for each row of this and each row of the other.
    pub(super) fn sums(&self, other: &Magnitudes) -> (Array2<f64>, Array2<f64>) {
        // What products below the range of f32 may have lost, in units of the largest of a row.
        let lost = self.abs.ncols() as f64 * 2f64.powi(-126);
        let unscaled = |products: Array2<f32>, scale: &dyn Fn(f64) -> f64| {
            let mut sums = products.mapv(|sum| f64::from(sum) + lost);
            for (mut row, own) in sums.rows_mut().into_iter().zip(&self.scales) {
                Zip::from(&mut row).and(&other.scales).for_each(|sum, other| *sum *= scale(own * other));
            }
            sums
        };
        (
            unscaled(self.abs.dot(&other.abs.t()), &|scale| scale),
            unscaled(self.squares.dot(&other.squares.t()), &|scale| scale * scale),
        )
    }
}

/// Writes |v|·factor and its square. Loops for vector units are named types: a closure would be compiled for the plainest
/// processor and only called from code for this one.
struct Scaled<'a> {
    from: &'a [f64],
    factor: f64,
    abs: &'a mut [f32],
    squares: &'a mut [f32],
}

impl NullaryFnOnce for Scaled<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for ((v, a), s) in self.from.iter().zip(self.abs).zip(self.squares) {
            *a = (v.abs() * self.factor) as f32;
            *s = *a * *a;
        }
    }
}

/// The largest power of two that is not above a magnitude; 0 for 0.
fn power_below(magnitude: f64) -> f64 {
    f64::from_bits(magnitude.to_bits() & 0x7ff << 52)
}

/// Rows up to which [`dot`] is faster than products of matrices: measured with 64 to 2,880 columns.
pub(super) const FEW_ROWS: usize = 4;

/// Lanes of the sums.
const LANES: usize = 16;

/// Σ w·x, Σ|w||x| and Σ(w·x)² of one row of each.
///
/// Most products of a stored weight and an activation have at most 48 significant bits and are exact in f64; the others
/// are rounded at 2^-53, far below any bound.
pub(super) fn dot(w: &[f64], x: &[f64]) -> [f64; 3] {
    Arch::new().dispatch(Dot { w, x })
}

struct Dot<'a> {
    w: &'a [f64],
    x: &'a [f64],
}

impl NullaryFnOnce for Dot<'_> {
    type Output = [f64; 3];

    #[inline(always)]
    fn call(self) -> [f64; 3] {
        let (mut y, mut s, mut r2) = ([0.0f64; LANES], [0.0f64; LANES], [0.0f64; LANES]);
        let mut add = |l: usize, w: f64, x: f64| {
            let product = w * x;
            y[l] += product;
            s[l] += product.abs();
            r2[l] += product * product;
        };
        let ((w_body, w_tail), (x_body, x_tail)) = (self.w.as_chunks::<LANES>(), self.x.as_chunks::<LANES>());
        for (w, x) in w_body.iter().zip(x_body) {
            for l in 0..LANES {
                add(l, w[l], x[l]);
            }
        }
        w_tail.iter().zip(x_tail).enumerate().for_each(|(l, (w, x))| add(l, *w, *x));
        [y.iter().sum(), s.iter().sum(), r2.iter().sum()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(a: &[f64], b: &[f64]) -> (f64, f64) {
        let of = |row: &[f64]| {
            let largest = row.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            let rows = ArrayView2::from_shape((1, row.len()), row).unwrap();
            Magnitudes::new(rows, [largest].into_iter())
        };
        let (s, r2) = of(a).sums(&of(b));
        (s[[0, 0]], r2[[0, 0]])
    }

    #[test]
    fn sums_of_integers() {
        assert_eq!(sums(&[1.0, -2.0, 3.0], &[4.0, 5.0, -6.0]), (32.0, 16.0 + 100.0 + 324.0));
        assert_eq!(sums(&[0.0, 0.0], &[4.0, 5.0]), (0.0, 0.0));
    }

    #[test]
    fn dots_of_odd_lengths() {
        for k in [1, 15, 16, 17, 33, 100] {
            let w: Vec<f64> = (0..k).map(|i| f64::from(i % 7 - 3)).collect();
            let x: Vec<f64> = (0..k).map(|i| f64::from(i % 5 - 2)).collect();
            let products = || w.iter().zip(&x).map(|(w, x)| w * x);
            let [y, s, r2] = dot(&w, &x);
            assert_eq!((y, s), (products().sum(), products().map(f64::abs).sum()));
            assert_eq!(r2, products().map(|p| p * p).sum::<f64>());
        }
    }

    /// No f32 could hold these sums, nor the smaller terms of the last one; what is lost there is added.
    #[test]
    fn any_range_of_numbers() {
        for scale in [2f64.powi(-140), 2f64.powi(120)] {
            let (s, r2) = sums(&[3.0 * scale, scale], &[scale, -scale]);
            approx::assert_relative_eq!(s / scale / scale, 4.0, max_relative = 1e-6);
            approx::assert_relative_eq!(r2 / scale / scale / scale / scale, 10.0, max_relative = 1e-6);
        }
        let (s, r2) = sums(&[1.0, 2f64.powi(-140)], &[0.0, 1.0]);
        assert!(s >= 2f64.powi(-140) && r2 >= 2f64.powi(-280) && s < 2f64.powi(-120));
    }
}
