//! Precision models: what a device is allowed to do to the numbers, as data.

use serde::Serialize;

use crate::formats::ElemType;

/// A rounding of operands before they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Conversion {
    /// Operands are used as they are.
    None,
    /// Rounded to f16.
    F16,
}

impl Conversion {
    /// The relative error of a conversion: half a unit in the last place of the target.
    pub fn relative(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::F16 => 2f64.powi(-11),
        }
    }

    /// The absolute error near zero: half of the smallest subnormal.
    pub fn absolute(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::F16 => 2f64.powi(-25),
        }
    }

    /// The largest magnitude that survives.
    pub fn largest(self) -> f64 {
        match self {
            Self::None => f64::from(f32::MAX),
            Self::F16 => 65504.0,
        }
    }

    /// Whether a value is unchanged by the conversion.
    pub fn keeps(self, value: f64) -> bool {
        match self {
            Self::None => true,
            // Through f32: every value asked about is one, so nothing is rounded twice.
            Self::F16 => f64::from(half::f16::from_f32(value as f32)) == value,
        }
    }
}

/// Type of the sums of one accumulation stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sums {
    /// 24-bit sums.
    F32,
    /// 11-bit sums.
    F16,
}

impl Sums {
    /// Unit roundoff.
    pub fn unit(self) -> f64 {
        match self {
            Self::F32 => 2f64.powi(-24),
            Self::F16 => 2f64.powi(-11),
        }
    }

    /// Half of the smallest subnormal result, or the smallest normal where results are flushed.
    pub fn underflow(self, flushes: bool) -> f64 {
        match (self, flushes) {
            (Self::F32, false) => 2f64.powi(-149),
            (Self::F32, true) => 2f64.powi(-126),
            (Self::F16, _) => 2f64.powi(-25),
        }
    }

    /// Integers up to this add without rounding.
    pub fn exact_integers(self) -> f64 {
        1.0 / self.unit()
    }

    /// The largest finite sum.
    pub fn largest(self) -> f64 {
        match self {
            Self::F32 => f64::from(f32::MAX),
            Self::F16 => 65504.0,
        }
    }
}

/// One accumulation stage: how many roundings lie on one output's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// Type of the sums.
    pub sums: Sums,
    /// Roundings that grow with k: one per this many columns.
    pub columns_per_rounding: usize,
    /// Roundings that don't.
    pub fixed_roundings: usize,
}

impl Stage {
    /// Roundings on one output's path for rows of `k` columns.
    pub fn roundings(&self, k: usize) -> f64 {
        (k.div_ceil(self.columns_per_rounding) + self.fixed_roundings) as f64
    }
}

/// What a device may do between exact operands and an f32 result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Model {
    /// Name in reports.
    pub name: &'static str,
    /// Rounding of weights.
    pub weights: Conversion,
    /// Rounding of activations.
    pub activations: Conversion,
    /// Accumulation stages.
    pub stages: Vec<Stage>,
    /// Subnormal operands and results may become zero.
    pub flushes: bool,
    /// Blocks are summed as code·x and scaled afterwards: a rounding near zero is scaled with them, and sums
    /// may overflow before the scale is applied.
    pub scales_sums: bool,
}

impl Model {
    /// f32 throughout, with one stage of `k / columns_per_rounding + fixed_roundings` roundings.
    fn f32(name: &'static str, columns_per_rounding: usize, fixed_roundings: usize) -> Self {
        Model {
            name,
            weights: Conversion::None,
            activations: Conversion::None,
            stages: vec![Stage { sums: Sums::F32, columns_per_rounding, fixed_roundings }],
            flushes: false,
            scales_sums: false,
        }
    }
}

/// What decides which model applies to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// Weight type.
    pub weights: ElemType,
    /// One token takes another path than many.
    pub tokens: usize,
    /// The device flushes subnormals.
    pub flushes: bool,
}

/// The model of a device's expert matmul.
///
/// Our own kernels, counted from their code:
/// - `gemv` (one token, mxfp4): one product and 31 additions in a block, one rounding where the scaled sum is
///   subnormal, one addition per further block of a lane group's share (every fourth block), three to join the
///   groups: ⌈k/128⌉ + 35 at most.
/// - everything else adds k products in order: one rounding for a product and k − 1 for the additions. A device that
///   contracts both, or adds partial sums, only saves roundings.
pub fn of_device(a: &Arithmetic) -> Model {
    let mut model = match (a.weights, a.tokens) {
        (ElemType::Mxfp4, 1) => Model { scales_sums: true, ..Model::f32("f32 sums, block scale last", 4 * 32, 35) },
        _ => Model::f32("f32 sums", 1, 0),
    };
    model.flushes = a.flushes;
    model
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_survival() {
        let c = Conversion::F16;
        assert!(c.keeps(2048.0) && !c.keeps(2049.0) && c.keeps(2f64.powi(-24)) && !c.keeps(2f64.powi(-25)));
        assert!(c.keeps(65504.0) && !c.keeps(65520.0) && Conversion::None.keeps(2049.0));
    }

    #[test]
    fn stages_count_roundings() {
        let s = Stage { sums: Sums::F32, columns_per_rounding: 128, fixed_roundings: 40 };
        assert_eq!((s.roundings(32), s.roundings(128), s.roundings(129)), (41.0, 41.0, 42.0));
        assert_eq!(Sums::F32.exact_integers(), 16_777_216.0);
    }

    #[test]
    fn the_path_decides() {
        let a = |weights, tokens| of_device(&Arithmetic { weights, tokens, flushes: true });
        assert!(a(ElemType::Mxfp4, 1).scales_sums);
        assert!(!a(ElemType::Mxfp4, 2).scales_sums);
        assert!(!a(ElemType::F16, 1).scales_sums);
        assert!(a(ElemType::F16, 1).flushes);
    }
}
