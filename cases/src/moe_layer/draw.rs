//! Which layers are drawn, and which are in every profile.

use super::{DATA, MoeLayer, Router, Shape};
use crate::cost::Cost;
use crate::draw::Draw;
use crate::formats::ElemType;
use crate::keys::Keys;

const EXPERTS: &[usize] = &[1, 2, 3, 4, 8, 16, 32, 60, 64, 128, 160, 256];
const USED: &[usize] = &[1, 2, 4, 6, 8, 17];
/// Around tiles of 32 slots.
const TOKENS: &[usize] = &[1, 2, 5, 8, 9, 16, 17, 31, 32, 33, 64, 65, 129];
/// Tiles of 64 rows with their neighbours, for types without blocks.
const SIZES: &[usize] = &[1, 3, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 160, 256];

/// Draws a layer within the drawer's budget.
pub(super) fn draw(d: &mut Draw) -> MoeLayer {
    // Half of the layers have the type whose slots are sorted.
    let w = if d.one_in(2) { ElemType::Mxfp4 } else { d.pick(&ElemType::WEIGHTS) };
    let down = if d.one_in(4) { d.pick(&ElemType::WEIGHTS) } else { w };
    let experts = d.edge(EXPERTS, 1, 256);
    let used = d.edge(USED, 1, experts.min(32));
    let size = |d: &mut Draw, ty: ElemType| match ty.block_len() {
        1 => d.edge(SIZES, 1, 256),
        block => block * d.edge(&[1, 2, 3, 4, 5, 8], 1, 256 / block),
    };
    let mut shape = Shape {
        w,
        down,
        experts,
        used,
        hidden: size(d, w),
        inner: size(d, down),
        n: if d.one_in(4) { 1 } else { d.edge(TOKENS, 1, 256) },
        router: d.pick(Router::ALL),
        has_fresh_routing: d.one_in(8),
        logits: if d.one_in(2) { Keys::Uniform } else { d.pick(Keys::ALL) },
        data: if d.one_in(2) { DATA[0] } else { d.pick(DATA) },
    };
    while !is_affordable(&shape, d) {
        if shape.n > 1 && operations(&shape) > d.operations {
            shape.n /= 2;
        } else if shape.experts / 2 >= shape.used {
            shape.experts /= 2;
        } else if shape.used > 1 {
            shape.used /= 2;
        } else {
            break;
        }
    }
    MoeLayer::new(shape)
}

/// Multiply-adds of the three matmuls.
fn operations(s: &Shape) -> u64 {
    3 * (s.hidden * s.inner * s.used * s.n) as u64
}

fn is_affordable(s: &Shape, d: &Draw) -> bool {
    let weights = 3 * (s.hidden * s.inner * s.experts) as u64;
    // A third of what a single matmul may have, three times.
    operations(s) <= d.operations.min(Cost::MAX_OPERATIONS) && weights <= d.input_elements.max(1 << 16)
}

/// Layers that every profile runs, each with its reason.
pub(super) const NAMED: &[(&str, &str)] = &[
    ("moe_layer/w=mxfp4,x=f32,e=8,u=2,h=64,f=96,n=33/route=uniform,data=normal", "three matmuls over one routing"),
    (
        "moe_layer/w=mxfp4,x=f32,e=8,u=2,h=64,f=96,n=33,cache=0/route=uniform,data=normal",
        "the same with slots sorted anew for each of them",
    ),
    ("moe_layer/w=mxfp4,x=f32,e=8,u=2,h=64,f=96,n=33,by=top_k/route=uniform,data=normal", "the same by a top-k"),
    ("moe_layer/w=mxfp4,x=f32,e=16,u=4,h=64,f=64,n=1/route=uniform,data=normal", "a single token, which sorts nothing"),
    ("moe_layer/w=f32,x=f32,e=8,u=2,h=65,f=33,n=17/route=ties,data=normal", "ties: any of the best experts will do"),
    ("moe_layer/w=mxfp4,x=f32,e=60,u=4,h=96,f=64,n=65/route=nan,data=normal", "logits that are NaN still name experts"),
    (
        "moe_layer/w=mxfp4,x=f32,e=32,u=4,h=64,f=64,n=40,by=top_k/route=inf,data=normal",
        "masked experts have infinite logits",
    ),
    ("moe_layer/w=mxfp4,x=f32,e=4,u=1,h=64,f=64,n=64/route=sorted,data=wide", "every token chooses the last expert"),
    (
        "moe_layer/w=q4_0,x=f32,e=8,u=2,h=64,f=256,n=9,wd=q6_K/route=distinct,data=normal",
        "down weights of another type, as published files have them",
    ),
    ("moe_layer/w=mxfp4,x=f32,e=32,u=17,h=64,f=32,n=9/route=uniform,data=normal", "17 experts used"),
    (
        "moe_layer/w=q8_0,x=f32,e=128,u=8,h=64,f=32,n=8,by=top_k/route=uniform,data=normal",
        "shapes from which graphs are fused",
    ),
];
