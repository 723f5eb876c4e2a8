//! Rows of keys: what a sort and a top-k are given.
//!
//! Both ops take f32 keys `[cols, r1, r2, r3]`, possibly a view, from the same
//! recipes, so that a bug found by one can be looked for with the other. This
//! module knows all of their case but the op's own parameter.

mod data;
mod draw;

use crate::formats::{ElemType, read_f32};
use crate::id::{Margins, Reader, Writer, words};
use crate::inputs::Inputs;
use crate::plan::{Role, Tensor};

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

/// Margin letters of the keys: columns, then rows of the three higher dimensions.
const DIMS: &str = "crst";

/// The keys of a case without its seed: shape, view and recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRows {
    /// Columns: keys per row.
    pub cols: usize,
    /// Rows, by dimension.
    pub rows: [usize; 3],
    /// Margins of the keys.
    pub view: Margins,
    /// Data recipe.
    pub keys: Keys,
}

impl KeyRows {
    /// Reads both sections of an id; `own` takes the op's own params.
    pub(crate) fn parse<T>(
        params: &str,
        recipe: &str,
        own: impl FnOnce(&mut Reader<'_>) -> Result<T, String>,
    ) -> Result<(Self, T), String> {
        let mut p = Reader::new("params", params)?;
        let cols = p.take("c")?;
        let rows = [p.take_or("r", 1)?, p.take_or("r2", 1)?, p.take_or("r3", 1)?];
        let own = own(&mut p)?;
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
        Ok((KeyRows { cols, rows, view, keys }, own))
    }

    /// The params section; `own` writes the op's own params.
    pub(crate) fn params(&self, own: impl FnOnce(&mut Writer)) -> String {
        let mut p = Writer::default();
        p.put("c", self.cols);
        p.put_unless("r", self.rows[0], 1);
        p.put_unless("r2", self.rows[1], 1);
        p.put_unless("r3", self.rows[2], 1);
        own(&mut p);
        p.put_unless("v", self.view.letters(DIMS), String::new());
        p.finish()
    }

    /// The recipe section.
    pub(crate) fn recipe(&self) -> String {
        let mut r = Writer::default();
        r.put("data", self.keys);
        r.finish()
    }

    /// The input tensor.
    pub(crate) fn tensor(&self) -> Tensor {
        Tensor::whole("x", ElemType::F32, self.with_columns(self.cols), Role::Input).with_margins(self.view.0)
    }

    /// The output tensor: so many indices for each row of keys.
    pub(crate) fn indices(&self, per_row: usize) -> Tensor {
        Tensor::whole("out", ElemType::I32, self.with_columns(per_row), Role::Output)
    }

    fn with_columns(&self, cols: usize) -> [usize; 4] {
        [cols, self.rows[0], self.rows[1], self.rows[2]]
    }

    /// Keys of all rows.
    pub(crate) fn elements(&self) -> u64 {
        self.with_columns(self.cols).iter().product::<usize>() as u64
    }

    /// Fills a row of the view.
    pub(crate) fn fill_row(&self, seed: u64, at: [usize; 3], row: &mut [u8]) {
        data::fill_keys(self.keys, self.cols, seed, at, row);
    }

    /// Fills bytes outside the view.
    pub(crate) fn fill_margin(&self, seed: u64, bytes: &mut [u8]) {
        data::fill_decoys(seed, bytes);
    }

    /// Rows beyond a usual work-group need another kernel.
    pub(crate) fn shape_class(&self) -> &'static str {
        if self.cols <= 1024 { "short-rows" } else { "long-rows" }
    }

    /// The view's rows, one after the other.
    pub(crate) fn read(&self, inputs: &Inputs<'_>, tensor: usize) -> Vec<f32> {
        let (t, bytes) = inputs.tensor(tensor);
        let rows = (0..t.parent_rows()).filter_map(|r| t.view_row(r));
        rows.flat_map(|at| read_f32(&bytes[t.row_range(at)])).collect()
    }

    /// The first keys, for people.
    pub(crate) fn describe(&self, inputs: &Inputs<'_>, tensor: usize) -> String {
        let (t, bytes) = inputs.tensor(tensor);
        let first: Vec<String> = read_f32(&bytes[t.row_range([0; 3])]).take(8).map(|k| format!("{k:e}")).collect();
        let dots = if self.cols > 8 { ", …" } else { "" };
        format!("row 0     {}{dots}", first.join(", "))
    }
}
