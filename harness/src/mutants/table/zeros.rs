//! Devices whose outputs are zero, one for each precision model: a bound that lets zeros pass judges nothing.

use conform_cases::model::Kernels;

use crate::mutants::{Fault, Mutant};

/// One entry.
const fn zeros(id: &'static str, kernels: Kernels, model: &'static str) -> Mutant {
    Mutant {
        id,
        bug: "A38 CUTLASS #2674",
        what: "every output is zero, under the precision model that the name tells",
        op: "mul_mat_id",
        fault: Fault::Zeros { kernels, model },
    }
}

pub(super) const MUTANTS: &[Mutant] = &[
    zeros("zeros-own-f32", Kernels::Own, "f32 sums"),
    zeros("zeros-own-scale-last", Kernels::Own, "f32 sums, block scale last"),
];
