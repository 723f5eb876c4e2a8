//! `mul_mat_id`: every token multiplies its activations with the weights of the experts it chose.
//!
//! Shapes list the fastest dimension first: weights `[k, m, experts]`,
//! activations `[k, b, n]` f32, ids `[used, n]` i32, output `[m, used, n]` f32;
//! `out[:, e, t] = weights[:, :, ids[e, t]]ᵀ · x[:, e mod b, t]`.

mod blocks;
mod bound;
mod by_build;
mod data;
mod distributions;
mod draw;
mod exact;
mod oracle;
mod products;
mod quantise;
mod routing;
mod rows;
mod sequence;
mod sums;
mod tiles;
mod whole;

use std::sync::Arc;

use sequence::Calls;
pub use sequence::Seq;

use crate::cost::Cost;
use crate::draw::Draw;
use crate::formats::{ElemType, read_i32};
use crate::id::{Margins, Reader, Writer, words};
use crate::inputs::Inputs;
use crate::judge::{Capabilities, Oracle};
use crate::model::{Arithmetic, Kernels, Model, Shape, looser_than_unknown, of_device};
use crate::op::{CaseType, Op, Program};
use crate::plan::{Role, Step, Tensor};

/// The op's entry in the registry.
pub const OP: Op = Op {
    name: "mul_mat_id",
    groups: &["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_K", "q6_K", "mxfp4"],
    parse,
    draw: |d| Arc::new(draw::draw(d)),
    named: draw::NAMED,
};

/// Draws a case whose weights only a build decodes.
pub(crate) fn draw_by_build(d: &mut Draw) -> Arc<dyn CaseType> {
    Arc::new(draw::draw_of(d, &ElemType::DECODED_BY_BUILD, &by_build::RECIPES))
}

/// Reads a single call or a sequence of them.
fn parse(params: &str, recipe: &str) -> Result<Arc<dyn CaseType>, String> {
    let (case, seq) = MulMatId::read(params, recipe)?;
    match seq {
        Seq::None => Ok(Arc::new(case)),
        seq => Ok(Arc::new(Calls::new(case, seq)?)),
    }
}

/// Draws a sequence of calls.
pub(crate) fn draw_sequence(d: &mut Draw) -> Arc<dyn CaseType> {
    draw::draw_sequence(d)
}

words! {
    /// Which experts the tokens choose.
    pub enum Route: "routing" {
        /// Distinct experts, all equally likely.
        Shuffle = "shuffle",
        /// Distinct experts, a few of them far more likely.
        Skew = "skew",
        /// Every token uses the same experts.
        Fixed = "fixed",
        /// Only about half of the experts are ever used.
        Empty = "empty",
        /// Every token uses the last expert: the largest offset into the weights.
        Last = "last",
        /// At least one expert twice in every token.
        Repeat = "repeat",
        /// All slots of all tokens are on one expert.
        One = "one",
        /// About a quarter of the ids lie outside the experts, -1 and the number of experts among them.
        Out = "out",
    }
}

words! {
    /// What the numbers are like.
    pub enum Data: "data recipe" {
        /// Integers for which 24-bit sums are exact in any order.
        Wide = "wide",
        /// Integers for which 11-bit sums are exact in any order.
        Narrow = "narrow",
        /// About normal, unit variance.
        Normal = "normal",
        /// Uniform in (-1, 1).
        Uniform = "uniform",
        /// Student's t with two degrees of freedom: a few values dwarf the rest.
        Heavy = "heavy",
        /// Near the top of the type's range, sums still finite.
        Huge = "huge",
        /// Near and below the smallest normal number.
        Tiny = "tiny",
        /// One positive value everywhere.
        Const = "const",
        /// Normal with half of the blocks zero.
        Zeros = "zeros",
        /// Every finite scale pattern of the type.
        Scales = "scales",
        /// NaN in some weight rows and activation rows, infinities where the type has them.
        Special = "special",
        /// One activation of ±255 beside small ones: bf16 keeps them all, a common 8-bit scale does not.
        Act255 = "act255",
        /// One activation of ±257 beside small ones: f16 keeps it, bf16 does not.
        Act257 = "act257",
        /// One activation of ±2049 beside small ones: f32 keeps it, f16 does not.
        Act2049 = "act2049",
        /// Weights of up to ±2049 units in every row, with activations that survive everywhere: f16 does not keep them.
        W2049 = "w2049",
        /// Weights about normal, activations uniform up to ±10⁵: beyond the range of f16.
        Loud = "loud",
    }
}

impl Data {
    /// The recipes that drawn cases have. The others ask what arithmetic a device has, or are there for a
    /// grid: drawing them would teach nothing more.
    pub const DRAWN: &[Data] = Data::ALL.split_at(Data::Act255 as usize).0;

    /// Whether weights of a type can be what the recipe says.
    pub(crate) fn is_possible(self, w: ElemType) -> bool {
        self.refusal(w).is_none()
    }

    /// Why weights of a type cannot be what the recipe says.
    fn refusal(self, w: ElemType) -> Option<String> {
        if w.is_decoded_by_build() && !by_build::RECIPES.contains(&self) {
            let possible = by_build::RECIPES.map(Data::word).join(", ");
            return Some(format!("only a build decodes {w}, so its values cannot be chosen; possible: {possible}"));
        }
        let has_room = self != Data::W2049 || exact::has_twelve_bits(w);
        (!has_room).then(|| format!("no weight of {w} has twelve bits"))
    }

    /// The activation that a device may not be able to represent.
    fn large_activation(self) -> Option<i64> {
        match self {
            Data::Act255 => Some(255),
            Data::Act257 => Some(257),
            Data::Act2049 => Some(2049),
            _ => None,
        }
    }

    /// True where the signs of the products are independent of their magnitudes and of each other,
    /// so that the probabilistic bounds hold.
    pub(crate) fn has_random_signs(self) -> bool {
        !self.is_exact() && self != Data::Const
    }

    /// True where some operands are NaN or infinite.
    pub(crate) fn has_special_values(self) -> bool {
        self == Data::Special
    }

    /// True where weights are within a few steps of zero, so that neither sums nor offset parts grow large.
    fn has_small_codes(self) -> bool {
        self.is_exact() && self != Data::Wide
    }

    /// True for the integer recipes, whose sums are exact in any order.
    fn is_exact(self) -> bool {
        matches!(self, Data::Wide | Data::Narrow | Data::W2049) || self.large_activation().is_some()
    }
}

/// Margin letters of weights, activations and ids.
const WEIGHT_DIMS: &str = "kme";
const X_DIMS: &str = "kbn";
const IDS_DIMS: &str = "un";

/// One `mul_mat_id` case without its seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulMatId {
    /// Weight type.
    pub w: ElemType,
    /// Experts.
    pub experts: usize,
    /// Experts used per token: slots.
    pub used: usize,
    /// Rows of an expert.
    pub m: usize,
    /// Tokens.
    pub n: usize,
    /// Columns of an expert.
    pub k: usize,
    /// Activation rows per token; a divisor of `used`.
    pub b: usize,
    /// Row stride of the ids in elements: more than `used` where they are a view of a wider table.
    pub table: usize,
    /// Margins of the weights.
    pub wv: Margins,
    /// Margins of the activations.
    pub xv: Margins,
    /// Margins of the ids: one column, or one token, before the view.
    pub iv: Margins,
    /// Routing.
    pub route: Route,
    /// Data recipe.
    pub data: Data,
    /// The activations are an earlier result of the device, and only the weights are drawn. No id says so: it is a step of
    /// a program.
    pub(crate) is_x_result: bool,
}

/// Positions of the tensors in the plan.
pub(crate) const WEIGHTS: usize = 0;
pub(crate) const X: usize = 1;
pub(crate) const IDS: usize = 2;
pub(crate) const OUT: usize = 3;

impl MulMatId {
    /// The most experts an id may name.
    pub const MAX_EXPERTS: usize = 1024;

    fn read(params: &str, recipe: &str) -> Result<(Self, Seq), String> {
        let mut p = Reader::new("params", params)?;
        let w: ElemType = p.take("w")?;
        let x: ElemType = p.take("x")?;
        let experts = p.take("e")?;
        let used = p.take("u")?;
        let (m, n, k) = (p.take("m")?, p.take("n")?, p.take("k")?);
        let b = p.take_or("b", 1)?;
        let table = p.take_or("t", used)?;
        let wv = Margins::parse(&p.take_or("wv", String::new())?, WEIGHT_DIMS)?;
        let xv = Margins::parse(&p.take_or("xv", String::new())?, X_DIMS)?;
        let iv = Margins::parse(&p.take_or("iv", String::new())?, IDS_DIMS)?;
        p.finish()?;
        let mut r = Reader::new("recipe", recipe)?;
        let (route, data) = (r.take("route")?, r.take("data")?);
        let seq = Calls::read(&mut r)?;
        r.finish()?;
        if x != ElemType::F32 {
            return Err(format!("params: x={x}: activations are f32"));
        }
        let case = MulMatId { w, experts, used, m, n, k, b, table, wv, xv, iv, route, data, is_x_result: false };
        case.validate()?;
        Ok((case, seq))
    }

    /// Refuses impossible combinations, naming the keys.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let Self { w, experts, used, m, n, k, b, table, .. } = *self;
        let fail = |why: String| Err(format!("params: {why}"));
        if !ElemType::WEIGHTS.contains(&w) && !w.is_decoded_by_build() {
            return fail(format!("w={w}: is no weight type"));
        }
        for (key, value) in [("e", experts), ("u", used), ("m", m), ("n", n), ("k", k), ("b", b)] {
            if value == 0 {
                return fail(format!("{key}=0: must be at least 1"));
            }
        }
        if experts > Self::MAX_EXPERTS {
            return fail(format!("e={experts}: at most {}", Self::MAX_EXPERTS));
        }
        if used > experts {
            return fail(format!("u={used}: more than the experts, e={experts}"));
        }
        if !k.is_multiple_of(w.block_len()) {
            return fail(format!("k={k}: {w} needs a multiple of {}", w.block_len()));
        }
        if !used.is_multiple_of(b) {
            return fail(format!("b={b}: does not divide u={used}"));
        }
        let least = used + usize::from(self.iv.0[0]);
        if table < least {
            return fail(format!("t={table}: the ids table needs at least {least} columns"));
        }
        // Beyond this, sizes in bytes no longer fit; real memory ends much earlier and is reported when it does.
        let padded = |d: usize| d.saturating_add(64);
        let product = |dims: &[usize]| dims.iter().try_fold(1usize, |p, d| p.checked_mul(*d)).filter(|p| *p < 1 << 40);
        for (what, dims) in [
            ("weights", &[padded(k), padded(m), experts][..]),
            ("activations", &[padded(k), b, padded(n)]),
            ("ids", &[table, padded(n)]),
            ("output", &[m, used, n]),
        ] {
            if product(dims).is_none() {
                return fail(format!("the {what} would have 2^40 elements or more"));
            }
        }
        let recipe = |why: &str| Err(format!("recipe: {why}"));
        if let Some(why) = self.data.refusal(w) {
            return recipe(&format!("data={}: {why}", self.data));
        }
        match self.route {
            Route::Repeat if used < 2 => recipe("route=repeat: needs u of at least 2"),
            Route::Empty if used == experts => recipe("route=empty: needs u below e"),
            _ => Ok(()),
        }
    }

    /// Models to name where a device fails under its own: those that it is not allowed for want of an entry.
    fn looser_models(&self, device: &Capabilities) -> Vec<Model> {
        match device.kernels {
            Kernels::Unknown => looser_than_unknown(device.flushes_subnormals),
            _ => Vec::new(),
        }
    }

    /// The precision model on a device.
    fn model_on(&self, device: &Capabilities) -> Model {
        of_device(&Arithmetic {
            kernels: device.kernels,
            weights: self.w,
            tokens: self.n,
            shape: Shape { rows: self.m, columns: self.k },
            flushes: device.flushes_subnormals,
            flushes_f16: device.flushes_f16,
        })
    }

    /// True where the signs of the products are independent of their magnitudes and of each other.
    fn has_random_signs(&self) -> bool {
        // Weights alone must see to it where activations are results: their signs are independent if each is drawn by
        // itself, and not where a block has one scale and codes that are not symmetric.
        let alone = !self.w.is_blocked() || self.w == ElemType::Mxfp4;
        self.data.has_random_signs() && (!self.is_x_result || alone)
    }

    /// Slots of all tokens.
    pub fn slots(&self) -> usize {
        self.used * self.n
    }
}

impl CaseType for MulMatId {
    fn op(&self) -> &'static str {
        OP.name
    }

    fn params(&self) -> String {
        let mut p = Writer::default();
        p.put("w", self.w);
        p.put("x", ElemType::F32);
        p.put("e", self.experts);
        p.put("u", self.used);
        p.put("m", self.m);
        p.put("n", self.n);
        p.put("k", self.k);
        p.put_unless("b", self.b, 1);
        p.put_unless("t", self.table, self.used);
        p.put_unless("wv", self.wv.letters(WEIGHT_DIMS), String::new());
        p.put_unless("xv", self.xv.letters(X_DIMS), String::new());
        p.put_unless("iv", self.iv.letters(IDS_DIMS), String::new());
        p.finish()
    }

    fn recipe(&self) -> String {
        let mut r = Writer::default();
        r.put("route", self.route);
        r.put("data", self.data);
        r.finish()
    }

    fn program(&self, _seed: u64) -> Program {
        let weights = Tensor::whole("weights", self.w, [self.k, self.m, self.experts, 1], Role::Weights);
        let x = Tensor::whole("x", ElemType::F32, [self.k, self.b, self.n, 1], Role::Input);
        let mut ids = Tensor::whole("ids", ElemType::I32, [self.used, self.n, 1, 1], Role::Input);
        ids.parent[0] = self.table;
        ids.start[0] = usize::from(self.iv.0[0]);
        let ids = ids.with_margins([false, self.iv.0[1], false, false]);
        let out = Tensor::whole("out", ElemType::F32, [self.m, self.used, self.n, 1], Role::Output);
        let tensors = vec![weights.with_margins(self.wv.0), x.with_margins(self.xv.0), ids, out];
        let steps = vec![Step::MulMatId { weights: WEIGHTS, x: X, ids: IDS, out: OUT }];
        Program { tensors, steps, ..Program::default() }
    }

    fn fill_row(&self, seed: u64, tensor: usize, at: [usize; 3], row: &mut [u8]) {
        match tensor {
            WEIGHTS => data::fill_weights(self, seed, at[1], at[0], row),
            X => data::fill_activations(self, seed, at[1], at[0], row),
            _ => routing::fill_ids(self, seed, at[0], row),
        }
    }

    fn fill_margin(&self, seed: u64, tensor: usize, bytes: &mut [u8]) {
        match tensor {
            WEIGHTS => data::fill_poison(self.w, bytes),
            X => data::fill_poison(ElemType::F32, bytes),
            // Valid experts: what a kernel reads with the wrong stride looks right and is not.
            _ => routing::fill_decoys(self, seed, bytes),
        }
    }

    fn cost(&self) -> Cost {
        let (m, k) = (self.m as u64, self.k as u64);
        // What a build decoded is kept in the parent.
        let decoded = if self.w.is_decoded_by_build() { 4 * k * m * self.experts as u64 } else { 0 };
        Cost {
            operations: m * k * self.slots() as u64,
            // Per output about 30 numbers, per row of weights 10; activations in f32, in f64, their magnitudes and squares,
            // and two gradients.
            oracle_bytes: decoded
                + 240 * m * self.slots() as u64
                + 80 * m * self.experts as u64
                + 36 * k * (self.b * self.n) as u64,
            input_elements: k * (m * self.experts as u64 + (self.b * self.n) as u64) + (self.table * self.n) as u64,
        }
    }

    fn group(&self) -> &'static str {
        self.w.name()
    }

    fn shape_class(&self) -> &'static str {
        if self.n == 1 { "one-token" } else { "many-tokens" }
    }

    fn binds_foreign_devices(&self) -> bool {
        let repeats = self.route == Route::Repeat || self.route == Route::One && self.used > 1;
        !repeats && self.route != Route::Out && self.data != Data::Special
    }

    fn model(&self, device: &Capabilities) -> Option<Model> {
        Some(self.model_on(device))
    }

    fn oracle(&self, _seed: u64, inputs: &Inputs<'_>) -> Box<dyn Oracle> {
        Box::new(oracle::MulMatIdOracle::new(self, inputs))
    }

    fn describe(&self, _seed: u64, inputs: &Inputs<'_>) -> Vec<String> {
        let (t, bytes) = inputs.tensor(IDS);
        let ids = (0..self.n).flat_map(|n| read_i32(&bytes[t.row_range([n, 0, 0])]));
        routing::describe(self.experts, ids)
    }
}

#[cfg(test)]
mod tests {
    use crate::case::Case;

    fn error(id: &str) -> String {
        id.parse::<Case>().unwrap_err().to_string()
    }

    #[test]
    fn ids_round_trip() {
        for id in [
            "mul_mat_id/w=mxfp4,x=f32,e=32,u=4,m=64,n=33,k=256/route=skew,data=normal/v1-9f3c",
            "mul_mat_id/w=f32,x=f32,e=8,u=6,m=1,n=1,k=1,b=3,t=8,wv=km,xv=kbn,iv=un/route=out,data=special/v1-0",
        ] {
            assert_eq!(id.parse::<Case>().unwrap().id(), id);
        }
    }

    #[test]
    fn bad_ids_say_what_and_where() {
        for (id, why) in [
            ("mul_mat_id/w=q9,x=f32,e=1,u=1,m=1,n=1,k=1/route=one,data=wide/v1-1", "params: w=q9: is no element type"),
            ("mul_mat_id/w=i32,x=f32,e=1,u=1,m=1,n=1,k=1/route=one,data=wide/v1-1", "w=i32: is no weight type"),
            ("mul_mat_id/w=f32,x=f16,e=1,u=1,m=1,n=1,k=1/route=one,data=wide/v1-1", "activations are f32"),
            (
                "mul_mat_id/w=q4_0,x=f32,e=1,u=1,m=1,n=1,k=33/route=one,data=wide/v1-1",
                "k=33: q4_0 needs a multiple of 32",
            ),
            ("mul_mat_id/w=f32,x=f32,e=2,u=3,m=1,n=1,k=1/route=one,data=wide/v1-1", "u=3: more than the experts"),
            ("mul_mat_id/w=f32,x=f32,e=4,u=4,m=1,n=1,k=1,b=3/route=one,data=wide/v1-1", "b=3: does not divide u=4"),
            ("mul_mat_id/w=f32,x=f32,e=4,u=4,m=1,n=1,k=1,t=4,iv=u/route=one,data=wide/v1-1", "at least 5 columns"),
            ("mul_mat_id/w=f32,x=f32,e=2000,u=4,m=1,n=1,k=1/route=one,data=wide/v1-1", "e=2000: at most 1024"),
            ("mul_mat_id/w=f32,x=f32,e=4,u=4,m=0,n=1,k=1/route=one,data=wide/v1-1", "m=0"),
            ("mul_mat_id/w=f32,x=f32,e=4,u=1,m=1,n=1,k=1/route=repeat,data=wide/v1-1", "route=repeat"),
            ("mul_mat_id/w=f32,x=f32,e=4,u=1,m=1,n=1,k=1/route=zig,data=wide/v1-1", "is no routing; known: shuffle"),
            (
                "mul_mat_id/w=mxfp4,x=f32,e=4,u=1,m=1,n=1,k=32/route=one,data=w2049/v1-1",
                "recipe: data=w2049: no weight of mxfp4 has twelve bits",
            ),
            (
                "mul_mat_id/w=q2_K,x=f32,e=4,u=1,m=1,n=1,k=256/route=one,data=wide/v1-1",
                "recipe: data=wide: only a build decodes q2_K, so its values cannot be chosen; possible: normal, uniform",
            ),
            ("mul_mat_id/w=q1_0,x=f32,e=4,u=1,m=1,n=1,k=64/route=one,data=normal/v1-1", "q1_0 needs a multiple of 128"),
            ("mul_mat_id/w=f32,x=f32,e=4,u=1,m=1,n=1,k=1,q=2/route=one,data=wide/v1-1", "unknown key 'q'"),
            (
                "mul_mat_id/w=f32,x=f32,e=4,u=1,m=1,n=1,k=1,b=1/route=one,data=wide/v1-1",
                "not in canonical form; write mul_mat_id/w=f32,x=f32,e=4,u=1,m=1,n=1,k=1/",
            ),
            ("mul_mat_id/x=f32,w=f32,e=4,u=1,m=1,n=1,k=1/route=one,data=wide/v1-1", "not in canonical form"),
            ("mul_mat_id/w=f32,x=f32,e=4,u=1,m=1,n=1,k=1/route=one,data=wide/v1-01", "not in canonical form"),
            ("mul_mat_id/w=f32,x=f32,e=4,u=1,m=9999999,n=1,k=9999999/route=one,data=wide/v1-1", "2^40 elements"),
            (
                "mul_mat_id/w=f32,x=f32,e=4,u=1,m=18446744073709551615,n=1,k=1/route=one,data=wide/v1-1",
                "the weights would have 2^40",
            ),
            ("mul_mat/w=f32/route=one/v1-1", "unknown op 'mul_mat'; known: mul_mat_id, argsort"),
        ] {
            let e = error(id);
            assert!(e.contains(why), "{id}: {e}");
            assert!(!e.contains('\n'));
        }
    }
}
