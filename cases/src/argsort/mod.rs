//! `argsort`: for each row of f32 keys the permutation that sorts it.
//!
//! Keys `[cols, r1, r2, r3]` f32, output of the same shape, i32. Ties go in any
//! order and ±0 are equal. Rows with a NaN are a class of their own: the answer
//! must be a permutation, its order is free.

mod draw;

use std::sync::Arc;

use crate::cost::Cost;
use crate::inputs::Inputs;
use crate::judge::permutation::judge_sort;
use crate::judge::values::{Class, Expected};
use crate::judge::{Capabilities, Findings, Oracle, RunBytes};
use crate::keys::{KeyRows, Keys};
use crate::model::Model;
use crate::op::{CaseType, Op, Program};
use crate::plan::{Order, Step};

/// The op's entry in the registry.
pub const OP: Op = Op {
    name: "argsort",
    groups: &["asc", "desc"],
    parse: |params, recipe| Ok(Arc::new(Argsort::parse(params, recipe)?)),
    draw: |d| Arc::new(draw::draw(d)),
    named: draw::NAMED,
};

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Order::Asc => "asc",
            Order::Desc => "desc",
        })
    }
}

impl std::str::FromStr for Order {
    type Err = &'static str;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "asc" => Ok(Order::Asc),
            "desc" => Ok(Order::Desc),
            _ => Err("is no order; known: asc, desc"),
        }
    }
}

/// One `argsort` case without its seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argsort {
    /// The keys.
    pub rows: KeyRows,
    /// Direction.
    pub order: Order,
}

const X: usize = 0;
const OUT: usize = 1;

impl Argsort {
    fn parse(params: &str, recipe: &str) -> Result<Self, String> {
        let (rows, order) = KeyRows::parse(params, recipe, |p| p.take_or("o", Order::Asc))?;
        Ok(Argsort { rows, order })
    }
}

impl CaseType for Argsort {
    fn op(&self) -> &'static str {
        OP.name
    }

    fn params(&self) -> String {
        self.rows.params(|p| p.put_unless("o", self.order, Order::Asc))
    }

    fn recipe(&self) -> String {
        self.rows.recipe()
    }

    fn program(&self, _seed: u64) -> Program {
        let tensors = vec![self.rows.tensor(), self.rows.indices(self.rows.cols)];
        Program { tensors, steps: vec![Step::Argsort { x: X, out: OUT, order: self.order }], ..Program::default() }
    }

    fn fill_row(&self, seed: u64, _tensor: usize, at: [usize; 3], row: &mut [u8]) {
        self.rows.fill_row(seed, at, row);
    }

    fn fill_margin(&self, seed: u64, _tensor: usize, bytes: &mut [u8]) {
        self.rows.fill_margin(seed, bytes);
    }

    fn cost(&self) -> Cost {
        let elements = self.rows.elements();
        let stages = u64::from(self.rows.cols.next_power_of_two().ilog2());
        Cost {
            operations: elements * (stages * (stages + 1) / 4).max(1),
            input_elements: elements,
            oracle_bytes: 16 * elements,
        }
    }

    fn group(&self) -> &'static str {
        match self.order {
            Order::Asc => "asc",
            Order::Desc => "desc",
        }
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
        Box::new(ArgsortOracle { keys: self.rows.read(inputs, X), cols: self.rows.cols, order: self.order })
    }

    fn describe(&self, _seed: u64, inputs: &Inputs<'_>) -> Vec<String> {
        let cols = self.rows.cols;
        let network = format!("network   {cols} columns padded to {}", cols.next_power_of_two());
        vec![network, self.rows.describe(inputs, X)]
    }
}

struct ArgsortOracle {
    /// The view's rows, one after the other.
    keys: Vec<f32>,
    cols: usize,
    order: Order,
}

impl Oracle for ArgsortOracle {
    fn repeated(&self) -> Vec<usize> {
        vec![OUT]
    }

    fn judge(&self, _: &Inputs<'_>, _: &Capabilities, run: &RunBytes<'_>) -> Findings {
        judge_sort(&self.keys, self.cols, self.order, run.tensor(OUT), run.poison)
    }

    /// One right answer; where keys tie it is not the only one. NaN sorts by its bits, as a total order has it.
    fn expected(&self, _: &Inputs<'_>, _: &Capabilities) -> Vec<Expected> {
        let sorted = |keys: &[f32]| {
            let mut indices: Vec<usize> = (0..keys.len()).collect();
            indices.sort_by(|a, b| match self.order {
                Order::Asc => keys[*a].total_cmp(&keys[*b]),
                Order::Desc => keys[*b].total_cmp(&keys[*a]),
            });
            indices.into_iter().map(|i| Expected { value: i as f64, bound: 0.0, class: Class::Exact })
        };
        self.keys.chunks(self.cols).flat_map(sorted).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::case::Case;

    #[test]
    fn ids_round_trip_and_refuse() {
        for id in ["argsort/c=3/data=ties/v1-1", "argsort/c=60,r=10,r2=10,r3=10,o=desc,v=cr/data=nan/v1-ff"] {
            assert_eq!(id.parse::<Case>().unwrap().id(), id);
        }
        for (id, why) in [
            ("argsort/c=0/data=ties/v1-1", "c=0: must be at least 1"),
            ("argsort/c=3,r=1/data=ties/v1-1", "canonical form; write argsort/c=3/data=ties/v1-1"),
            ("argsort/c=3,o=up/data=ties/v1-1", "is no order"),
            ("argsort/c=3,v=rc/data=ties/v1-1", "canonical form"),
            ("argsort/c=3,v=x/data=ties/v1-1", "letter 'x'"),
            ("argsort/c=4294967296/data=ties/v1-1", "indices are 32 bits"),
            ("argsort/c=9,r=99999999,r2=99999999/data=ties/v1-1", "2^40"),
            ("argsort/c=3/data=zig/v1-1", "is no data recipe; known: uniform"),
        ] {
            let e = id.parse::<Case>().unwrap_err().to_string();
            assert!(e.contains(why), "{id}: {e}");
        }
    }
}
