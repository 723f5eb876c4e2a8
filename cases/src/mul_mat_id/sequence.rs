//! Sequences of calls: what an earlier call leaves behind must not show in a later one.
//!
//! Every call is a matmul like any other and is judged by itself. Between them
//! a device may keep converted weights, sorted slots, scratch memory and counters;
//! what it keeps must follow its inputs.

use std::sync::Arc;

use super::{Data, IDS, MulMatId, Route, WEIGHTS, X};
use crate::argsort::Argsort;
use crate::cost::Cost;
use crate::id::{Margins, Reader, Writer, words};
use crate::inputs::Inputs;
use crate::judge::{Capabilities, Oracle};
use crate::keys::{KeyRows, Keys};
use crate::model::Model;
use crate::op::{CaseType, Program};
use crate::plan::Order;
use crate::steps::{Fill, Script};

words! {
    /// How calls follow each other.
    pub enum Seq: "sequence of calls" {
        /// A single call.
        None = "none",
        /// One token, all tokens, and the first call again: the same weights by the two paths that a device may have.
        Back = "back",
        /// The same weights and shapes with other ids: in tensors of their own, then one after the other in the same tensor.
        Ids = "ids",
        /// More experts and tokens with every call, then few again.
        Grow = "grow",
        /// Two layers in turn, each with weights and ids of its own, for two batches of tokens.
        Layers = "layers",
        /// One call, with other tensors before, between and behind its own: nobody may touch them.
        Beside = "beside",
        /// Three matmuls, each of which has the last one's result as its activations.
        Chain = "chain",
    }
}

/// Several calls.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    /// The largest of them.
    of: MulMatId,
    seq: Seq,
    script: Script,
}

impl Calls {
    /// Puts the calls together. The error says which of the sequence's needs is not met.
    pub(super) fn new(of: MulMatId, seq: Seq) -> Result<Self, String> {
        let fail = |why: String| Err(format!("recipe: seq={seq}: {why}"));
        match seq {
            Seq::Back if of.n < 2 => return fail("needs n of at least 2".to_owned()),
            Seq::Chain if of.route == Route::Out => {
                return fail("rows that nobody wrote are no activations".to_owned());
            }
            Seq::Chain if !of.m.is_multiple_of(of.w.block_len()) => {
                return fail(format!(
                    "needs m a multiple of {}, the rows are columns of the next weights",
                    of.w.block_len()
                ));
            }
            Seq::Chain if !finite(of.data) => {
                return fail(format!("results of data={} may be no activations of the next matmul", of.data));
            }
            _ => {}
        }
        let script = script(&of, seq);
        Ok(Calls { of, seq, script })
    }

    /// The sequence's key of the recipe, which single calls leave out.
    pub(super) fn read(recipe: &mut Reader<'_>) -> Result<Seq, String> {
        recipe.take_or("seq", Seq::None)
    }
}

/// Recipes whose results are finite numbers of a size that can be multiplied again.
fn finite(data: Data) -> bool {
    crate::moe_layer::DATA.contains(&data)
}

/// One call's case. Its inputs are numbered where several calls have some of the same kind.
#[derive(Clone)]
struct Call {
    case: Arc<MulMatId>,
}

impl Call {
    fn new(case: MulMatId) -> Self {
        Call { case: Arc::new(case) }
    }

    fn fill(&self, tensor: usize, from: [usize; 3], seed: u64) -> Fill {
        Fill { from, seed, ..Fill::of(self.case.clone(), tensor) }
    }

    /// Weights of the `which`-th layer: those of further experts.
    fn weights(&self, s: &mut Script, which: usize) -> usize {
        s.input(&numbered("weights", which), self.fill(WEIGHTS, [0, which * MulMatId::MAX_EXPERTS, 0], 0))
    }

    /// Activations of the `which`-th batch: those of further tokens.
    fn x(&self, s: &mut Script, which: usize) -> usize {
        s.input(&numbered("x", which), self.fill(X, [0, which * self.case.n, 0], 0))
    }

    /// Ids drawn with a seed of their own.
    fn ids(&self, s: &mut Script, which: usize) -> usize {
        s.input(&numbered("ids", which), self.fill(IDS, [0; 3], which as u64))
    }

    fn call(&self, s: &mut Script, number: usize, inputs: [usize; 3]) -> usize {
        s.call(&numbered("out", number), self.case.clone(), &inputs, &inputs)
    }

    /// A call whose ids lie in `slot`, where `inputs` has the tensor that they were copied from.
    fn call_through(&self, s: &mut Script, number: usize, inputs: [usize; 3], slot: usize) -> usize {
        s.call(&numbered("out", number), self.case.clone(), &[inputs[0], inputs[1], slot], &inputs)
    }
}

fn numbered(name: &str, number: usize) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}_{}", number + 1) }
}

fn script(of: &MulMatId, seq: Seq) -> Script {
    let mut s = Script::default();
    let whole = Call::new(of.clone());
    match seq {
        Seq::None => {
            let inputs = [whole.weights(&mut s, 0), whole.x(&mut s, 0), whole.ids(&mut s, 0)];
            whole.call(&mut s, 0, inputs);
        }
        Seq::Beside => {
            // Odd lengths, so that what follows lies where a row that is too long ends.
            let beside = |s: &mut Script, which: usize| {
                let rows = KeyRows { cols: 33, rows: [3, 1, 1], view: Margins::default(), keys: Keys::Bits };
                let keys = Arc::new(Argsort { rows, order: Order::Asc });
                s.input(&numbered("neighbour", which), Fill { seed: which as u64, ..Fill::of(keys, 0) });
            };
            beside(&mut s, 0);
            let weights = whole.weights(&mut s, 0);
            beside(&mut s, 1);
            let x = whole.x(&mut s, 0);
            beside(&mut s, 2);
            let ids = whole.ids(&mut s, 0);
            // Weights that nobody multiplies with lie beside as well.
            whole.weights(&mut s, 1);
            whole.call(&mut s, 0, [weights, x, ids]);
        }
        Seq::Back => {
            let single = Call::new(MulMatId { n: 1, ..of.clone() });
            let weights = whole.weights(&mut s, 0);
            let few = [weights, single.x(&mut s, 0), single.ids(&mut s, 0)];
            let many = [weights, whole.x(&mut s, 1), whole.ids(&mut s, 1)];
            single.call(&mut s, 0, few);
            whole.call(&mut s, 1, many);
            single.call(&mut s, 2, few);
        }
        Seq::Ids => {
            let (weights, x) = (whole.weights(&mut s, 0), whole.x(&mut s, 0));
            let ids = [whole.ids(&mut s, 0), whole.ids(&mut s, 1)];
            let slot = s.like("slot", ids[0]);
            for (number, ids) in ids.into_iter().enumerate() {
                whole.call(&mut s, number, [weights, x, ids]);
            }
            for (number, ids) in ids.into_iter().enumerate() {
                s.copy(ids, slot);
                whole.call_through(&mut s, 2 + number, [weights, x, ids], slot);
            }
        }
        Seq::Grow => {
            let sizes = [4, 2, 1, 4];
            let cases = sizes.map(|part| {
                let experts = (of.experts / part).max(of.used + usize::from(of.route == Route::Empty));
                Call::new(MulMatId { experts, n: (of.n / part).max(1), ..of.clone() })
            });
            let inputs = [0, 1, 2].map(|i| {
                let case = &cases[i];
                [case.weights(&mut s, i), case.x(&mut s, i), case.ids(&mut s, i)]
            });
            for (number, i) in [0, 1, 2, 0].into_iter().enumerate() {
                cases[i].call(&mut s, number, inputs[i]);
            }
        }
        Seq::Layers => {
            let weights = [whole.weights(&mut s, 0), whole.weights(&mut s, 1)];
            let x = [whole.x(&mut s, 0), whole.x(&mut s, 1)];
            for number in 0..4 {
                let ids = whole.ids(&mut s, number);
                whole.call(&mut s, number, [weights[number % 2], x[number / 2], ids]);
            }
        }
        Seq::Chain => {
            let next = |m, k| MulMatId { m, k, b: of.used, is_x_result: true, xv: Default::default(), ..of.clone() };
            let there = Call::new(next(of.k, of.m));
            let back = Call::new(next(of.m, of.k));
            let (first, ids) = (whole.weights(&mut s, 0), whole.ids(&mut s, 0));
            let (second, third) = (there.weights(&mut s, 1), back.weights(&mut s, 2));
            let x = whole.x(&mut s, 0);
            let others = whole.ids(&mut s, 1);
            let out = whole.call(&mut s, 0, [first, x, ids]);
            let out = there.call(&mut s, 1, [second, out, ids]);
            back.call(&mut s, 2, [third, out, others]);
        }
    }
    s
}

impl CaseType for Calls {
    fn op(&self) -> &'static str {
        self.of.op()
    }

    fn params(&self) -> String {
        self.of.params()
    }

    fn recipe(&self) -> String {
        let mut r = Writer::default();
        r.put("route", self.of.route);
        r.put("data", self.of.data);
        r.put_unless("seq", self.seq, Seq::None);
        r.finish()
    }

    fn program(&self, _: u64) -> Program {
        self.script.program()
    }

    fn fill_row(&self, seed: u64, tensor: usize, at: [usize; 3], row: &mut [u8]) {
        self.script.fill_row(seed, tensor, at, row);
    }

    fn fill_margin(&self, seed: u64, tensor: usize, bytes: &mut [u8]) {
        self.script.fill_margin(seed, tensor, bytes);
    }

    fn cost(&self) -> Cost {
        self.script.cost()
    }

    fn group(&self) -> &'static str {
        self.of.group()
    }

    fn shape_class(&self) -> &'static str {
        "calls"
    }

    fn binds_foreign_devices(&self) -> bool {
        self.script.binds_foreign_devices()
    }

    fn model(&self, device: &Capabilities) -> Option<Model> {
        self.script.model(device)
    }

    fn oracle(&self, seed: u64, _: &Inputs<'_>) -> Box<dyn Oracle> {
        self.script.oracle(seed)
    }

    fn describe(&self, _: u64, _: &Inputs<'_>) -> Vec<String> {
        self.script.describe()
    }
}

#[cfg(test)]
mod tests {
    use crate::case::Case;

    fn id(params: &str, recipe: &str) -> String {
        format!("mul_mat_id/w=mxfp4,x=f32,e=8,u=2,{params}/{recipe}/v1-5")
    }

    #[test]
    fn ids_round_trip_and_refuse() {
        for seq in ["back", "ids", "grow", "layers", "beside", "chain"] {
            let id = id("m=64,n=9,k=96", &format!("route=skew,data=normal,seq={seq}"));
            assert_eq!(id.parse::<Case>().unwrap().id(), id);
        }
        for (params, recipe, why) in [
            ("m=64,n=1,k=96", "route=skew,data=normal,seq=back", "seq=back: needs n of at least 2"),
            ("m=65,n=2,k=96", "route=skew,data=normal,seq=chain", "seq=chain: needs m a multiple of 32"),
            ("m=64,n=2,k=96", "route=out,data=normal,seq=chain", "rows that nobody wrote"),
            ("m=64,n=2,k=96", "route=skew,data=special,seq=chain", "results of data=special"),
            ("m=64,n=2,k=96", "route=skew,data=normal,seq=none", "canonical form"),
            ("m=64,n=2,k=96", "route=skew,data=normal,seq=zig", "known: none, back, ids, grow, layers, beside, chain"),
        ] {
            let e = id(params, recipe).parse::<Case>().unwrap_err().to_string();
            assert!(e.contains(why), "{recipe}: {e}");
        }
    }

    /// Weights, activations and ids of different calls differ, though their recipes are the same.
    #[test]
    fn calls_have_inputs_of_their_own() {
        for seq in ["back", "ids", "grow", "layers", "beside", "chain"] {
            let case: Case = id("m=64,n=9,k=64", &format!("route=fixed,data=normal,seq={seq}")).parse().unwrap();
            let plan = case.plan();
            let bytes = |i: usize| {
                let mut bytes = vec![0; plan.tensors[i].parent_bytes()];
                case.fill(i, &plan.tensors[i], &mut bytes);
                bytes
            };
            let inputs: Vec<usize> = (0..plan.tensors.len()).filter(|i| plan.tensors[*i].is_input()).collect();
            assert!(inputs.len() >= 4, "{seq}");
            for (at, one) in inputs.iter().enumerate() {
                for other in &inputs[at + 1..] {
                    assert_ne!(bytes(*one), bytes(*other), "{seq}: {one} and {other}");
                }
            }
        }
    }
}
