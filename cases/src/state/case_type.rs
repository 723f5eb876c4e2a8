//! The ops `kv_state`, `recurrent_state`, `hybrid_state` and `checkpoint`.

use std::sync::Arc;

use super::judge::StateOracle;
use super::lower::{Lowered, lower};
use super::memory::{Memory, What};
use super::ops::{Mix, Op as Operation, Recipe, Script, fill_row};
use super::shape::{KvShape, RecurrentShape, Shape};
use super::stages::Stages;
use crate::cost::Cost;
use crate::draw::Draw;
use crate::formats::ElemType;
use crate::id::{Reader, Writer};
use crate::inputs::Inputs;
use crate::judge::{Capabilities, Oracle};
use crate::model::Model;
use crate::op::{CaseType, Op, Program};

/// Types that a cache may have.
pub const TYPES: [ElemType; 5] = [ElemType::F32, ElemType::F16, ElemType::Bf16, ElemType::Q8_0, ElemType::Q4_0];

/// Operations of a case at most.
const MOST_OPS: usize = 400;

/// Bytes of a cache at most.
const MOST_BYTES: usize = 1 << 30;

/// What kind of memory an op is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kv,
    Recurrent,
    Hybrid,
    Checkpoint,
}

/// One case of these ops.
#[derive(Clone, Debug)]
pub struct StateCase {
    kind: Kind,
    shape: Shape,
    recipe: Recipe,
    stages: Stages,
}

/// Attention KV caches.
pub const KV: Op = Op {
    name: "kv_state",
    groups: &["plain", "transposed", "quantised"],
    parse: |p, r| parse(Kind::Kv, p, r),
    draw: |d| draw(Kind::Kv, d),
    named: &[
        ("kv_state/c=16,l=1,k=32,v=32/n=6", "the smallest of everything"),
        (
            "kv_state/s=3,c=32,q=6,l=2,k=64,v=32,kt=q8_0,vt=q4_0/n=24,mix=holes",
            "quantised rows in three fragmented streams",
        ),
        ("kv_state/c=40,l=2,k=32,v=24,t=1/n=24,mix=holes", "transposed V, where each element of a cell is a transfer"),
        ("kv_state/c=24,l=2,k=32,v=32,xy=1/n=24", "positions with more than one component"),
        ("kv_state/c=24,l=2,k=32,v=32,w=9/n=24,mix=full", "a sliding window that gives cells up"),
        ("kv_state/c=24,q=4,l=1,k=32,v=32/n=24,mix=shared", "cells that several sequences share"),
    ],
};

/// Recurrent memories.
pub const RECURRENT: Op = Op {
    name: "recurrent_state",
    groups: &["plain", "transposed"],
    parse: |p, r| parse(Kind::Recurrent, p, r),
    draw: |d| draw(Kind::Recurrent, d),
    named: &[
        ("recurrent_state/c=8,q=4,l=2,r=24,s=64/n=24", "a state for each of four sequences"),
        (
            "recurrent_state/c=9,q=5,l=2,r=12,s=40,t=1/n=24,mix=shared",
            "transposed S, and copies that a save must resolve",
        ),
    ],
};

/// Attention and recurrent memory of one model.
pub const HYBRID: Op = Op {
    name: "hybrid_state",
    groups: &["all"],
    parse: |p, r| parse(Kind::Hybrid, p, r),
    draw: |d| draw(Kind::Hybrid, d),
    named: &[(
        "hybrid_state/c=24,q=3,l=1,k=32,v=32,rc=6,rl=2,r=16,rs=32/n=24",
        "partial states leave the attention part out",
    )],
};

/// Checkpoints of a prompt.
pub const CHECKPOINT: Op = Op {
    name: "checkpoint",
    groups: &["all"],
    parse: |p, r| parse(Kind::Checkpoint, p, r),
    draw: |d| draw(Kind::Checkpoint, d),
    named: &[(
        "checkpoint/c=48,q=3,l=2,k=32,v=32/n=32,ring=3,mix=holes",
        "buffers that are used again for a smaller state",
    )],
};

/// True for the name of one of these ops.
pub fn is_state(op: &str) -> bool {
    [KV, RECURRENT, HYBRID, CHECKPOINT].iter().any(|state| state.name == op)
}

impl StateCase {
    fn script(&self, seed: u64) -> Script {
        Script::draw(&self.shape, &self.recipe, seed)
    }

    fn lowered(&self, seed: u64) -> Lowered {
        lower(&self.shape, &self.script(seed), self.recipe.ring, seed, self.stages)
    }

    fn cache_bytes(&self) -> usize {
        self.shape.tensors().iter().map(|t| t.streams * t.stream_bytes()).sum()
    }
}

impl CaseType for StateCase {
    fn op(&self) -> &'static str {
        match self.kind {
            Kind::Kv => KV.name,
            Kind::Recurrent => RECURRENT.name,
            Kind::Hybrid => HYBRID.name,
            Kind::Checkpoint => CHECKPOINT.name,
        }
    }

    fn params(&self) -> String {
        let mut p = Writer::default();
        if let Some(kv) = &self.shape.kv {
            p.put_unless("s", kv.streams, 1);
            p.put("c", kv.cells);
            p.put_unless("q", kv.sequences, 2);
            p.put("l", kv.layers);
            p.put("k", kv.k_embd);
            p.put("v", kv.v_embd);
            p.put_unless("kt", kv.k_type, ElemType::F16);
            p.put_unless("vt", kv.v_type, ElemType::F16);
            p.put_unless("t", u8::from(kv.v_trans), 0);
            p.put_unless("xy", u8::from(kv.has_xy), 0);
            p.put_unless("w", kv.window, 0);
        }
        if let Some(r) = &self.shape.recurrent {
            if self.shape.kv.is_some() {
                p.put("rc", r.cells);
                p.put("rl", r.layers);
                p.put("r", r.r_embd);
                p.put("rs", r.s_embd);
                p.put_unless("rt", r.r_type, ElemType::F32);
                p.put_unless("st", r.s_type, ElemType::F32);
                p.put_unless("rst", u8::from(r.s_trans), 0);
            } else {
                p.put("c", r.cells);
                p.put_unless("q", r.sequences, 2);
                p.put("l", r.layers);
                p.put("r", r.r_embd);
                p.put("s", r.s_embd);
                p.put_unless("rt", r.r_type, ElemType::F32);
                p.put_unless("st", r.s_type, ElemType::F32);
                p.put_unless("t", u8::from(r.s_trans), 0);
            }
        }
        p.finish()
    }

    fn recipe(&self) -> String {
        let mut r = Writer::default();
        r.put("n", self.recipe.ops);
        r.put_unless("ring", self.recipe.ring, 0);
        r.put_unless("mix", self.recipe.mix, Mix::Any);
        r.finish()
    }

    fn program(&self, seed: u64) -> Program {
        self.lowered(seed).program
    }

    fn fill_row(&self, seed: u64, tensor: usize, at: [usize; 3], row: &mut [u8]) {
        let cache = self.shape.tensors().len();
        fill_row(seed, tensor - cache, at[0], row);
    }

    fn fill_margin(&self, _: u64, _: usize, _: &mut [u8]) {}

    fn with_stages(&self, stages: Stages) -> Option<Arc<dyn CaseType>> {
        Some(Arc::new(StateCase { stages, ..self.clone() }))
    }

    fn engine(&self, seed: u64) -> Option<Memory> {
        Some(self.lowered(seed).memory)
    }

    fn fill_buffer(&self, seed: u64, buffer: usize, bytes: &mut [u8]) {
        if let Some((_, blob)) = self.lowered(seed).given.iter().find(|(b, _)| *b == buffer) {
            bytes.copy_from_slice(blob);
        }
    }

    fn cost(&self) -> Cost {
        let bytes = self.cache_bytes() as u64;
        Cost {
            operations: 0,
            // New rows come beside the cache: about a quarter of it with each of the operations that append.
            input_elements: bytes * (self.recipe.ops as u64 / 8 + 1) / 4,
            oracle_bytes: bytes * (self.recipe.ops as u64 / 2 + 4),
        }
    }

    fn group(&self) -> &'static str {
        let quantised = self.shape.kv.is_some_and(|kv| kv.k_type.is_blocked() || kv.v_type.is_blocked());
        let transposed = self.shape.tensors().iter().any(|t| t.transposed);
        match self.kind {
            Kind::Hybrid | Kind::Checkpoint => "all",
            Kind::Kv if quantised => "quantised",
            _ if transposed => "transposed",
            _ => "plain",
        }
    }

    fn shape_class(&self) -> &'static str {
        self.group()
    }

    fn binds_foreign_devices(&self) -> bool {
        true
    }

    fn model(&self, _: &Capabilities) -> Option<Model> {
        None
    }

    fn oracle(&self, seed: u64, _: &Inputs<'_>) -> Box<dyn Oracle> {
        Box::new(StateOracle::new(&self.shape, self.lowered(seed), seed, self.stages))
    }

    fn describe(&self, seed: u64, _: &Inputs<'_>) -> Vec<String> {
        let script = self.script(seed);
        script.ops.iter().enumerate().map(|(i, op)| format!("{i:<9} {}", describe(op))).collect()
    }
}

fn describe(op: &Operation) -> String {
    match op {
        Operation::Append { sequence, cells, .. } => {
            let first = cells.first().map_or(0, |c| c.pos);
            format!("append {} positions from {first} to sequence {sequence}", cells.len())
        }
        Operation::Remove { sequence, from, to: i32::MAX } => format!("remove sequence {sequence} from {from} on"),
        Operation::Remove { sequence, from, to } => format!("remove positions {from} to {to} of sequence {sequence}"),
        Operation::Shift { sequence, from, by, .. } => format!("shift sequence {sequence} from {from} on by {by}"),
        Operation::Copy { from, to, fork } => {
            let own = if *fork { ", with a state of its own" } else { "" };
            format!("copy sequence {from} to {to}{own}")
        }
        Operation::Save { what, partial, checkpoint } => {
            let how = if *checkpoint { "checkpoint" } else { "save" };
            format!("{how} {}{}", name(*what), if *partial { ", partial" } else { "" })
        }
        Operation::Load { save, what, flip, .. } => {
            let how = if flip.is_some() { ", from the host and with one byte changed" } else { "" };
            format!("load save {save} into {}{how}", name(*what))
        }
        Operation::Garbage(byte) => format!("fill with {byte:#04x}"),
    }
}

fn name(what: What) -> String {
    what.sequence().map_or_else(|| "everything".to_owned(), |s| format!("sequence {s}"))
}

/// The memory that the params section of an id describes.
pub fn shape(op: &str, params: &str) -> Result<Shape, String> {
    let kinds = [(KV, Kind::Kv), (RECURRENT, Kind::Recurrent), (HYBRID, Kind::Hybrid), (CHECKPOINT, Kind::Checkpoint)];
    let kind = kinds.into_iter().find(|(known, _)| known.name == op);
    parse_shape(kind.ok_or_else(|| format!("'{op}' is no op about state"))?.1, params)
}

fn parse_shape(kind: Kind, params: &str) -> Result<Shape, String> {
    let mut p = Reader::new("params", params)?;
    let kv = if kind == Kind::Recurrent { None } else { Some(parse_kv(&mut p)?) };
    let recurrent = match kind {
        Kind::Recurrent => Some(parse_recurrent(&mut p)?),
        Kind::Hybrid => Some(parse_beside(&mut p, kv.map_or(1, |kv| kv.sequences))?),
        Kind::Kv | Kind::Checkpoint => None,
    };
    p.finish()?;
    Ok(Shape { kv, recurrent })
}

fn parse(kind: Kind, params: &str, recipe: &str) -> Result<Arc<dyn CaseType>, String> {
    let shape = parse_shape(kind, params)?;
    let mut r = Reader::new("recipe", recipe)?;
    let ops = within("n", r.take("n")?, 1, MOST_OPS)?;
    let ring: usize = r.take_or("ring", 0)?;
    let mix = r.take_or("mix", Mix::Any)?;
    r.finish()?;
    match (kind, ring) {
        (Kind::Checkpoint, 1..=64) | (_, 0) if (kind == Kind::Checkpoint) == (ring > 0) => {}
        (Kind::Checkpoint, _) => return Err(format!("ring={ring}: must be from 1 to 64")),
        _ => return Err(format!("ring={ring}: only a checkpoint case has a ring")),
    }
    let case = StateCase { kind, shape, recipe: Recipe { ops, mix, ring }, stages: Stages::default() };
    match case.cache_bytes() {
        bytes if bytes <= MOST_BYTES => Ok(Arc::new(case)),
        bytes => Err(format!("a cache of {bytes} bytes, at most {MOST_BYTES}")),
    }
}

fn within(key: &str, value: usize, low: usize, high: usize) -> Result<usize, String> {
    match (low..=high).contains(&value) {
        true => Ok(value),
        false => Err(format!("{key}={value}: must be from {low} to {high}")),
    }
}

fn flag(p: &mut Reader<'_>, key: &'static str) -> Result<bool, String> {
    Ok(within(key, p.take_or(key, 0)?, 0, 1)? == 1)
}

fn ty(p: &mut Reader<'_>, key: &'static str, default: ElemType) -> Result<ElemType, String> {
    let ty = p.take_or(key, default)?;
    let known: Vec<_> = TYPES.iter().map(|t| t.name()).collect();
    if TYPES.contains(&ty) { Ok(ty) } else { Err(format!("{key}={ty}: no cache has it, only {}", known.join(", "))) }
}

/// A row is whole blocks.
fn row(key: &str, elements: usize, ty: ElemType) -> Result<usize, String> {
    let elements = within(key, elements, 1, 1 << 16)?;
    match elements % ty.block_len() {
        0 => Ok(elements),
        _ => Err(format!("{key}={elements}: is not a whole number of {ty} blocks of {}", ty.block_len())),
    }
}

fn parse_kv(p: &mut Reader<'_>) -> Result<KvShape, String> {
    let streams = within("s", p.take_or("s", 1)?, 1, 64)?;
    let cells = within("c", p.take("c")?, 1, 1 << 20)?;
    let sequences = within("q", p.take_or("q", 2)?, 1, 256)?;
    let layers = within("l", p.take("l")?, 1, 256)?;
    let (k_embd, v_embd) = (p.take("k")?, p.take("v")?);
    let (k_type, v_type) = (ty(p, "kt", ElemType::F16)?, ty(p, "vt", ElemType::F16)?);
    let (v_trans, has_xy, window) = (flag(p, "t")?, flag(p, "xy")?, p.take_or("w", 0)?);
    let (k_embd, v_embd) = (row("k", k_embd, k_type)?, row("v", v_embd, v_type)?);
    if v_trans && v_type.is_blocked() {
        return Err(format!("t=1,vt={v_type}: a transposed V has no blocks"));
    }
    let window = within("w", window, 0, 1 << 20)?;
    Ok(KvShape { streams, cells, sequences, layers, k_embd, v_embd, k_type, v_type, v_trans, has_xy, window })
}

fn parse_recurrent(p: &mut Reader<'_>) -> Result<RecurrentShape, String> {
    let cells = within("c", p.take("c")?, 1, 1 << 16)?;
    let sequences = within("q", p.take_or("q", 2)?, 1, 256)?;
    let layers = within("l", p.take("l")?, 1, 256)?;
    let (r_embd, s_embd) = (p.take("r")?, p.take("s")?);
    rest_of_recurrent(p, RecurrentShape { cells, sequences, layers, r_embd, s_embd, ..EMPTY }, ["r", "s", "t"])
}

/// The recurrent part of a hybrid.
fn parse_beside(p: &mut Reader<'_>, sequences: usize) -> Result<RecurrentShape, String> {
    let cells = within("rc", p.take("rc")?, 1, 1 << 16)?;
    let layers = within("rl", p.take("rl")?, 1, 256)?;
    let (r_embd, s_embd) = (p.take("r")?, p.take("rs")?);
    rest_of_recurrent(p, RecurrentShape { cells, sequences, layers, r_embd, s_embd, ..EMPTY }, ["r", "rs", "rst"])
}

const EMPTY: RecurrentShape = RecurrentShape {
    cells: 0,
    sequences: 0,
    layers: 0,
    others: 0,
    r_embd: 0,
    s_embd: 0,
    r_type: ElemType::F32,
    s_type: ElemType::F32,
    s_trans: false,
};

fn rest_of_recurrent(
    p: &mut Reader<'_>,
    shape: RecurrentShape,
    [r, s, t]: [&'static str; 3],
) -> Result<RecurrentShape, String> {
    let (r_type, s_type, s_trans) = (ty(p, "rt", ElemType::F32)?, ty(p, "st", ElemType::F32)?, flag(p, t)?);
    let (r_embd, s_embd) = (row(r, shape.r_embd, r_type)?, row(s, shape.s_embd, s_type)?);
    if s_trans && s_type.is_blocked() {
        return Err(format!("{t}=1,st={s_type}: a transposed S has no blocks"));
    }
    Ok(RecurrentShape { r_embd, s_embd, r_type, s_type, s_trans, ..shape })
}

/// Draws a small cache: what is wrong with offsets and runs shows in a small one too.
fn draw(kind: Kind, d: &mut Draw) -> Arc<dyn CaseType> {
    let kv = (kind != Kind::Recurrent).then(|| draw_kv(d));
    let sequences = kv.map_or_else(|| d.between(1, 5), |kv| kv.sequences);
    let recurrent = matches!(kind, Kind::Recurrent | Kind::Hybrid).then(|| {
        let types = [ElemType::F32, ElemType::F32, ElemType::F16];
        RecurrentShape {
            cells: sequences + d.between(1, 6),
            sequences,
            layers: d.between(1, 3),
            others: 0,
            r_embd: d.between(1, 48),
            s_embd: d.between(1, 96),
            r_type: d.pick(&types),
            s_type: d.pick(&types),
            s_trans: d.one_in(3),
        }
    });
    let ring = if kind == Kind::Checkpoint { d.between(1, 4) } else { 0 };
    let mix = d.pick(Mix::ALL);
    let recipe = Recipe { ops: d.between(8, 40), mix, ring };
    Arc::new(StateCase { kind, shape: Shape { kv, recurrent }, recipe, stages: Stages::default() })
}

fn draw_kv(d: &mut Draw) -> KvShape {
    let v_trans = d.one_in(3);
    let k_type = d.pick(&TYPES);
    let v_type = if v_trans { d.pick(&TYPES[..3]) } else { d.pick(&TYPES) };
    let streams = if d.one_in(2) { 1 } else { d.between(2, 4) };
    let embd =
        |d: &mut Draw, ty: ElemType| ty.block_len() * if ty.is_blocked() { d.between(1, 3) } else { d.between(1, 80) };
    KvShape {
        streams,
        cells: d.edge(&[1, 2, 31, 32, 33, 64], 1, 96),
        sequences: d.between(2, 6).max(streams),
        layers: d.between(1, 3),
        k_embd: embd(d, k_type),
        v_embd: embd(d, v_type),
        k_type,
        v_type,
        v_trans,
        has_xy: d.one_in(4),
        window: if d.one_in(4) { d.between(1, 24) } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use crate::case::Case;

    #[test]
    fn ids_round_trip_and_refuse() {
        for id in [
            "kv_state/s=3,c=32,q=6,l=2,k=64,v=32,kt=q8_0,vt=q4_0/n=24,mix=holes/v1-1",
            "recurrent_state/c=9,q=5,l=2,r=12,s=40,t=1/n=24/v1-ff",
            "hybrid_state/c=24,q=3,l=1,k=32,v=32,rc=6,rl=2,r=16,rs=32,rst=1/n=24/v1-1",
            "checkpoint/c=48,l=2,k=32,v=32,w=7/n=32,ring=3/v1-1",
        ] {
            assert_eq!(id.parse::<Case>().unwrap().id(), id);
        }
        for (id, why) in [
            ("kv_state/c=0,l=1,k=32,v=32/n=6/v1-1", "c=0: must be from 1 to"),
            ("kv_state/c=4,l=1,k=33,v=32,kt=q8_0/n=6/v1-1", "k=33: is not a whole number of q8_0 blocks of 32"),
            ("kv_state/c=4,l=1,k=32,v=32,vt=q4_0,t=1/n=6/v1-1", "t=1,vt=q4_0: a transposed V has no blocks"),
            ("kv_state/c=4,l=1,k=32,v=32,kt=q6_K/n=6/v1-1", "no cache has it, only f32, f16, bf16, q8_0, q4_0"),
            ("kv_state/c=4,l=1,k=32,v=32/n=6,ring=2/v1-1", "only a checkpoint case has a ring"),
            ("checkpoint/c=4,l=1,k=32,v=32/n=6/v1-1", "ring=0: must be from 1 to 64"),
            ("kv_state/c=4,l=1,k=32,v=32,z=1/n=6/v1-1", "unknown key 'z'"),
            ("kv_state/c=4,l=1,k=32,v=32/n=0/v1-1", "n=0: must be from 1 to 400"),
            ("kv_state/c=1048576,l=256,k=65536,v=32/n=6/v1-1", "a cache of"),
            ("kv_state/s=1,c=4,l=1,k=32,v=32/n=6/v1-1", "canonical form"),
        ] {
            let e = id.parse::<Case>().unwrap_err().to_string();
            assert!(e.contains(why), "{id}: {e}");
        }
    }
}
