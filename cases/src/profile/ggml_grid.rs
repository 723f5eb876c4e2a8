//! The grid of cases that ggml's own backend test runs for the ops which are here, so that its coverage can be compared.
//!
//! Values are this crate's: uniform weights and activations, routing drawn without repetition. "Shared" cases have one
//! activation row for all slots of a token, plain ones a row each. With one slot the two are the same case, which that
//! test runs twice: here shared cases have a seed of their own.

use crate::case::Case;
use crate::formats::ElemType;
use crate::profile::Profile;

/// Experts, slots used, rows, tokens, columns.
type Shape = [usize; 5];

/// The types of the dense part of the grid.
const DENSE: [ElemType; 11] = [
    ElemType::F32,
    ElemType::F16,
    ElemType::Q8_0,
    ElemType::Q1_0,
    ElemType::Q2_0,
    ElemType::Q4_0,
    ElemType::Q4_1,
    ElemType::Q4K,
    ElemType::Mxfp4,
    ElemType::Nvfp4,
    ElemType::Iq2Xxs,
];

const IQ: [ElemType; 9] = [
    ElemType::Iq1S,
    ElemType::Iq1M,
    ElemType::Iq2Xxs,
    ElemType::Iq2Xs,
    ElemType::Iq2S,
    ElemType::Iq3Xxs,
    ElemType::Iq3S,
    ElemType::Iq4Nl,
    ElemType::Iq4Xs,
];

/// Every case of the grid, once.
pub(super) fn cases() -> Vec<Case> {
    let mut grid = Grid::default();
    grid.products();
    grid.sorts();
    grid.selections();
    grid.cases
}

#[derive(Default)]
struct Grid {
    cases: Vec<Case>,
    seen: std::collections::BTreeSet<String>,
}

impl Grid {
    /// Sections that do not parse are no case of this crate; a test pins how many there are.
    fn add(&mut self, sections: &str, seed: u64) {
        // What two parts of the grid have in common is run once.
        let case = Case::from_sections(sections, seed).ok().filter(|case| self.seen.insert(case.id()));
        self.cases.extend(case);
    }

    fn product(&mut self, w: ElemType, shape: Shape, shared: bool, data: &str) {
        let [e, u, m, n, k] = shape;
        // Columns must be whole blocks: wider ones than the grid's have no such case.
        if !k.is_multiple_of(w.block_len()) {
            return;
        }
        let b = if shared || u == 1 { String::new() } else { format!(",b={u}") };
        let sections = format!("mul_mat_id/w={w},x=f32,e={e},u={u},m={m},n={n},k={k}{b}/route=shuffle,data={data}");
        self.add(&sections, Profile::FIXED_SEED + u64::from(shared));
    }

    fn plain(&mut self, w: ElemType, shape: Shape) {
        self.product(w, shape, false, "uniform");
    }

    fn both(&mut self, w: ElemType, shape: Shape) {
        self.plain(w, shape);
        self.product(w, shape, true, "uniform");
    }

    fn products(&mut self) {
        use ElemType::{Bf16, F16, F32, Iq2Xxs, Iq3S, Mxfp4, Q4_0, Q4K, Q8_0, Tq1_0};
        let all = || ElemType::WEIGHTS.into_iter().chain(ElemType::DECODED_BY_BUILD);
        let large = [[16, 16, 32, 1024, 16], [2, 2, 32, 8192, 64], [16, 16, 50, 200, 64]];
        large.into_iter().for_each(|shape| self.both(F16, shape));
        [large[0], large[2]].into_iter().for_each(|shape| self.both(Bf16, shape));
        self.plain(F16, [1, 1, 8, 16, 1]);
        [Mxfp4, Q4_0].into_iter().for_each(|w| self.plain(w, [32, 2, 2880, 32, 2880]));
        all().for_each(|w| self.plain(w, [4, 2, 64, 16, 3 * w.block_len()]));
        for w in DENSE {
            for (e, u) in [4, 8].into_iter().flat_map(|e| [1, 2, 4].map(|u| (e, u))) {
                [1, 4, 5, 17, 32, 129].into_iter().for_each(|n| self.both(w, [e, u, 512, n, 256]));
            }
        }
        for w in all().filter(|w| !DENSE.contains(w)) {
            [1, 32].into_iter().for_each(|n| self.both(w, [4, 2, 512, n, 256]));
        }
        for (w, m, k) in [(Q4_0, 256, 128), (Iq3S, 128, 512)] {
            for e in [512, 1024] {
                [1, 5, 64, 300].into_iter().for_each(|n| self.plain(w, [e, 10, m, n, k]));
            }
        }
        for n in [16, 32, 64] {
            self.product(Q4K, [128, 4, 4096, n, 2048], false, "loud");
            self.product(Q8_0, [8, 2, 512, n, 256], false, "loud");
        }
        self.plain(Tq1_0, [128, 8, 1024, 1, 2048]);
        self.plain(Tq1_0, [28, 10, 1024, 1, 4096]);
        self.plain(Iq2Xxs, [1, 1, 1, 8192, 4096]);
        [63, 65].into_iter().for_each(|k| self.plain(F16, [1, 1, 8, 16, k]));
        // The same as three columns of every type, above.
        [F32, F16, Bf16].into_iter().for_each(|w| self.plain(w, [4, 2, 64, 16, 3]));
        IQ.into_iter().for_each(|w| self.plain(w, [4, 4, 16, 10, 256]));
    }

    /// Keys without ties, as that test has them.
    fn sorts(&mut self) {
        for cols in (2..=20).flat_map(|i| [(1usize << i) - 1, 1 << i]) {
            self.add(&format!("argsort/c={cols}/data=distinct"), Profile::FIXED_SEED);
        }
        let mut shapes = vec!["c=16,r=10,r2=10,r3=10".to_owned(), "c=60,r=10,r2=10,r3=10".to_owned()];
        shapes.extend((1023..=1025).chain(2047..=2049).map(|cols| format!("c={cols},r=2,r3=3")));
        shapes.extend(["c=1025,r=256", "c=2,r=8,r2=8192", "c=2048,r=512"].map(str::to_owned));
        for shape in shapes {
            for order in ["", ",o=desc"] {
                self.add(&format!("argsort/{shape}{order}/data=distinct"), Profile::FIXED_SEED);
            }
        }
    }

    fn selections(&mut self) {
        for i in 0..20 {
            for k in [1, 2, 3, 7, 15, 100, 500, 1023, 9999usize] {
                for data in ["distinct", "ties"] {
                    // More than there are is no case.
                    if k <= 1 << i {
                        self.add(&format!("top_k/c={},k={k}/data={data}", 1usize << i), Profile::FIXED_SEED);
                        self.add(&format!("top_k/c={},r=2,k={k}/data={data}", (1usize << i) + 11), Profile::FIXED_SEED);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_its_cases() {
        let ids: Vec<String> = cases().iter().map(Case::id).collect();
        let count = |op: &str| ids.iter().filter(|id| id.starts_with(op)).count();
        let is_dense = |id: &&String| id.contains(",m=512,") && id.contains(",k=256") && !id.contains("data=loud");
        assert_eq!(ids.iter().filter(is_dense).count(), 860);
        assert_eq!((count("mul_mat_id/"), count("argsort/"), count("top_k/")), (937, 60, 520));
    }

    /// Each type has the case of three blocks, whatever its blocks are.
    #[test]
    fn every_type_is_there() {
        let ids: Vec<String> = cases().iter().map(Case::id).collect();
        for w in ElemType::WEIGHTS.into_iter().chain(ElemType::DECODED_BY_BUILD) {
            let shape = format!("w={w},x=f32,e=4,u=2,m=64,n=16,k={},b=2/", 3 * w.block_len());
            assert_eq!(ids.iter().filter(|id| id.contains(&shape)).count(), 1, "{w}");
        }
    }
}
