//! The scalar reference of `mul_mat_id`, in f64, with what the bounds need.
//!
//! For every output element y = Σ w·x, S = Σ|w||x| and R² = Σ(w·x)². The bounds
//! follow from these and from a few sums per row. Devices share them as far as
//! they multiply the same activations; what only some devices need is computed
//! for the first of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use super::bound::{Rules, Terms};
use super::quantise::{self, Block, Envelope};
use super::rows::RowSums;
use super::sums::{Operands, SlotSums, Sums};
use super::tiles::Walk;
use super::{IDS, MulMatId, OUT, X, whole};
use crate::formats::{read_f32, read_i32};
use crate::inputs::Inputs;
use crate::judge::pattern::Place;
use crate::judge::values::{Class, Expected, judge_values};
use crate::judge::{Capabilities, Check, Findings, Oracle, RunBytes};
use crate::model::{Activations, Model, Quantiser};

pub(super) struct MulMatIdOracle {
    case: MulMatId,
    /// The expert of each slot, `None` where the id is out of range.
    experts: Vec<Option<usize>>,
    /// Slots of each expert in use.
    by_expert: BTreeMap<usize, Vec<usize>>,
    /// All activation rows, `[n][b][k]`.
    x: Vec<f32>,
    /// `[n][b]`.
    x_rows: Vec<RowSums>,
    /// By quantiser whose codes are known, and over activations as they are: made at the first device that needs them.
    sums: Mutex<BTreeMap<Option<Quantiser>, Arc<Sums>>>,
    /// By quantiser whose codes are not known.
    quantised: Mutex<BTreeMap<Quantiser, Arc<Quantised>>>,
}

/// What a quantiser with unknown codes adds.
struct Quantised {
    /// `[slots][m]`.
    envelopes: Vec<Envelope>,
    /// The blocks of each activation row.
    blocks: Vec<Vec<Block>>,
}

/// What the answers under one model rest on.
struct Basis {
    sums: Arc<Sums>,
    quantised: Option<Arc<Quantised>>,
    /// The sums over activations as they are, where some operand is not finite: they say what becomes of it.
    plain: Option<Arc<Sums>>,
}

/// What is known of the outputs of one slot.
struct Slot<'a> {
    sums: SlotSums<'a>,
    x: &'a RowSums,
    /// By row, of a quantiser whose codes are not known.
    envelopes: Option<&'a [Envelope]>,
}

impl<'a> Slot<'a> {
    /// What is known of an output.
    #[inline(always)]
    fn terms(&self, row: usize) -> Option<Terms<'a>> {
        let quantised = self.envelopes.map(|rows| rows[row]);
        Some(Terms {
            element: self.sums.elements[row],
            plus: self.sums.plus(row),
            w: self.sums.weight_rows[row].as_ref()?,
            x: self.x,
            quantised: quantised.or_else(|| self.sums.envelope(row)),
        })
    }
}

impl MulMatIdOracle {
    pub(super) fn new(case: &MulMatId, inputs: &Inputs<'_>) -> Self {
        let experts = routing(case, inputs);
        let mut by_expert: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (slot, expert) in experts.iter().enumerate() {
            if let Some(e) = expert {
                by_expert.entry(*e).or_default().push(slot);
            }
        }
        let x = activations(case, inputs);
        let sums_of = |row: &[f32]| RowSums::new(&row.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
        let x_rows = x.par_chunks(case.k).map(sums_of).collect();
        let (sums, quantised) = (Mutex::default(), Mutex::default());
        MulMatIdOracle { case: case.clone(), experts, by_expert, x, x_rows, sums, quantised }
    }

    fn walk<'a>(&'a self, inputs: &Inputs<'a>) -> Walk<'a> {
        Walk { case: &self.case, inputs: *inputs, experts: &self.by_expert }
    }

    /// The sums over activations as a quantiser leaves them, or as they are.
    fn sums(&self, quantiser: Option<Quantiser>, inputs: &Inputs<'_>) -> Arc<Sums> {
        let mut known = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let operands = match quantiser.and_then(|q| q.rounding.map(|rounding| (q, rounding))) {
                Some((quantiser, rounding)) => {
                    Operands::emulated(&quantiser, rounding, &self.x, self.case.k, &self.x_rows)
                }
                None => Operands::plain(&self.x, self.case.k, &self.x_rows),
            };
            Arc::new(Sums::new(&self.walk(inputs), operands))
        };
        known.entry(quantiser).or_insert_with(make).clone()
    }

    /// What a quantiser with unknown codes adds.
    fn quantised(&self, quantiser: Quantiser, inputs: &Inputs<'_>) -> Arc<Quantised> {
        let mut known = self.quantised.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(quantiser).or_insert_with(|| Arc::new(self.quantise(&quantiser, inputs))).clone()
    }

    fn quantise(&self, quantiser: &Quantiser, inputs: &Inputs<'_>) -> Quantised {
        let (walk, m) = (self.walk(inputs), self.case.m);
        let blocks: Vec<Vec<Block>> =
            self.x.par_chunks(self.case.k).map(|row| quantise::blocks(quantiser, row)).collect();
        let of_tile = |tile| {
            let weights = walk.decode_parts(&tile, quantiser.parts.centres);
            let envelopes = (0..tile.rows.len()).flat_map(|row| {
                let blocks_of_row = weights.blocks(quantiser, row);
                let rows = walk.x_rows(&tile.column).into_iter();
                rows.map(|x| Envelope::new(quantiser, &blocks_of_row, &blocks[x])).collect::<Vec<_>>()
            });
            (envelopes.collect::<Vec<_>>(), tile)
        };
        let mut envelopes = vec![Envelope::default(); self.case.slots() * m];
        for (of_tile, tile) in walk.tiles(usize::MAX).map(of_tile).collect::<Vec<_>>() {
            let places = tile.rows.flat_map(|row| tile.column.slots.iter().map(move |slot| slot * m + row));
            places.zip(of_tile).for_each(|(place, envelope)| envelopes[place] = envelope);
        }
        Quantised { envelopes, blocks }
    }

    /// What the answers under a model rest on, computed as far as it is not known.
    fn basis(&self, model: &Model, inputs: &Inputs<'_>) -> Basis {
        let (codes, quantiser) = match model.activations {
            Activations::Quantised(q) if q.rounding.is_some() => (Some(q), None),
            Activations::Quantised(q) => (None, Some(q)),
            Activations::Converted(_) => (None, None),
        };
        let sums = self.sums(codes, inputs);
        let is_special = sums.has_special_weights() || self.x_rows.iter().any(|row| !row.is_finite);
        Basis {
            quantised: quantiser.map(|q| self.quantised(q, inputs)),
            plain: is_special.then(|| self.sums(None, inputs)),
            sums,
        }
    }

    /// What is known of the outputs of a slot; `None` where its id is out of range.
    fn slot<'a>(&'a self, basis: &'a Basis, slot: usize) -> Option<Slot<'a>> {
        let (m, x_row) = (self.case.m, self.case.x_row(slot));
        Some(Slot {
            sums: basis.sums.slot(slot, self.experts[slot]?, x_row, m),
            x: &self.x_rows[x_row],
            envelopes: basis.quantised.as_ref().map(|q| &q.envelopes[slot * m..][..m]),
        })
    }

    /// What every element should be under a model.
    fn expectations(&self, model: &Model, basis: &Basis) -> Vec<Expected> {
        let (rules, m) = (self.rules(model), self.case.m);
        let mut expected = vec![Expected::UNTOUCHED; self.case.slots() * m];
        expected.par_chunks_mut(m).enumerate().for_each(|(i, rows)| {
            let Some(slot) = self.slot(basis, i) else { return };
            // What the operands themselves make of it; a known quantiser may overflow where they do not.
            let plain = |row: usize| basis.plain.as_ref().map(|sums| sums.element(i * m + row).y);
            rows.iter_mut().enumerate().for_each(|(row, place)| {
                *place = slot.terms(row).map_or(Expected::UNTOUCHED, |terms| expectation(&rules, &terms, plain(row)));
            });
        });
        expected
    }

    fn rules(&self, model: &Model) -> Rules {
        Rules::new(model, self.case.w, self.case.k, self.case.has_random_signs())
    }

    /// Judges every element, and the output as a whole.
    fn judge_under(&self, model: &Model, inputs: &Inputs<'_>, output: &[u8], poison: u32) -> Findings {
        let basis = self.basis(model, inputs);
        let expected = self.expectations(model, &basis);
        let mut findings = judge_values(model, |i| expected[i], |i| self.place(i), output, poison);
        findings.checks.extend(self.whole(inputs, model, &basis, &expected, output));
        findings
    }

    /// The checks of the output as a whole.
    fn whole(
        &self,
        inputs: &Inputs<'_>,
        model: &Model,
        basis: &Basis,
        expected: &[Expected],
        output: &[u8],
    ) -> Vec<Check> {
        if !self.case.data.has_random_signs() || self.case.data.has_special_values() {
            let why = "errors are independent only in random data of both signs";
            return whole::not_possible(why);
        }
        if self.case.is_x_result {
            return whole::not_possible("activations that are results may have errors in common");
        }
        if self.case.k < whole::SHORTEST {
            return whole::not_possible("rows this short have the same few roundings");
        }
        if model.stages.iter().any(|stage| stage.sums.truncates()) {
            return whole::not_possible("truncated sums have errors of one sign");
        }
        // Where the codes are known nothing of the quantiser is left to chance.
        let blocks = basis.quantised.as_ref().map(|q| &q.blocks[..]);
        if blocks.is_some_and(|rows| rows.iter().flatten().any(Block::has_tiny_scale)) {
            return whole::not_possible("scales below the normal numbers of f16 have errors of one sign");
        }
        // Two slots of one expert and one activation row have the same errors, not independent ones: the first counts.
        let mut seen = BTreeSet::new();
        let first = |slot: &usize| seen.insert((self.experts[*slot], self.case.x_row(*slot)));
        let slots: Vec<usize> = (0..self.case.slots()).filter(first).collect();
        let (rules, (got, _)) = (self.rules(model), output.as_chunks::<4>());
        let judged = |slot: usize| {
            let (known, rules, first) = (self.slot(basis, slot), &rules, slot * self.case.m);
            (0..self.case.m).filter_map(move |row| {
                let (expected, got) = (expected[first + row], f32::from_le_bytes(got[first + row]));
                let is_judged = matches!(expected.class, Class::Finite | Class::Exact) && got.is_finite();
                let terms = known.as_ref().filter(|_| is_judged)?.terms(row)?;
                let (own_variance, variance) = rules.variances(&terms);
                let (error, near_zero) = (f64::from(got) - expected.value, rules.near_zero(&terms));
                Some((row, whole::Output { y: expected.value, error, own_variance, variance, near_zero }))
            })
        };
        let operands = whole::Operands { walk: self.walk(inputs), x: &self.x, x_rows: &self.x_rows };
        whole::checks(&operands, &whole::Shared::of(model, blocks), &slots, judged)
    }

    fn place(&self, element: usize) -> Place {
        let (slot, row) = (element / self.case.m, element % self.case.m);
        let expert = self.experts[slot].map_or(-1, |e| e as i64);
        let (token, slot) = (slot / self.case.used, slot % self.case.used);
        Place(vec![("token", token as i64), ("slot", slot as i64), ("row", row as i64), ("expert", expert)])
    }
}

/// What an element should be under a model; `plain` is what operands that are not quantised make of it, where some are
/// not finite.
#[inline(always)]
fn expectation(rules: &Rules, terms: &Terms<'_>, plain: Option<f64>) -> Expected {
    if let Some(value) = plain.filter(|value| !value.is_finite()) {
        let class = match value {
            nan if nan.is_nan() => Class::NaN,
            _ if rules.loses_infinities() => Class::Inconclusive,
            _ => Class::Infinite,
        };
        return Expected { value, bound: 0.0, class };
    }
    let class = if rules.overflows(terms) {
        Class::Inconclusive
    } else if rules.is_exact(terms) {
        Class::Exact
    } else {
        Class::Finite
    };
    Expected { value: terms.element.y, bound: rules.bound(terms), class }
}

impl Oracle for MulMatIdOracle {
    fn repeated(&self) -> Vec<usize> {
        vec![OUT]
    }

    fn prepare(&self, inputs: &Inputs<'_>, device: &Capabilities) {
        self.basis(&self.case.model_on(device), inputs);
    }

    fn judge(&self, inputs: &Inputs<'_>, device: &Capabilities, run: &RunBytes<'_>) -> Findings {
        let (output, poison) = (run.tensor(OUT), run.poison);
        let model = self.case.model_on(device);
        let mut findings = self.judge_under(&model, inputs, output, poison);
        let looser = self.case.looser_models(device);
        findings.name_looser_model(&looser, |model| self.judge_under(model, inputs, output, poison));
        findings
    }

    fn expected(&self, inputs: &Inputs<'_>, device: &Capabilities) -> Vec<Expected> {
        let model = self.case.model_on(device);
        self.expectations(&model, &self.basis(&model, inputs))
    }
}

impl MulMatId {
    /// The activation row that a slot (counted over all tokens) multiplies with.
    pub(super) fn x_row(&self, slot: usize) -> usize {
        slot / self.used * self.b + slot % self.used % self.b
    }
}

fn routing(case: &MulMatId, inputs: &Inputs<'_>) -> Vec<Option<usize>> {
    let (t, bytes) = inputs.tensor(IDS);
    let in_range = |id: i32| usize::try_from(id).ok().filter(|e| *e < case.experts);
    (0..case.n).flat_map(|n| read_i32(&bytes[t.row_range([n, 0, 0])]).map(in_range)).collect()
}

/// All activation rows `[n][b][k]`.
fn activations(case: &MulMatId, inputs: &Inputs<'_>) -> Vec<f32> {
    let (t, bytes) = inputs.tensor(X);
    let rows = (0..case.n).flat_map(|n| (0..case.b).map(move |b| [b, n, 0]));
    rows.flat_map(|at| read_f32(&bytes[t.row_range(at)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Case;
    use crate::plan::Layout;

    /// Products over tiles are the plain sums, whatever the shape: more rows and slots than a tile has, views, offset
    /// parts.
    #[test]
    fn every_output_is_the_plain_sum() {
        for (params, recipe) in [
            ("w=f32,x=f32,e=2,u=1,m=300,n=700,k=509", "route=skew,data=normal"),
            ("w=q4_1,x=f32,e=3,u=2,m=5,n=9,k=96,b=2,wv=kme,xv=kbn", "route=shuffle,data=normal"),
            ("w=q6_K,x=f32,e=4,u=4,m=33,n=1,k=512", "route=shuffle,data=heavy"),
        ] {
            let case = MulMatId::read(params, recipe).unwrap().0;
            let whole: Case = format!("mul_mat_id/{params}/{recipe}/v1-1").parse().unwrap();
            let plan = whole.plan();
            let layout = Layout::new(&plan, 1);
            let mut bytes = vec![0; layout.input_bytes];
            whole.fill_all(&plan, &layout, &mut bytes);
            let inputs = Inputs::new(&plan, &layout, &bytes);
            let oracle = MulMatIdOracle::new(&case, &inputs);
            let sums = oracle.sums(None, &inputs);
            let (t, stored) = inputs.tensor(super::super::WEIGHTS);
            for (slot, expert) in oracle.experts.iter().enumerate() {
                let x = &oracle.x[case.x_row(slot) * case.k..][..case.k];
                for row in 0..case.m {
                    let (mut w, mut o) = (vec![0.0; case.k], vec![0.0; case.k]);
                    let stored = &stored[t.row_range([row, expert.unwrap(), 0])];
                    case.w.decode(stored, &mut w);
                    case.w.offsets(stored, false, &mut o);
                    let x = || x.iter().map(|x| f64::from(*x));
                    let products = || w.iter().zip(x()).map(|(w, x)| w * x);
                    let plus = || w.iter().zip(&o).zip(x()).map(|((w, o), x)| ((w - o).abs() + o.abs()) * x.abs());
                    let (got, s) = (sums.element(slot * case.m + row), products().map(f64::abs).sum::<f64>());
                    approx::assert_abs_diff_eq!(got.y, products().sum::<f64>(), epsilon = s * 1e-13);
                    approx::assert_relative_eq!(got.s, s, max_relative = 1e-4);
                    approx::assert_relative_eq!(got.r2, products().map(|p| p * p).sum::<f64>(), max_relative = 1e-4);
                    let (s, r2) = sums.slot(slot, expert.unwrap(), case.x_row(slot), case.m).plus(row);
                    approx::assert_relative_eq!(s, plus().sum::<f64>(), max_relative = 1e-4);
                    approx::assert_relative_eq!(r2, plus().map(|p| p * p).sum::<f64>(), max_relative = 1e-4);
                }
            }
        }
    }
}
