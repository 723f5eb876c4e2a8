//! `argsort`: for each row of f32 keys the permutation that sorts it.
//!
//! Keys `[cols, r1, r2, r3]` f32, output of the same shape, i32. Ties go in any
//! order and ±0 are equal. Rows with a NaN are a class of their own: the answer
//! must be a permutation, its order is free.

mod data;
mod draw;

use std::sync::Arc;

use crate::cost::Cost;
use crate::formats::{ElemType, read_f32};
use crate::id::{Margins, Reader, Writer, words};
use crate::judge::permutation::judge_sort;
use crate::judge::values::{Class, Expected};
use crate::judge::{Capabilities, Findings, Oracle};
use crate::model::Model;
use crate::op::{CaseType, Inputs, Op};
use crate::plan::{Order, Role, Step, Tensor};

/// The op's entry in the registry.
pub const OP: Op = Op {
    name: "argsort",
    groups: &["asc", "desc"],
    parse: |params, recipe| Ok(Arc::new(Argsort::parse(params, recipe)?)),
    draw: |d| Arc::new(draw::draw(d)),
    named: draw::NAMED,
};

words! {
    /// What the keys are like.
    pub enum Keys: "data recipe" {
        /// Uniform in (-1, 1), distinct but for chance.
        Uniform = "uniform",
        /// A row is a shuffle of consecutive integers: no ties at all.
        Distinct = "distinct",
        /// Four different values.
        Ties = "ties",
        /// One value everywhere.
        Same = "same",
        /// Zeros of both signs, and a few other values.
        Zeros = "zeros",
        /// Infinities of both signs among finite values.
        Inf = "inf",
        /// Subnormal numbers of both signs.
        Sub = "sub",
        /// Values that share their upper bits: they differ in the last eight.
        Cluster = "cluster",
        /// Any finite bit pattern.
        Bits = "bits",
        /// Sorted already.
        Sorted = "sorted",
        /// Sorted the other way round.
        Reverse = "reverse",
        /// NaNs among finite values and infinities.
        Nan = "nan",
    }
}

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

/// Margin letters of the keys: columns, then rows of the three higher dimensions.
const DIMS: &str = "crst";

/// One `argsort` case without its seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argsort {
    /// Columns: keys per row.
    pub cols: usize,
    /// Rows, by dimension.
    pub rows: [usize; 3],
    /// Direction.
    pub order: Order,
    /// Margins of the keys.
    pub view: Margins,
    /// Data recipe.
    pub keys: Keys,
}

const X: usize = 0;
const OUT: usize = 1;

impl Argsort {
    fn parse(params: &str, recipe: &str) -> Result<Self, String> {
        let mut p = Reader::new("params", params)?;
        let cols = p.take("c")?;
        let rows = [p.take_or("r", 1)?, p.take_or("r2", 1)?, p.take_or("r3", 1)?];
        let order = p.take_or("o", Order::Asc)?;
        let view = Margins::parse(&p.take_or("v", String::new())?, DIMS)?;
        p.finish()?;
        let mut r = Reader::new("recipe", recipe)?;
        let keys = r.take("data")?;
        r.finish()?;
        for (key, value) in [("c", cols), ("r", rows[0]), ("r2", rows[1]), ("r3", rows[2])] {
            if value == 0 {
                return Err(format!("params: {key}=0: must be at least 1"));
            }
        }
        if cols > i32::MAX as usize {
            return Err(format!("params: c={cols}: indices are 32 bits, at most {}", i32::MAX));
        }
        let padded = rows.iter().try_fold(cols + 2, |p, r| p.checked_mul(r.saturating_add(2))).filter(|p| *p < 1 << 40);
        if padded.is_none() {
            return Err("params: the keys would have 2^40 elements or more".to_owned());
        }
        Ok(Argsort { cols, rows, order, view, keys })
    }

    fn shape(&self) -> [usize; 4] {
        [self.cols, self.rows[0], self.rows[1], self.rows[2]]
    }
}

impl CaseType for Argsort {
    fn op(&self) -> &'static str {
        OP.name
    }

    fn params(&self) -> String {
        let mut p = Writer::default();
        p.put("c", self.cols);
        p.put_unless("r", self.rows[0], 1);
        p.put_unless("r2", self.rows[1], 1);
        p.put_unless("r3", self.rows[2], 1);
        p.put_unless("o", self.order, Order::Asc);
        p.put_unless("v", self.view.letters(DIMS), String::new());
        p.finish()
    }

    fn recipe(&self) -> String {
        let mut r = Writer::default();
        r.put("data", self.keys);
        r.finish()
    }

    fn tensors(&self) -> (Vec<Tensor>, Vec<Step>) {
        let x = Tensor::whole("x", ElemType::F32, self.shape(), Role::Input).with_margins(self.view.0);
        let out = Tensor::whole("out", ElemType::I32, self.shape(), Role::Output);
        (vec![x, out], vec![Step::Argsort { x: X, out: OUT, order: self.order }])
    }

    fn fill_row(&self, seed: u64, _tensor: usize, at: [usize; 3], row: &mut [u8]) {
        data::fill_keys(self, seed, at, row);
    }

    fn fill_margin(&self, seed: u64, _tensor: usize, bytes: &mut [u8]) {
        data::fill_decoys(seed, bytes);
    }

    fn cost(&self) -> Cost {
        let elements = self.shape().iter().product::<usize>() as u64;
        let stages = u64::from(self.cols.next_power_of_two().ilog2());
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

    /// Rows beyond a usual work-group need another kernel.
    fn shape_class(&self) -> &'static str {
        if self.cols <= 1024 { "short-rows" } else { "long-rows" }
    }

    fn binds_foreign_devices(&self) -> bool {
        self.keys != Keys::Nan
    }

    fn model(&self, _: &Capabilities) -> Option<Model> {
        None
    }

    fn oracle(&self, inputs: &Inputs<'_>) -> Box<dyn Oracle> {
        let (t, bytes) = inputs.tensor(X);
        let rows = (0..t.parent_rows()).filter_map(|r| t.view_row(r));
        let keys = rows.flat_map(|at| read_f32(&bytes[t.row_range(at)])).collect();
        Box::new(ArgsortOracle { keys, cols: self.cols, order: self.order })
    }

    fn describe(&self, inputs: &Inputs<'_>) -> Vec<String> {
        let (t, bytes) = inputs.tensor(X);
        let first: Vec<String> = read_f32(&bytes[t.row_range([0; 3])]).take(8).map(|k| format!("{k:e}")).collect();
        let dots = if self.cols > 8 { ", …" } else { "" };
        vec![
            format!("network   {} columns padded to {}", self.cols, self.cols.next_power_of_two()),
            format!("row 0     {}{dots}", first.join(", ")),
        ]
    }
}

struct ArgsortOracle {
    /// The view's rows, one after the other.
    keys: Vec<f32>,
    cols: usize,
    order: Order,
}

impl Oracle for ArgsortOracle {
    fn output(&self) -> usize {
        OUT
    }

    fn judge(&self, _: &Inputs<'_>, _: &Capabilities, output: &[u8], poison: u32) -> Findings {
        judge_sort(&self.keys, self.cols, self.order, output, poison)
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
