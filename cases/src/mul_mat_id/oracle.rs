//! The scalar reference of `mul_mat_id`, in f64, with what the bounds need.
//!
//! For every output element y = Σ w·x, S = Σ|w||x| and R² = Σ(w·x)². The bounds
//! follow from these and from a few sums per row; they depend on the precision
//! model alone, so one pass over the weights serves every device. What only
//! devices with quantised activations need is computed at the first of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use super::bound::Terms;
use super::exact::ACTIVATION_BLOCK;
use super::quantise::{self, Block, Emulated, Envelope, WeightBlock};
use super::rows::{Element, RowSums, Weights, block_scales, dot};
use super::{Data, IDS, MulMatId, OUT, WEIGHTS, X, whole};
use crate::formats::{read_f32, read_i32};
use crate::inputs::Inputs;
use crate::judge::pattern::Place;
use crate::judge::values::{Class, Expected, judge_values};
use crate::judge::{Capabilities, Check, Findings, Oracle};
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
    /// `[slots][m]` per element.
    elements: Vec<Element>,
    /// S⁺ and R⁺², `[slots][m]`; empty where they are S and R².
    plus: Vec<(f64, f64)>,
    /// `[experts][m]`; `None` for experts without a slot.
    weight_rows: Vec<Option<RowSums>>,
    /// By quantiser, made at the first device that has it.
    quantised: Mutex<BTreeMap<Quantiser, Arc<Quantised>>>,
}

/// What devices with one quantiser add, `[slots][m]`.
struct Quantised {
    envelopes: Vec<Envelope>,
    /// The blocks of each activation row.
    blocks: Vec<Vec<Block>>,
    /// Where the quantiser's way of rounding is known: the sums over its codes take the place of the plain ones.
    emulated: Vec<Sums>,
}

/// The sums of one output element.
#[derive(Clone, Copy, Default)]
struct Sums {
    element: Element,
    /// S⁺ and R⁺².
    plus: (f64, f64),
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
        let x_rows = x.par_chunks(case.k).map(|r| RowSums::new(r.iter().map(|v| f64::from(*v)))).collect();
        let mut oracle = MulMatIdOracle {
            case: case.clone(),
            experts,
            by_expert,
            x,
            x_rows,
            elements: Vec::new(),
            plus: Vec::new(),
            weight_rows: vec![None; case.experts * case.m],
            quantised: Mutex::default(),
        };
        oracle.sum(inputs);
        oracle
    }

    /// The one pass over the weights that every device needs.
    fn sum(&mut self, inputs: &Inputs<'_>) {
        let case = &self.case;
        let has_offsets = case.w.has_offsets();
        let rows = self.each_row(inputs, |weights, stored, _, slots, row: &mut Row| {
            let sums = RowSums { scales: block_scales(case.w, stored), ..weights.sums() };
            row.sums.push(sums);
            for &slot in slots {
                let x = self.x_row(slot);
                row.elements[slot] = dot(&weights.w, x);
                if has_offsets {
                    let plus = dot(&weights.plus, x);
                    row.plus[slot] = (plus.s, plus.r2);
                }
            }
        });
        let mut elements = vec![Element::default(); case.slots() * case.m];
        let mut plus = vec![(0.0, 0.0); if has_offsets { elements.len() } else { 0 }];
        for (r, row) in rows.iter().enumerate() {
            for (slot, e) in row.elements.iter().enumerate() {
                elements[slot * case.m + r] = *e;
            }
            for (slot, p) in row.plus.iter().enumerate() {
                plus[slot * case.m + r] = *p;
            }
            for (expert, sums) in self.by_expert.keys().zip(&row.sums) {
                self.weight_rows[expert * case.m + r] = Some(*sums);
            }
        }
        (self.elements, self.plus) = (elements, plus);
    }

    /// Decodes each row of every expert in use, once, rows in parallel. `visit` gets the row, its stored bytes, the
    /// expert, the expert's slots, and the place for what it finds.
    fn each_row<T: Send + ForSlots>(
        &self,
        inputs: &Inputs<'_>,
        visit: impl Fn(&Weights, &[u8], usize, &[usize], &mut T) + Sync,
    ) -> Vec<T> {
        let case = &self.case;
        let one = |row: usize| {
            let mut weights = Weights::new(case.k);
            let mut found = T::for_slots(case.slots(), case.w.has_offsets());
            for (expert, slots) in &self.by_expert {
                let stored = inputs.row(WEIGHTS, [row, *expert, 0]);
                weights.decode(&stored);
                visit(&weights, stored.stored, *expert, slots, &mut found);
            }
            found
        };
        (0..case.m).into_par_iter().map(one).collect()
    }

    fn x_row(&self, slot: usize) -> &[f32] {
        let at = self.case.x_row(slot) * self.case.k;
        &self.x[at..at + self.case.k]
    }

    /// What a quantiser adds, computed at the first call.
    fn quantised(&self, quantiser: Quantiser, inputs: &Inputs<'_>) -> Arc<Quantised> {
        let mut known = self.quantised.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(quantiser).or_insert_with(|| Arc::new(self.quantise(&quantiser, inputs))).clone()
    }

    fn quantise(&self, quantiser: &Quantiser, inputs: &Inputs<'_>) -> Quantised {
        let case = &self.case;
        let x: Vec<Vec<Block>> = self.x.par_chunks(case.k).map(|row| quantise::blocks(quantiser, row)).collect();
        let emulate = |rounding| self.x.par_chunks(case.k).map(move |r| quantise::emulate(quantiser, rounding, r));
        let codes: Vec<Emulated> = quantiser.rounding.map(|r| emulate(r).collect()).unwrap_or_default();
        let rows = self.each_row(inputs, |weights, _, _, slots, row: &mut Vec<(Envelope, Sums)>| {
            let offset = |b: usize| weights.o.get(b * ACTIVATION_BLOCK).copied().unwrap_or(0.0);
            let blocks = weights.block_sums().enumerate();
            let w: Vec<WeightBlock> =
                blocks.map(|(b, (sum, squares))| WeightBlock { sum, squares, offset: offset(b) }).collect();
            for &slot in slots {
                let at = case.x_row(slot);
                let envelope = Envelope::new(quantiser, &w, &x[at]);
                row[slot] = match codes.get(at) {
                    Some(codes) => (envelope.emulated(weights.ties(codes)), weights.sums_over(codes)),
                    None => (envelope, Sums::default()),
                };
            }
        });
        let mut envelopes = vec![Envelope::default(); self.elements.len()];
        let mut emulated = vec![Sums::default(); if codes.is_empty() { 0 } else { envelopes.len() }];
        for (r, row) in rows.iter().enumerate() {
            for (slot, (envelope, sums)) in row.iter().enumerate() {
                envelopes[slot * case.m + r] = *envelope;
                if let Some(place) = emulated.get_mut(slot * case.m + r) {
                    *place = *sums;
                }
            }
        }
        Quantised { envelopes, blocks: x, emulated }
    }

    /// What the model's quantiser adds, if it has one.
    fn quantised_for(&self, model: &Model, inputs: &Inputs<'_>) -> Option<Arc<Quantised>> {
        match model.activations {
            Activations::Quantised(q) => Some(self.quantised(q, inputs)),
            Activations::Converted(_) => None,
        }
    }

    /// What is known of an element; `None` where its id is out of range.
    fn terms(&self, quantised: Option<&Quantised>, i: usize) -> Option<Terms<'_>> {
        let case = &self.case;
        let (slot, row) = (i / case.m, i % case.m);
        let w = self.experts[slot].and_then(|e| self.weight_rows[e * case.m + row].as_ref())?;
        let plain = self.elements[i];
        let plain = Sums { element: plain, plus: self.plus.get(i).copied().unwrap_or((plain.s, plain.r2)) };
        let Sums { element, plus } = quantised.and_then(|q| q.emulated.get(i)).copied().unwrap_or(plain);
        Some(Terms {
            k: case.k,
            ty: case.w,
            signs: case.data.has_random_signs(),
            element,
            plus,
            w,
            x: &self.x_rows[case.x_row(slot)],
            quantised: quantised.map(|q| q.envelopes[i]),
        })
    }

    /// What an element should be under a model.
    fn expectation(&self, model: &Model, quantised: Option<&Quantised>, i: usize) -> Expected {
        let Some(terms) = self.terms(quantised, i) else {
            return Expected { value: 0.0, bound: 0.0, class: Class::Untouched };
        };
        // What the operands themselves make of it; a known quantiser may overflow where they do not.
        let plain = self.elements[i].y;
        if !plain.is_finite() {
            let class = if plain.is_nan() { Class::NaN } else { Class::Infinite };
            return Expected { value: plain, bound: 0.0, class };
        }
        let class = if terms.overflows(model) {
            Class::Inconclusive
        } else if terms.is_exact(model) {
            Class::Exact
        } else {
            Class::Finite
        };
        Expected { value: terms.element.y, bound: terms.bound(model), class }
    }

    /// What every element should be under a model.
    fn expectations(&self, model: &Model, quantised: Option<&Quantised>) -> Vec<Expected> {
        (0..self.elements.len()).into_par_iter().map(|i| self.expectation(model, quantised, i)).collect()
    }

    /// Judges every element, and the output as a whole.
    fn judge_under(&self, model: &Model, inputs: &Inputs<'_>, output: &[u8], poison: u32) -> Findings {
        let quantised = self.quantised_for(model, inputs);
        let expected = self.expectations(model, quantised.as_deref());
        let mut findings = judge_values(model, |i| expected[i], |i| self.place(i), output, poison);
        findings.checks.extend(self.whole(inputs, model, quantised.as_deref(), &expected, output));
        findings
    }

    /// The checks of the output as a whole.
    fn whole(
        &self,
        inputs: &Inputs<'_>,
        model: &Model,
        quantised: Option<&Quantised>,
        expected: &[Expected],
        output: &[u8],
    ) -> Vec<Check> {
        if !self.case.data.has_random_signs() || self.case.data == Data::Special {
            let why = "errors are independent only in random data of both signs";
            return whole::not_possible(why);
        }
        // Where the codes are known nothing of the quantiser is left to chance.
        let blocks = quantised.filter(|q| q.emulated.is_empty()).map(|q| &q.blocks[..]);
        if blocks.is_some_and(|rows| rows.iter().flatten().any(Block::has_tiny_scale)) {
            return whole::not_possible("scales below the normal numbers of f16 have errors of one sign");
        }
        // Two slots of one expert and one activation row have the same errors, not independent ones: the first counts.
        let mut seen = BTreeSet::new();
        let mut counts = |slot: usize| seen.insert((self.experts[slot], self.case.x_row(slot)));
        let counted: Vec<bool> = (0..self.case.slots()).map(&mut counts).collect();
        let finite = |(i, got): (usize, f32)| {
            if !counted[i / self.case.m] {
                return None;
            }
            let expected = expected[i];
            let judged = matches!(expected.class, Class::Finite | Class::Exact) && got.is_finite();
            let (own_variance, variance) = self.terms(quantised, i).filter(|_| judged)?.variances(model);
            let error = f64::from(got) - expected.value;
            Some(whole::Output { element: i, y: expected.value, error, own_variance, variance })
        };
        let outputs: Vec<_> = read_f32(output).enumerate().filter_map(finite).collect();
        let walk = whole::Walk {
            case: &self.case,
            x: &self.x,
            x_rows: &self.x_rows,
            decode: &|expert, row, weights| weights.decode(&inputs.row(WEIGHTS, [row, expert, 0])),
            experts: &self.by_expert,
        };
        let relative = match model.activations {
            Activations::Quantised(q) => quantise::relative_error(&q),
            Activations::Converted(_) => 0.0,
        };
        whole::checks(&walk, &whole::Shared::of(model, blocks, relative), &outputs)
    }

    fn place(&self, element: usize) -> Place {
        let (slot, row) = (element / self.case.m, element % self.case.m);
        let expert = self.experts[slot].map_or(-1, |e| e as i64);
        let (token, slot) = (slot / self.case.used, slot % self.case.used);
        Place(vec![("token", token as i64), ("slot", slot as i64), ("row", row as i64), ("expert", expert)])
    }
}

/// What one row of the output finds, slot by slot.
trait ForSlots {
    fn for_slots(slots: usize, has_offsets: bool) -> Self;
}

/// The sums of one row of the output.
struct Row {
    elements: Vec<Element>,
    plus: Vec<(f64, f64)>,
    /// By expert in use, ascending.
    sums: Vec<RowSums>,
}

impl ForSlots for Row {
    fn for_slots(slots: usize, has_offsets: bool) -> Self {
        let plus = vec![(0.0, 0.0); if has_offsets { slots } else { 0 }];
        Row { elements: vec![Element::default(); slots], plus, sums: Vec::new() }
    }
}

impl ForSlots for Vec<(Envelope, Sums)> {
    fn for_slots(slots: usize, _: bool) -> Self {
        vec![(Envelope::default(), Sums::default()); slots]
    }
}

impl Weights {
    /// The sums over a row of activations as a known quantiser leaves it.
    fn sums_over(&self, x: &Emulated) -> Sums {
        let mut element = dot(&self.w, &x.values);
        if self.plus.is_empty() {
            return Sums { element, plus: (element.s, element.r2) };
        }
        // Offset parts are multiplied with the sum as it is stored, not with the sum of the codes.
        for (b, (codes, stored)) in x.values.chunks(ACTIVATION_BLOCK).zip(&x.sums).enumerate() {
            let o = self.o.get(b * ACTIVATION_BLOCK).copied().unwrap_or(0.0);
            element.y += o * (stored - codes.iter().sum::<f64>());
        }
        let plus = dot(&self.plus, &x.values);
        Sums { element, plus: (plus.s, plus.r2) }
    }

    /// Σ d·(|p| + |o|) over activations whose code is undecided.
    fn ties(&self, x: &Emulated) -> f64 {
        let plus = if self.plus.is_empty() { &self.w } else { &self.plus };
        x.ties.iter().map(|(i, d)| d * plus[*i].abs()).sum()
    }
}

impl Oracle for MulMatIdOracle {
    fn output(&self) -> usize {
        OUT
    }

    fn judge(&self, inputs: &Inputs<'_>, device: &Capabilities, output: &[u8], poison: u32) -> Findings {
        let model = self.case.model_on(device);
        let mut findings = self.judge_under(&model, inputs, output, poison);
        let looser = self.case.looser_models(device);
        findings.name_looser_model(&looser, |model| self.judge_under(model, inputs, output, poison));
        findings
    }

    fn expected(&self, inputs: &Inputs<'_>, device: &Capabilities) -> Vec<Expected> {
        let model = self.case.model_on(device);
        self.expectations(&model, self.quantised_for(&model, inputs).as_deref())
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
