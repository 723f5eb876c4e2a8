//! Which matmuls are drawn, and which are in every profile.

use std::sync::Arc;

use super::{Calls, Data, MulMatId, Route, Seq};
use crate::draw::Draw;
use crate::formats::ElemType;
use crate::id::Margins;
use crate::op::CaseType;

/// Experts of published models, and small numbers.
const EXPERTS: &[usize] = &[1, 2, 3, 4, 8, 16, 32, 60, 64, 128, 144, 160, 256, 288, 512];
const USED: &[usize] = &[1, 2, 4, 6, 8, 10, 16, 17];
/// One token takes another path; tiles of 8, 16, 32 and 64 with their neighbours.
const TOKENS: &[usize] = &[1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257];
/// Tiles of 32, 64 and 128 rows with their neighbours; primes.
const ROWS: &[usize] = &[1, 2, 7, 8, 31, 32, 33, 37, 63, 64, 65, 97, 127, 128, 129, 191, 192, 193, 256, 257, 512];
/// In blocks: odd counts, and those that are no multiple of 64 or 128 columns.
const BLOCKS: &[usize] = &[1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 32, 64, 90, 128];
/// Columns of unblocked types: tiles ±1, primes, odd.
const COLUMNS: &[usize] =
    &[1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 97, 100, 127, 128, 129, 255, 256, 257, 509, 1024, 2048];

/// Draws a case within the drawer's budget.
pub(super) fn draw(d: &mut Draw) -> MulMatId {
    draw_of(d, &ElemType::WEIGHTS, Data::DRAWN)
}

/// Draws a case of these types and recipes.
pub(super) fn draw_of(d: &mut Draw, weights: &[ElemType], data: &[Data]) -> MulMatId {
    let w = d.pick(weights);
    let experts = d.edge(EXPERTS, 1, 512);
    let used = match d.between(0, 9) {
        0 => experts,
        _ => d.edge(USED, 1, experts.min(32)),
    };
    let n = if d.one_in(4) { 1 } else { d.edge(TOKENS, 1, 512) };
    let m = d.edge(ROWS, 1, 4096);
    let block = w.block_len();
    let k = if w.is_blocked() { block * d.edge(BLOCKS, 1, 4096 / block) } else { d.edge(COLUMNS, 1, 4096) };
    let mut case = MulMatId {
        w,
        experts,
        used,
        m,
        n,
        k,
        b: 1,
        table: used,
        wv: Margins::default(),
        xv: Margins::default(),
        iv: Margins::default(),
        route: Route::Shuffle,
        data: Data::Normal,
        is_x_result: false,
    };
    shrink_to_budget(d, &mut case);
    let used = case.used;
    case.b = match d.between(0, 4) {
        0 | 1 => 1,
        2 | 3 => used,
        _ => {
            let divisors: Vec<usize> = (1..=used).filter(|b| used.is_multiple_of(*b)).collect();
            d.pick(&divisors)
        }
    };
    draw_views(d, &mut case);
    case.route = draw_route(d, &case);
    case.data = d.pick(data);
    case
}

/// No drawn sequence costs more: it has more calls than others, and each of them is judged for each device by itself.
const MOST_OPERATIONS: u64 = 8_000_000;
const MOST_INPUT: u64 = 2_000_000;

/// Draws a sequence of calls: a third of the budget for each call, since there are three or four.
pub(super) fn draw_sequence(d: &mut Draw) -> Arc<dyn CaseType> {
    (d.operations, d.input_elements) = (d.operations / 3, d.input_elements / 3);
    loop {
        // Most have the type whose slots are sorted and whose weights are converted.
        let weights = if d.one_in(3) { &ElemType::WEIGHTS[..] } else { &[ElemType::Mxfp4] };
        let mut case = draw_of(d, weights, Data::DRAWN);
        let seq = d.pick(Seq::ALL.split_at(1).1);
        if seq == Seq::Back {
            case.n = case.n.max(2);
        }
        if seq == Seq::Chain {
            case.m = case.m.next_multiple_of(case.w.block_len());
        }
        let Ok(calls) = Calls::new(case, seq) else { continue };
        let cost = calls.cost();
        if cost.operations <= MOST_OPERATIONS && cost.input_elements <= MOST_INPUT {
            return Arc::new(calls);
        }
    }
}

/// Halves the largest dimension that still can be halved until the case is affordable.
fn shrink_to_budget(d: &Draw, case: &mut MulMatId) {
    let block = case.w.block_len();
    loop {
        let slots = case.used * case.n;
        let operations = (case.m * case.k * slots) as u64;
        let elements = (case.m * case.k * case.experts) as u64;
        if operations > d.operations {
            // Tokens first: they cost, and teach least once there are a few tiles of them.
            let (m, k, n) = (case.m, case.k / block, case.n * 4);
            if n >= m && n >= k && case.n > 1 {
                case.n /= 2;
            } else if m >= k && m > 1 {
                case.m /= 2;
            } else if k > 1 {
                case.k = k / 2 * block;
            } else {
                case.used = 1.max(case.used / 2);
            }
        } else if elements > d.input_elements {
            if case.m > 8 {
                case.m /= 2;
            } else if case.k > 4 * block {
                case.k = case.k / block / 2 * block;
            } else if case.experts / 2 >= case.used {
                case.experts /= 2;
            } else {
                return;
            }
        } else {
            break;
        }
    }
    case.table = case.used;
}

fn draw_views(d: &mut Draw, case: &mut MulMatId) {
    if d.one_in(4) {
        case.wv.0 = [d.one_in(2), d.one_in(2), d.one_in(2), false];
    }
    if d.one_in(4) {
        case.xv.0 = [d.one_in(2), d.one_in(2), d.one_in(2), false];
    }
    if d.one_in(3) {
        case.iv.0 = [d.one_in(3), d.one_in(2), false, false];
        let least = case.used + usize::from(case.iv.0[0]);
        // Most wide tables are the whole argsort of the router: one column per expert.
        case.table = if d.one_in(3) { least + d.between(0, 9) } else { least.max(case.experts) };
    }
}

fn draw_route(d: &mut Draw, case: &MulMatId) -> Route {
    loop {
        let route = if d.one_in(3) { Route::Shuffle } else { d.pick(Route::ALL) };
        match route {
            Route::Repeat if case.used < 2 => {}
            Route::Empty if case.used == case.experts => {}
            route => return route,
        }
    }
}

/// Matmuls that every profile runs, each with its reason.
pub(super) const NAMED: &[(&str, &str)] = &[
    ("mul_mat_id/w=mxfp4,x=f32,e=1,u=1,m=1,n=1,k=32/route=shuffle,data=wide", "the smallest gemv"),
    ("mul_mat_id/w=mxfp4,x=f32,e=1,u=1,m=1,n=2,k=32/route=shuffle,data=wide", "the smallest gemm"),
    ("mul_mat_id/w=f32,x=f32,e=1,u=1,m=1,n=1,k=1/route=shuffle,data=normal", "a single product"),
    (
        "mul_mat_id/w=f16,x=f32,e=1,u=1,m=8,n=16,k=1/route=shuffle,data=normal",
        "one column: lanes beyond k and rows beyond m",
    ),
    ("mul_mat_id/w=f16,x=f32,e=2,u=1,m=33,n=5,k=65/route=shuffle,data=normal", "rows at odd offsets of two bytes"),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=32,u=17,m=65,n=3,k=64,b=17/route=shuffle,data=normal",
        "17 experts used: a work-group of 64·used is illegal",
    ),
    ("mul_mat_id/w=mxfp4,x=f32,e=32,u=32,m=65,n=2,k=64/route=shuffle,data=normal", "all experts used, as in a warm-up"),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=8,u=2,m=63,n=33,k=96,t=8/route=skew,data=normal",
        "ids a view of the router's argsort: the stride says 8, the experts are 8",
    ),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=5,u=2,m=64,n=33,k=96,t=9,iv=un/route=empty,data=normal",
        "a stride that says more experts than there are",
    ),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=40,u=2,m=64,n=33,k=96/route=shuffle,data=normal",
        "a stride that says fewer experts than there are",
    ),
    ("mul_mat_id/w=mxfp4,x=f32,e=4,u=1,m=64,n=64,k=64/route=one,data=wide", "all slots on one expert, whole tiles"),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=4,u=1,m=66,n=65,k=64/route=one,data=wide",
        "all slots on one expert, one slot in the last tile",
    ),
    ("mul_mat_id/w=q4_0,x=f32,e=16,u=8,m=128,n=9,k=256,b=8/route=repeat,data=normal", "an expert twice in a token"),
    ("mul_mat_id/w=mxfp4,x=f32,e=16,u=8,m=64,n=9,k=64/route=one,data=wide", "all slots of a token on one expert"),
    ("mul_mat_id/w=mxfp4,x=f32,e=8,u=4,m=64,n=33,k=64/route=out,data=normal", "ids out of range"),
    ("mul_mat_id/w=mxfp4,x=f32,e=8,u=4,m=64,n=1,k=64/route=out,data=normal", "ids out of range, one token"),
    ("mul_mat_id/w=f32,x=f32,e=8,u=4,m=31,n=7,k=33/route=out,data=normal", "ids out of range, unblocked type"),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=16,u=6,m=65,n=17,k=96,b=2/route=shuffle,data=normal",
        "activation rows that are neither shared nor one per slot",
    ),
    ("mul_mat_id/w=mxfp4,x=f32,e=16,u=6,m=65,n=1,k=96,b=3/route=shuffle,data=normal", "the same for one token"),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=4,u=4,m=255,n=33,k=32/route=shuffle,data=scales",
        "every finite scale code, many tokens",
    ),
    ("mul_mat_id/w=mxfp4,x=f32,e=4,u=4,m=255,n=1,k=32/route=shuffle,data=scales", "every finite scale code, one token"),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=4,u=2,m=64,n=33,k=128/route=shuffle,data=special",
        "scale code 255 is NaN, and stays in its row",
    ),
    ("mul_mat_id/w=mxfp4,x=f32,e=4,u=2,m=64,n=1,k=128,b=2/route=shuffle,data=special", "the same for one token"),
    ("mul_mat_id/w=mxfp4,x=f32,e=4,u=2,m=65,n=33,k=160,wv=kme,xv=kbn/route=shuffle,data=normal", "every tensor a view"),
    ("mul_mat_id/w=q8_0,x=f32,e=64,u=4,m=32,n=5,k=64/route=last,data=uniform", "the last expert: the largest offset"),
    ("mul_mat_id/w=mxfp4,x=f32,e=512,u=10,m=64,n=2,k=64/route=skew,data=normal", "more experts than a work-group"),
    ("mul_mat_id/w=q4_0,x=f32,e=1024,u=3,m=2,n=17,k=32/route=shuffle,data=normal", "the most experts an id may name"),
    ("mul_mat_id/w=mxfp4,x=f32,e=3,u=3,m=1,n=22000,k=32/route=shuffle,data=wide", "slot numbers beyond 16 bits"),
    ("mul_mat_id/w=f32,x=f32,e=2,u=1,m=1,n=65537,k=3/route=shuffle,data=wide", "tokens beyond 16 bits"),
    ("mul_mat_id/w=mxfp4,x=f32,e=2,u=1,m=33000,n=2,k=32/route=shuffle,data=wide", "rows beyond 16 bits signed"),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=4,u=2,m=128,n=65,k=2880/route=shuffle,data=normal",
        "a common hidden size that is no multiple of 64 or 128",
    ),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=4,u=4,m=360,n=1,k=2880/route=shuffle,data=heavy",
        "the same for one token, heavy tails",
    ),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=8,u=2,m=64,n=33,k=96/route=skew,data=normal,seq=back",
        "one token, many, and one again: two paths to the same weights",
    ),
    (
        "mul_mat_id/w=q8_0,x=f32,e=8,u=2,m=64,n=512,k=64/route=shuffle,data=normal,seq=back",
        "the same where a device may convert weights in place",
    ),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=8,u=2,m=64,n=33,k=64/route=shuffle,data=normal,seq=ids",
        "other ids of the same shape, and other ids in the same tensor",
    ),
    ("mul_mat_id/w=q4_0,x=f32,e=8,u=2,m=64,n=33,k=64,t=8/route=shuffle,data=normal,seq=ids", "the same through a view"),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=32,u=4,m=64,n=40,k=64/route=shuffle,data=normal,seq=grow",
        "more experts and more tokens than last time, then few again",
    ),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=16,u=2,m=64,n=33,k=64/route=empty,data=normal,seq=grow",
        "experts without a slot that had some in the last call",
    ),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=8,u=2,m=65,n=33,k=64,b=2/route=shuffle,data=normal,seq=layers",
        "two layers in turn, each with its own routing",
    ),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=8,u=2,m=64,n=33,k=96/route=shuffle,data=normal,seq=chain",
        "a result that is the next call's activations",
    ),
    (
        "mul_mat_id/w=f16,x=f32,e=8,u=4,m=33,n=9,k=65/route=repeat,data=normal,seq=chain",
        "the same with an expert twice in a token",
    ),
    (
        "mul_mat_id/w=mxfp4,x=f32,e=5,u=2,m=65,n=33,k=96/route=shuffle,data=normal,seq=beside",
        "other tensors around all of them, rows beyond a tile",
    ),
    (
        "mul_mat_id/w=q6_K,x=f32,e=3,u=2,m=37,n=1,k=256/route=shuffle,data=normal,seq=beside",
        "weights whose parts are no multiple of 128 bytes, and others right behind them",
    ),
    // Types that only a build decodes: our own devices support none of them.
    (
        "mul_mat_id/w=q2_K,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "2-bit codes with scales and minima of 16, one token",
    ),
    (
        "mul_mat_id/w=q2_K,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "2-bit codes with scales and minima of 16, many tokens",
    ),
    (
        "mul_mat_id/w=q3_K,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "3-bit codes with scales of 16, one token",
    ),
    (
        "mul_mat_id/w=q3_K,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "3-bit codes with scales of 16, many tokens",
    ),
    (
        "mul_mat_id/w=q5_K,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "5-bit codes with scales and minima of 32, one token",
    ),
    (
        "mul_mat_id/w=q5_K,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "5-bit codes with scales and minima of 32, many tokens",
    ),
    (
        "mul_mat_id/w=iq1_s,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "−1, 0 and 1 from a table, one token",
    ),
    (
        "mul_mat_id/w=iq1_s,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "−1, 0 and 1 from a table, many tokens",
    ),
    (
        "mul_mat_id/w=iq1_m,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "a block's scale spread over four words, one token",
    ),
    (
        "mul_mat_id/w=iq1_m,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "a block's scale spread over four words, many tokens",
    ),
    (
        "mul_mat_id/w=iq2_xxs,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "eight values from a table of 256, one token",
    ),
    (
        "mul_mat_id/w=iq2_xxs,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "eight values from a table of 256, many tokens",
    ),
    (
        "mul_mat_id/w=iq2_xs,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "eight values from a table of 512, one token",
    ),
    (
        "mul_mat_id/w=iq2_xs,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "eight values from a table of 512, many tokens",
    ),
    (
        "mul_mat_id/w=iq2_s,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "eight values from a table of 1024, one token",
    ),
    (
        "mul_mat_id/w=iq2_s,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "eight values from a table of 1024, many tokens",
    ),
    (
        "mul_mat_id/w=iq3_xxs,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "four values from a table of 256, one token",
    ),
    (
        "mul_mat_id/w=iq3_xxs,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "four values from a table of 256, many tokens",
    ),
    (
        "mul_mat_id/w=iq3_s,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "four values from a table of 512, one token",
    ),
    (
        "mul_mat_id/w=iq3_s,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "four values from a table of 512, many tokens",
    ),
    (
        "mul_mat_id/w=iq4_nl,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "single values from a table of 16, one token",
    ),
    (
        "mul_mat_id/w=iq4_nl,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "single values from a table of 16, many tokens",
    ),
    (
        "mul_mat_id/w=iq4_xs,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "the same with scales of 32, one token",
    ),
    (
        "mul_mat_id/w=iq4_xs,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "the same with scales of 32, many tokens",
    ),
    (
        "mul_mat_id/w=tq1_0,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "five values of three in a byte, one token",
    ),
    (
        "mul_mat_id/w=tq1_0,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "five values of three in a byte, many tokens",
    ),
    (
        "mul_mat_id/w=tq2_0,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "four values of three in a byte, one token",
    ),
    (
        "mul_mat_id/w=tq2_0,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "four values of three in a byte, many tokens",
    ),
    (
        "mul_mat_id/w=nvfp4,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal",
        "e4m3 scales of 16 values, one token",
    ),
    (
        "mul_mat_id/w=nvfp4,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal",
        "e4m3 scales of 16 values, many tokens",
    ),
    ("mul_mat_id/w=q1_0,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal", "signs, one token"),
    ("mul_mat_id/w=q1_0,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal", "signs, many tokens"),
    ("mul_mat_id/w=q2_0,x=f32,e=4,u=2,m=64,n=1,k=512,b=2/route=shuffle,data=normal", "2-bit codes, one token"),
    ("mul_mat_id/w=q2_0,x=f32,e=4,u=2,m=64,n=33,k=512/route=shuffle,data=normal", "2-bit codes, many tokens"),
];
