//! Stages of the embedded device once more: slow, simple, and with room for a fault. Without one they give the same bits.

use conform_cases::formats::{E2M1, read_f32, read_i32};
use conform_cases::plan::{Order, Role, Tensor};
use rayon::prelude::*;

use crate::backend::cpu::arguments::{Ids, Interleaved, PADDING, Sizes, TILE_ROWS, TILE_SLOTS, Tiles, View, Weights};

/// The value of an MXFP4 scale byte.
pub(super) type Scale = fn(u8) -> f32;

/// What it is.
pub(super) fn e8m0(e: u8) -> f32 {
    f32::from_bits(match e {
        0 => 0x0040_0000,
        255 => 0x7fc0_0000,
        _ => u32::from(e) << 23,
    })
}

/// Products and additions in order.
pub(super) fn dot(w: &[f32], x: &[f32]) -> f32 {
    w.iter().zip(x).fold(0.0, |sum, (w, x)| sum + w * x)
}

/// Multiplies all used tiles: `dot` gets a row of weights and a row of activations, k values each.
pub(super) fn gemm(
    tiles: Tiles<'_>,
    weights: Weights<'_>,
    rows: &[f32],
    sizes: Sizes,
    products: &mut [f32],
    scale: Scale,
    dot: impl Fn(&[f32], &[f32]) -> f32 + Sync,
) {
    let panels = sizes.panels();
    products.par_chunks_mut(TILE_SLOTS * TILE_ROWS).enumerate().for_each(|(task, products)| {
        let (tile, panel) = (task / panels, task % panels);
        let expert = tiles.experts[tile] as usize;
        let places = tile * TILE_SLOTS..(tile + 1) * TILE_SLOTS;
        let taken = places.filter(|place| tiles.slots[*place] != PADDING);
        let x: Vec<&[f32]> = taken.clone().map(|place| &rows[place * sizes.k..][..sizes.k]).collect();
        let (mut w, mut exact) = (vec![0.0; sizes.k], vec![0.0; sizes.k]);
        for row in panel * TILE_ROWS..sizes.m.min((panel + 1) * TILE_ROWS) {
            match weights {
                Weights::Interleaved(weights) => {
                    for (block, w) in w.chunks_exact_mut(32).enumerate() {
                        let s = scale(scale_byte(weights, sizes, expert, block, row));
                        codes(weights, sizes, expert, block, row).zip(w).for_each(|(code, w)| *w = code * s);
                    }
                }
                Weights::Rows(view) => {
                    view.tensor.ty.decode(view.row([row, expert, 0]), &mut exact);
                    w.iter_mut().zip(&exact).for_each(|(w, exact)| *w = *exact as f32);
                }
            }
            for (place, x) in taken.clone().zip(&x) {
                products[place % TILE_SLOTS * TILE_ROWS + row % TILE_ROWS] = dot(&w, x);
            }
        }
    });
}

/// The expert matmul of a single token: sums of blocks are scaled, and four groups take the blocks in turn.
pub(super) fn gemv(ids: Ids<'_>, x: View<'_>, weights: Interleaved<'_>, out: &mut [u8], scale: Scale) {
    let sizes = ids.sizes;
    out.par_chunks_mut(4 * sizes.m).enumerate().for_each(|(slot, out)| {
        let Some(expert) = ids.expert(slot) else { return };
        let x: Vec<f32> = read_f32(x.row([slot % sizes.b, 0, 0])).collect();
        for (row, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let mut partial = [0.0f32; 4];
            for (block, x) in x.chunks_exact(32).enumerate() {
                let sum = codes(weights, sizes, expert, block, row).zip(x).fold(0.0, |sum, (code, x)| sum + code * x);
                partial[block % 4] += scale(scale_byte(weights, sizes, expert, block, row)) * sum;
            }
            let [first, rest @ ..] = partial;
            *out = rest.iter().fold(first, |sum, partial| sum + partial).to_le_bytes();
        }
    });
}

fn scale_byte(weights: Interleaved<'_>, sizes: Sizes, expert: usize, block: usize, row: usize) -> u8 {
    weights.scales[(expert * (sizes.k / 32) + block) * sizes.m + row]
}

/// The 32 codes of a block, as numbers.
fn codes(weights: Interleaved<'_>, sizes: Sizes, expert: usize, block: usize, row: usize) -> impl Iterator<Item = f32> {
    let at = (expert * (sizes.k / 32) + block) * 4;
    (0..32).map(move |i| {
        let word = weights.codes[(at + i / 8) * sizes.m + row];
        E2M1[(word >> (i % 8 * 4) & 15) as usize] as f32
    })
}

/// Reads ids through `read`, which is given them and a slot, and hands the outcome on.
pub(super) fn with_ids<T>(ids: Ids<'_>, read: impl Fn(Ids<'_>, usize) -> i32, then: impl FnOnce(Ids<'_>) -> T) -> T {
    use conform_cases::formats::ElemType;
    let Sizes { used, n, .. } = ids.sizes;
    let tensor = Tensor::whole("ids", ElemType::I32, [used, n, 1, 1], Role::Input);
    let bytes: Vec<u8> = (0..used * n).flat_map(|slot| read(ids, slot).to_le_bytes()).collect();
    then(Ids { view: View { tensor: &tensor, bytes: &bytes }, sizes: ids.sizes })
}

/// The id of a slot as it stands there.
pub(super) fn id(ids: Ids<'_>, slot: usize) -> i32 {
    let used = ids.sizes.used;
    read_i32(ids.view.row([slot / used, 0, 0])).nth(slot % used).unwrap_or(-1)
}

/// A key and the index of its column.
pub(super) type Entry = (u32, u32);

/// The order of values as an order of bits; NaN lies beyond the infinity of its sign, and zeros are equal.
pub(super) fn key(value: f32, order: Order) -> u32 {
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    if order == Order::Asc { ascending } else { !ascending }
}

/// Sorts every row by `sort`, which gets its entries and leaves them in order.
pub(super) fn argsort(x: View<'_>, order: Order, out: &mut [u8], sort: impl Fn(&mut Vec<Entry>) + Sync) {
    let cols = x.tensor.shape[0];
    out.par_chunks_exact_mut(4 * cols).enumerate().for_each(|(row, out)| {
        let mut entries = entries(x, row, order);
        sort(&mut entries);
        write(out, &entries);
    });
}

/// Chooses from every row by `choose`, which gets its entries, smallest key first in merit, and leaves those to be written.
pub(super) fn top_k(x: View<'_>, k: usize, out: &mut [u8], choose: impl Fn(&mut Vec<Entry>, usize) + Sync) {
    out.par_chunks_exact_mut(4 * k).enumerate().for_each(|(row, out)| {
        let mut entries = entries(x, row, Order::Desc);
        choose(&mut entries, k);
        write(out, &entries);
    });
}

fn entries(x: View<'_>, row: usize, order: Order) -> Vec<Entry> {
    read_f32(x.nth_row(row)).zip(0..).map(|(value, i)| (key(value, order), i)).collect()
}

fn write(out: &mut [u8], entries: &[Entry]) {
    for (out, (_, index)) in out.as_chunks_mut::<4>().0.iter_mut().zip(entries) {
        *out = index.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use conform_cases::case::Case;
    use conform_cases::judge::POISONS;
    use conform_cases::plan::Role;

    use super::*;
    use crate::backend::Device;
    use crate::backend::cpu::{CpuDevice, Stages};

    /// The bytes of the output.
    fn run(case: &Case, stages: Stages) -> Vec<u8> {
        let (plan, mut device) = (case.plan(), CpuDevice::new(stages));
        device.load(&plan).unwrap();
        let mut out = Vec::new();
        for (i, t) in plan.tensors.iter().enumerate() {
            let mut bytes = POISONS[0].to_le_bytes().repeat(t.parent_bytes().div_ceil(4));
            bytes.truncate(t.parent_bytes());
            if t.role != Role::Output {
                case.fill(i, t, &mut bytes);
            }
            device.write(i, 0, &bytes).unwrap();
            out = bytes;
        }
        device.run(0..plan.steps.len()).unwrap();
        device.read(plan.tensors.len() - 1, 0, &mut out).unwrap();
        out
    }

    /// Whatever a mutant that is built on these does otherwise is its fault.
    #[test]
    fn without_a_fault_nothing_differs() {
        let plain = Stages {
            gemm: |tiles, weights, rows, sizes, products| gemm(tiles, weights, rows, sizes, products, e8m0, dot),
            gemv: |ids, x, weights, out| with_ids(ids, id, |ids| gemv(ids, x, weights, out, e8m0)),
            argsort: |x, order, _, out| argsort(x, order, out, |entries| entries.sort_unstable()),
            top_k: |x, k, out| {
                top_k(x, k, out, |entries, k| {
                    entries.sort_unstable();
                    entries.truncate(k);
                    entries.sort_unstable_by_key(|entry| entry.1);
                });
            },
            ..Stages::default()
        };
        for id in [
            "mul_mat_id/w=mxfp4,x=f32,e=5,u=3,m=70,n=33,k=160,b=3/route=skew,data=normal/v1-1",
            "mul_mat_id/w=mxfp4,x=f32,e=8,u=4,m=65,n=1,k=416,t=9,iv=u/route=out,data=scales/v1-1",
            "mul_mat_id/w=q4_K,x=f32,e=3,u=2,m=9,n=5,k=512/route=repeat,data=heavy/v1-1",
            "mul_mat_id/w=f16,x=f32,e=3,u=2,m=65,n=40,k=37,wv=kme/route=shuffle,data=normal/v1-1",
            "argsort/c=100,r=3,o=desc/data=inf/v1-1",
            "argsort/c=1025/data=nan/v1-1",
            "top_k/c=100,r=3,k=17/data=ties/v1-1",
            "top_k/c=1025,k=1024/data=bits/v1-1",
        ] {
            let case: Case = id.parse().unwrap();
            assert_eq!(run(&case, plain), run(&case, Stages::default()), "{id}");
        }
    }
}
