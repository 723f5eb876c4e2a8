//! Precision models: what a device is allowed to do to the numbers, as data.

pub mod probe;
mod table;

use serde::Serialize;

pub use table::{Arithmetic, Kernels, Shape, looser_than_unknown, of_device};

/// A rounding of operands before they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Conversion {
    /// Operands are used as they are.
    None,
    /// Rounded to f16.
    F16,
    /// Rounded to bf16.
    Bf16,
    /// The upper 19 bits of an f32, rounded to or cut off: tf32.
    Tf32,
}

impl Conversion {
    /// The relative error of a conversion: half a unit in the last place of the target, and a whole one where bits may be
    /// cut off.
    pub fn relative(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::F16 => 2f64.powi(-11),
            Self::Bf16 => 2f64.powi(-8),
            Self::Tf32 => 2f64.powi(-10),
        }
    }

    /// The absolute error near zero: half of the smallest subnormal f16, or the smallest normal one where a device
    /// flushes those. bf16 and tf32 have the exponents of f32.
    pub fn absolute(self, flushes_f16: bool) -> f64 {
        match (self, flushes_f16) {
            (Self::None | Self::Bf16 | Self::Tf32, _) => 0.0,
            (Self::F16, false) => 2f64.powi(-25),
            (Self::F16, true) => 2f64.powi(-14),
        }
    }

    /// The largest magnitude that survives.
    pub fn largest(self) -> f64 {
        match self {
            Self::None | Self::Bf16 | Self::Tf32 => f64::from(f32::MAX),
            Self::F16 => 65504.0,
        }
    }

    /// Whether a value is unchanged by the conversion.
    pub fn keeps(self, value: f64) -> bool {
        match self {
            Self::None => true,
            // Through f32: every value asked about is one, so nothing is rounded twice.
            Self::F16 => f64::from(half::f16::from_f32(value as f32)) == value,
            Self::Bf16 => f64::from(half::bf16::from_f32(value as f32)) == value,
            Self::Tf32 => (value as f32).to_bits().trailing_zeros() >= 13 && f64::from(value as f32) == value,
        }
    }
}

/// What a device makes of the activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activations {
    /// They are multiplied after a conversion of each.
    Converted(Conversion),
    /// They are quantised to 8 bits in blocks.
    Quantised(Quantiser),
}

/// An 8-bit quantiser of activations: d = max|x| / 127 in a block, codes −127..=127.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Quantiser {
    /// Activations that share a scale: 32, or 256.
    pub block: usize,
    /// The scale is stored in f16; else it is kept in f32.
    pub f16_scale: bool,
    /// The sum of a block is stored in f16 beside it, for the offset parts of weights.
    pub f16_sums: bool,
    /// How codes are found, where that is known: then the device's codes are computed here, and only the
    /// accumulation remains uncertain.
    pub rounding: Option<Rounding>,
    /// How the parts of a product meet.
    pub parts: Parts,
}

/// How a device that quantises activations multiplies the parts of a weight, w = p + o.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Parts {
    /// The stored sum is that of the activations, not that of their codes: the error of a code meets p alone.
    pub sums_of_values: bool,
    /// The centres of q4_0 and q5_0 codes are multiplied with the stored sum as well.
    pub centres: bool,
    /// Where scales are multiplied.
    pub scales: Scales,
}

/// Where a device that quantises activations multiplies scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scales {
    /// In f32, and neither a product of scales nor a sum of scaled codes leaves its range where the result is in it.
    #[default]
    Whole,
    /// In f32, one after the other: a sum of codes times one scale may leave the range that the result is in, and so may
    /// the product of both scales.
    Apart,
    /// The products of a block's two scales, and of its minimum and its sum, are rounded to f16.
    HalfProducts,
    /// The scale and the minimum of a part of a block, each times the whole block's, are rounded to f16.
    HalfWeights,
}

impl Scales {
    /// Some are multiplied in f16.
    pub fn in_halves(self) -> bool {
        matches!(self, Self::HalfProducts | Self::HalfWeights)
    }
}

/// How a quantiser finds its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// x·(127 / max), ties to even.
    Even,
    /// x·(1 / d), ties away from zero.
    Away,
}

/// Type of the sums of one accumulation stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sums {
    /// 24-bit sums.
    F32,
    /// 24-bit sums whose addends are aligned and truncated, as tensor cores do it.
    #[serde(rename = "f32 truncated")]
    F32Truncated,
    /// 11-bit sums.
    F16,
}

impl Sums {
    /// Unit roundoff.
    pub fn unit(self) -> f64 {
        match self {
            Self::F32 => 2f64.powi(-24),
            Self::F32Truncated => 2f64.powi(-23),
            Self::F16 => 2f64.powi(-11),
        }
    }

    /// Truncation: errors are up to a whole unit in the last place, and all of one sign.
    pub fn truncates(self) -> bool {
        self == Self::F32Truncated
    }

    /// Half of the smallest subnormal result, or the smallest normal where results are flushed.
    pub fn underflow(self, flushes: bool) -> f64 {
        match (self, flushes) {
            (Self::F32 | Self::F32Truncated, false) => 2f64.powi(-149),
            (Self::F32 | Self::F32Truncated, true) => 2f64.powi(-126),
            (Self::F16, false) => 2f64.powi(-25),
            (Self::F16, true) => 2f64.powi(-14),
        }
    }

    /// The smallest number whose multiples add without rounding near zero: the smallest subnormal, or the smallest
    /// normal where results are flushed.
    pub fn least(self, flushes: bool) -> f64 {
        match (self, flushes) {
            (Self::F32 | Self::F32Truncated, false) => 2f64.powi(-149),
            (Self::F32 | Self::F32Truncated, true) => 2f64.powi(-126),
            (Self::F16, false) => 2f64.powi(-24),
            (Self::F16, true) => 2f64.powi(-14),
        }
    }

    /// Integers up to this add without rounding.
    pub fn exact_integers(self) -> f64 {
        match self {
            Self::F32 => 2f64.powi(24),
            // No bit of an integer is cut off where no sum has more than 24. Upper parts of operands are rounded up by
            // 2^-8 at most, and so are sums of them.
            Self::F32Truncated => 2f64.powi(24) * (1.0 - 2f64.powi(-7)),
            Self::F16 => 2f64.powi(11),
        }
    }

    /// The largest finite sum.
    pub fn largest(self) -> f64 {
        match self {
            Self::F32 | Self::F32Truncated => f64::from(f32::MAX),
            Self::F16 => 65504.0,
        }
    }
}

/// One accumulation stage: how many roundings lie on one output's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// Type of the sums.
    pub sums: Sums,
    /// Roundings for rows of k columns.
    pub roundings: Roundings,
    /// How many products meet in one sum, where that is not the whole row.
    pub products: Option<usize>,
}

impl Stage {
    /// A stage that sums whole rows.
    pub(crate) const fn of_rows(sums: Sums, roundings: Roundings) -> Self {
        Stage { sums, roundings, products: None }
    }
}

/// Roundings (products and additions) on one output's accumulation path: min(⌈k·times / per⌉ + plus, k·times) + fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Roundings {
    /// Numerator of the roundings per column.
    pub times: usize,
    /// Denominator.
    pub per: usize,
    /// Roundings that do not grow with k, in long rows.
    pub plus: usize,
    /// Roundings that do not grow with k, in all rows.
    pub fixed: usize,
}

impl Roundings {
    /// The number for rows of `k` columns.
    pub fn of(&self, k: usize) -> f64 {
        let long = (k * self.times).div_ceil(self.per) + self.plus;
        (long.min(k * self.times) + self.fixed) as f64
    }
}

/// What a device may do between exact operands and an f32 result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Model {
    /// Name in reports.
    pub name: &'static str,
    /// Rounding of weights.
    pub weights: Conversion,
    /// What becomes of activations.
    pub activations: Activations,
    /// Accumulation stages.
    pub stages: Vec<Stage>,
    /// Subnormal operands and results may become zero: f32 ones.
    pub flushes: bool,
    /// And f16 ones.
    pub flushes_f16: bool,
    /// Weights are formed in f32 before they are multiplied, scale, code and minimum together.
    pub forms_weights: bool,
    /// Blocks are summed as code·x and scaled afterwards: a rounding near zero is scaled with them, and sums
    /// may overflow before the scale is applied.
    pub scales_sums: bool,
}

impl Model {
    /// Whether sums of a stage may become zero where they are subnormal.
    pub fn flushes_sums(&self, sums: Sums) -> bool {
        if sums == Sums::F16 { self.flushes_f16 } else { self.flushes }
    }

    /// f32 sums of unconverted operands.
    fn f32(name: &'static str, roundings: Roundings) -> Self {
        Model {
            name,
            weights: Conversion::None,
            activations: Activations::Converted(Conversion::None),
            stages: vec![Stage::of_rows(Sums::F32, roundings)],
            flushes: false,
            flushes_f16: false,
            forms_weights: false,
            scales_sums: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_survival() {
        let c = Conversion::F16;
        assert!(c.keeps(2048.0) && !c.keeps(2049.0) && c.keeps(2f64.powi(-24)) && !c.keeps(2f64.powi(-25)));
        assert!(c.keeps(65504.0) && !c.keeps(65520.0) && Conversion::None.keeps(2049.0));
        let c = Conversion::Tf32;
        assert!(c.keeps(2047.0) && !c.keeps(2049.0) && c.keeps(2f64.powi(100)) && c.keeps(0.0));
    }

    #[test]
    fn stages_count_roundings() {
        let n = |times, per, plus, fixed, k| Roundings { times, per, plus, fixed }.of(k);
        assert_eq!((n(1, 1, 0, 0, 7), n(2, 1, 0, 0, 7), n(1, 1, 0, 8, 7)), (7.0, 14.0, 15.0));
        assert_eq!((n(1, 128, 0, 35, 128), n(1, 128, 0, 35, 129)), (36.0, 37.0));
        // min(k, k/16 + 64) + 8
        assert_eq!((n(1, 16, 64, 8, 10), n(1, 16, 64, 8, 160)), (18.0, 82.0));
        assert_eq!(Sums::F32.exact_integers(), 16_777_216.0);
    }
}
