//! `moe_layer`: a mixture-of-experts layer, from router logits to the down projection.
//!
//! ```text
//! ids  = the `u` best experts of each token: a view of an argsort of the logits [e, n], or a top-k of them
//! gate = mul_mat_id(gate weights [h, f, e], x [h, 1, n], ids)       [f, u, n]
//! up   = mul_mat_id(up weights   [h, f, e], x,           ids)       [f, u, n]
//! down = mul_mat_id(down weights [f, h, e], up,          ids)       [h, u, n]
//! ```
//!
//! A real layer multiplies gate and up before it projects down; plans have no
//! such op, so `down` takes what `up` left behind. All three use one routing.

mod draw;

use std::sync::Arc;

use crate::argsort::Argsort;
use crate::cost::Cost;
use crate::formats::ElemType;
use crate::id::{Margins, Reader, Writer, words};
use crate::inputs::Inputs;
use crate::judge::{Capabilities, Oracle};
use crate::keys::{KeyRows, Keys};
use crate::model::Model;
use crate::mul_mat_id::{Data, MulMatId, Route};
use crate::op::{CaseType, Op, Program};
use crate::plan::{Order, Role, Tensor};
use crate::steps::{Fill, Script};
use crate::top_k::TopK;

/// The op's entry in the registry.
pub const OP: Op = Op {
    name: "moe_layer",
    groups: &["argsort", "top_k"],
    parse: |params, recipe| Ok(Arc::new(MoeLayer::parse(params, recipe)?)),
    draw: |d| Arc::new(draw::draw(d)),
    named: draw::NAMED,
};

words! {
    /// What the experts of a token are chosen by.
    pub enum Router: "router" {
        /// An argsort of all logits, of which the first columns are looked at.
        Argsort = "argsort",
        /// A top-k.
        TopK = "top_k",
    }
}

/// Recipes of weights and activations: those whose results are finite, since they are multiplied again.
pub const DATA: &[Data] =
    &[Data::Normal, Data::Uniform, Data::Wide, Data::Narrow, Data::Heavy, Data::Const, Data::Zeros];

/// Sizes and recipes of a layer, without its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Type of the gate and up weights.
    pub w: ElemType,
    /// Type of the down weights.
    pub down: ElemType,
    /// Experts.
    pub experts: usize,
    /// Experts of a token.
    pub used: usize,
    /// Columns of gate and up: the hidden size.
    pub hidden: usize,
    /// Rows of gate and up: the size inside of an expert.
    pub inner: usize,
    /// Tokens.
    pub n: usize,
    /// How experts are chosen.
    pub router: Router,
    /// Devices sort slots anew for each matmul, instead of once for all three.
    pub has_fresh_routing: bool,
    /// Logits.
    pub logits: Keys,
    /// Weights and activations.
    pub data: Data,
}

/// One case.
#[derive(Clone, Debug)]
pub struct MoeLayer {
    shape: Shape,
    script: Script,
}

/// Positions of tensors in a sort, and in a matmul.
const KEYS: usize = 0;
const WEIGHTS: usize = 0;
const X: usize = 1;

impl MoeLayer {
    pub(super) fn new(shape: Shape) -> Self {
        MoeLayer { shape, script: shape.script() }
    }

    fn parse(params: &str, recipe: &str) -> Result<Self, String> {
        let mut p = Reader::new("params", params)?;
        let w = p.take("w")?;
        let x: ElemType = p.take("x")?;
        let (experts, used) = (p.take("e")?, p.take("u")?);
        let (hidden, inner, n) = (p.take("h")?, p.take("f")?, p.take("n")?);
        let down = p.take_or("wd", w)?;
        let router = p.take_or("by", Router::Argsort)?;
        let cache: u8 = p.take_or("cache", 1)?;
        p.finish()?;
        let mut r = Reader::new("recipe", recipe)?;
        let (logits, data) = (r.take("route")?, r.take("data")?);
        r.finish()?;
        if x != ElemType::F32 {
            return Err(format!("params: x={x}: activations are f32"));
        }
        if cache > 1 {
            return Err(format!("params: cache={cache}: must be 0 or 1"));
        }
        let shape =
            Shape { w, down, experts, used, hidden, inner, n, router, has_fresh_routing: cache == 0, logits, data };
        shape.validate()?;
        Ok(Self::new(shape))
    }
}

impl Shape {
    /// Refuses impossible combinations. Those of the matmuls are theirs to refuse; they call sizes by other names.
    fn validate(&self) -> Result<(), String> {
        for (key, value) in [("h", self.hidden), ("f", self.inner)] {
            if value == 0 {
                return Err(format!("params: {key}=0: must be at least 1"));
            }
        }
        for (key, value, ty) in [("h", self.hidden, self.w), ("f", self.inner, self.down)] {
            if !ElemType::WEIGHTS.contains(&ty) {
                return Err(format!("params: {ty}: is no weight type of a layer"));
            }
            if !value.is_multiple_of(ty.block_len()) {
                return Err(format!("params: {key}={value}: {ty} needs a multiple of {}", ty.block_len()));
            }
        }
        if !DATA.contains(&self.data) {
            let known: Vec<_> = DATA.iter().map(|d| d.word()).collect();
            return Err(format!("recipe: data={}: of a layer it is one of {}", self.data, known.join(", ")));
        }
        self.gate().validate()?;
        self.down().validate()
    }

    fn gate(&self) -> MulMatId {
        let table = if self.router == Router::Argsort { self.experts } else { self.used };
        MulMatId {
            w: self.w,
            experts: self.experts,
            used: self.used,
            m: self.inner,
            n: self.n,
            k: self.hidden,
            b: 1,
            table,
            wv: Margins::default(),
            xv: Margins::default(),
            iv: Margins::default(),
            route: Route::Shuffle,
            data: self.data,
            is_x_result: false,
        }
    }

    fn down(&self) -> MulMatId {
        MulMatId { w: self.down, m: self.hidden, k: self.inner, b: self.used, is_x_result: true, ..self.gate() }
    }

    fn script(&self) -> Script {
        let mut s = Script::default();
        let rows = KeyRows { cols: self.experts, rows: [self.n, 1, 1], view: Margins::default(), keys: self.logits };
        let ids = match self.router {
            Router::Argsort => {
                let sort: Arc<dyn CaseType> = Arc::new(Argsort { rows, order: Order::Desc });
                let logits = s.input("logits", Fill::of(sort.clone(), KEYS));
                let order = s.call("order", sort, &[logits], &[logits]);
                let (parent, shape) = ([self.experts, self.n, 1, 1], [self.used, self.n, 1, 1]);
                let role = Role::View { of: order };
                s.tensor(Tensor { shape, ..Tensor::whole("ids", ElemType::I32, parent, role) })
            }
            Router::TopK => {
                let choose: Arc<dyn CaseType> = Arc::new(TopK { rows, k: self.used });
                let logits = s.input("logits", Fill::of(choose.clone(), KEYS));
                s.call("ids", choose, &[logits], &[logits])
            }
        };
        let (gate, down): (Arc<dyn CaseType>, Arc<dyn CaseType>) = (Arc::new(self.gate()), Arc::new(self.down()));
        let x = s.input("x", Fill::of(gate.clone(), X));
        // Weights of the same recipe differ by being those of further experts.
        let weights = |case: &Arc<dyn CaseType>, further| Fill {
            from: [0, further * MulMatId::MAX_EXPERTS, 0],
            ..Fill::of(case.clone(), WEIGHTS)
        };
        let of_gate = s.input("gate_weights", weights(&gate, 0));
        let of_up = s.input("up_weights", weights(&gate, 1));
        let of_down = s.input("down_weights", weights(&down, 2));
        let mut call =
            |name, case: &Arc<dyn CaseType>, inputs: [usize; 3]| s.call(name, case.clone(), &inputs, &inputs);
        call("gate", &gate, [of_gate, x, ids]);
        let up = call("up", &gate, [of_up, x, ids]);
        call("down", &down, [of_down, up, ids]);
        s.with_fresh_routing(self.has_fresh_routing);
        s
    }
}

impl CaseType for MoeLayer {
    fn op(&self) -> &'static str {
        OP.name
    }

    fn params(&self) -> String {
        let (s, mut p) = (&self.shape, Writer::default());
        p.put("w", s.w);
        p.put("x", ElemType::F32);
        p.put("e", s.experts);
        p.put("u", s.used);
        p.put("h", s.hidden);
        p.put("f", s.inner);
        p.put("n", s.n);
        p.put_unless("wd", s.down, s.w);
        p.put_unless("by", s.router, Router::Argsort);
        p.put_unless("cache", u8::from(!s.has_fresh_routing), 1);
        p.finish()
    }

    fn recipe(&self) -> String {
        let mut r = Writer::default();
        r.put("route", self.shape.logits);
        r.put("data", self.shape.data);
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
        self.shape.router.word()
    }

    fn shape_class(&self) -> &'static str {
        if self.shape.n == 1 { "one-token" } else { "many-tokens" }
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

    #[test]
    fn ids_round_trip_and_refuse() {
        for id in [
            "moe_layer/w=mxfp4,x=f32,e=8,u=2,h=64,f=96,n=33/route=uniform,data=normal/v1-1",
            "moe_layer/w=f16,x=f32,e=8,u=2,h=65,f=96,n=1,wd=q8_0,by=top_k,cache=0/route=ties,data=wide/v1-ff",
        ] {
            assert_eq!(id.parse::<Case>().unwrap().id(), id);
        }
        for (id, why) in [
            ("w=mxfp4,x=f32,e=8,u=2,h=65,f=96,n=3/route=uniform,data=normal", "h=65: mxfp4 needs a multiple of 32"),
            ("w=f16,x=f32,e=8,u=2,h=65,f=9,n=3,wd=q8_0/route=uniform,data=normal", "f=9: q8_0 needs a multiple of 32"),
            ("w=q2_K,x=f32,e=8,u=2,h=256,f=256,n=3/route=uniform,data=normal", "q2_K: is no weight type of a layer"),
            ("w=f16,x=f32,e=8,u=9,h=65,f=96,n=3/route=uniform,data=normal", "u=9: more than the experts"),
            ("w=f16,x=f32,e=8,u=2,h=0,f=96,n=3/route=uniform,data=normal", "h=0: must be at least 1"),
            ("w=f16,x=f32,e=8,u=2,h=8,f=96,n=3,cache=2/route=uniform,data=normal", "cache=2: must be 0 or 1"),
            ("w=f16,x=f32,e=8,u=2,h=8,f=96,n=3,cache=1/route=uniform,data=normal", "canonical form"),
            ("w=f16,x=f32,e=8,u=2,h=8,f=96,n=3/route=skew,data=normal", "is no data recipe; known: uniform"),
            ("w=f16,x=f32,e=8,u=2,h=8,f=96,n=3/route=ties,data=huge", "data=huge: of a layer it is one of normal"),
        ] {
            let e = format!("moe_layer/{id}/v1-1").parse::<Case>().unwrap_err().to_string();
            assert!(e.contains(why), "{id}: {e}");
        }
    }
}
