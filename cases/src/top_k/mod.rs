//! `top_k`: for each row of f32 keys the indices of the k largest.
//!
//! Keys `[cols, r1, r2, r3]` f32, output `[k, r1, r2, r3]` i32, in any order.
//! Ties at the k-th key may go either way and ±0 are equal. Rows with a NaN are a
//! class of their own: the answer must be k distinct columns, which is free.

mod draw;

use std::sync::Arc;

use crate::cost::Cost;
use crate::inputs::Inputs;
use crate::judge::best::{judge_best, largest};
use crate::judge::values::{Class, Expected};
use crate::judge::{Capabilities, Findings, Oracle, RunBytes};
use crate::keys::{KeyRows, Keys};
use crate::model::Model;
use crate::op::{CaseType, Op, Program};
use crate::plan::Step;

/// The op's entry in the registry.
pub const OP: Op = Op {
    name: "top_k",
    groups: &["few", "many"],
    parse: |params, recipe| Ok(Arc::new(TopK::parse(params, recipe)?)),
    draw: |d| Arc::new(draw::draw(d)),
    named: draw::NAMED,
};

/// One `top_k` case without its seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopK {
    /// The keys.
    pub rows: KeyRows,
    /// Indices wanted of each row.
    pub k: usize,
}

const X: usize = 0;
const OUT: usize = 1;

/// The most indices that kernels which keep them in registers are known to give.
const FEW: usize = 16;

impl TopK {
    fn parse(params: &str, recipe: &str) -> Result<Self, String> {
        let (rows, k) = KeyRows::parse(params, recipe, |p| p.take("k"))?;
        if k == 0 || k > rows.cols {
            return Err(format!("params: k={k}: must be from 1 to the {} columns", rows.cols));
        }
        Ok(TopK { rows, k })
    }
}

impl CaseType for TopK {
    fn op(&self) -> &'static str {
        OP.name
    }

    fn params(&self) -> String {
        self.rows.params(|p| p.put("k", self.k))
    }

    fn recipe(&self) -> String {
        self.rows.recipe()
    }

    fn program(&self, _seed: u64) -> Program {
        let tensors = vec![self.rows.tensor(), self.rows.indices(self.k)];
        Program { tensors, steps: vec![Step::TopK { x: X, out: OUT }], ..Program::default() }
    }

    fn fill_row(&self, seed: u64, _tensor: usize, at: [usize; 3], row: &mut [u8]) {
        self.rows.fill_row(seed, at, row);
    }

    fn fill_margin(&self, seed: u64, _tensor: usize, bytes: &mut [u8]) {
        self.rows.fill_margin(seed, bytes);
    }

    /// A pass over the keys for each of their bytes, and one that writes.
    fn cost(&self) -> Cost {
        let elements = self.rows.elements();
        Cost { operations: 5 * elements, input_elements: elements, oracle_bytes: 16 * elements }
    }

    fn group(&self) -> &'static str {
        if self.k <= FEW { "few" } else { "many" }
    }

    fn shape_class(&self) -> &'static str {
        self.rows.shape_class()
    }

    fn binds_foreign_devices(&self) -> bool {
        self.rows.keys != Keys::Nan
    }

    fn model(&self, _: &Capabilities) -> Option<Model> {
        None
    }

    fn oracle(&self, _seed: u64, inputs: &Inputs<'_>) -> Box<dyn Oracle> {
        Box::new(TopKOracle { keys: self.rows.read(inputs, X), cols: self.rows.cols, k: self.k })
    }

    fn describe(&self, _seed: u64, inputs: &Inputs<'_>) -> Vec<String> {
        vec![self.rows.describe(inputs, X)]
    }
}

struct TopKOracle {
    /// The view's rows, one after the other.
    keys: Vec<f32>,
    cols: usize,
    k: usize,
}

impl Oracle for TopKOracle {
    fn repeated(&self) -> Vec<usize> {
        vec![OUT]
    }

    fn judge(&self, _: &Inputs<'_>, _: &Capabilities, run: &RunBytes<'_>) -> Findings {
        judge_best(&self.keys, self.cols, self.k, run.tensor(OUT), run.poison)
    }

    /// One right answer, the largest first; in another order, and where keys tie, there are others.
    fn expected(&self, _: &Inputs<'_>, _: &Capabilities) -> Vec<Expected> {
        let best = |keys: &[f32]| largest(keys, self.k).into_iter();
        let columns = self.keys.chunks(self.cols).flat_map(best);
        columns.map(|i| Expected { value: i as f64, bound: 0.0, class: Class::Exact }).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::case::Case;

    #[test]
    fn ids_round_trip_and_refuse() {
        for id in ["top_k/c=160,r=33,k=8/data=ties/v1-1", "top_k/c=60,r=10,r2=10,r3=10,k=60,v=cr/data=nan/v1-ff"] {
            assert_eq!(id.parse::<Case>().unwrap().id(), id);
        }
        for (id, why) in [
            ("top_k/c=3/data=ties/v1-1", "key 'k' is missing"),
            ("top_k/c=3,k=0/data=ties/v1-1", "k=0: must be from 1 to the 3 columns"),
            ("top_k/c=3,k=4/data=ties/v1-1", "k=4: must be from 1 to the 3 columns"),
            ("top_k/k=2,c=3/data=ties/v1-1", "canonical form; write top_k/c=3,k=2/data=ties/v1-1"),
            ("top_k/c=3,k=2,o=desc/data=ties/v1-1", "unknown key 'o'; known here: c, r, r2, r3, k, v"),
        ] {
            let e = id.parse::<Case>().unwrap_err().to_string();
            assert!(e.contains(why), "{id}: {e}");
        }
    }
}
