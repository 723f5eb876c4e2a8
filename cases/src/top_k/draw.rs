//! Which top-ks are drawn, and which are in every profile.

use super::TopK;
use crate::draw::Draw;
use crate::keys::KeyRows;

/// Experts used per token, limits of kernels that keep candidates in registers or local memory with their neighbours,
/// sizes that samplers ask for.
const K: &[usize] = &[
    1, 2, 3, 4, 6, 7, 8, 10, 15, 16, 17, 20, 31, 32, 33, 40, 63, 64, 65, 100, 127, 128, 129, 256, 500, 1000, 1023,
    1024, 1025, 2048, 4096, 4097, 9999,
];

/// Draws a case within the drawer's budget.
pub(super) fn draw(d: &mut Draw) -> TopK {
    let rows = KeyRows::draw(d);
    let cols = rows.cols;
    let k = match d.between(0, 7) {
        0 => cols,
        1 => cols.div_ceil(2),
        _ => d.edge(K, 1, cols),
    };
    TopK { rows, k }
}

/// Top-ks that every profile runs, each with its reason.
pub(super) const NAMED: &[(&str, &str)] = &[
    ("top_k/c=1,k=1/data=same", "the smallest top-k"),
    ("top_k/c=1,r=257,k=1/data=nan", "nothing to choose, many rows"),
    ("top_k/c=3,r=5,k=3/data=distinct", "everything chosen, three columns: not a power of two"),
    ("top_k/c=4,r=17,k=2/data=ties", "a small router"),
    ("top_k/c=32,r=33,k=4/data=inf", "infinities in a row without padding: they are keys, not padding"),
    ("top_k/c=33,r=5,k=33/data=inf", "infinities beside padding, everything chosen"),
    ("top_k/c=60,r=10,r2=10,r3=10,k=4/data=uniform", "experts of a common model, four dimensions"),
    ("top_k/c=160,r=33,k=8/data=ties", "160 experts: lanes beyond a multiple of 64, ties at the k-th key"),
    ("top_k/c=288,r=33,k=8/data=distinct", "288 experts: more than a work-group, no power of two"),
    ("top_k/c=512,r=65,k=10/data=uniform", "512 experts, ten used"),
    ("top_k/c=64,r=3,k=32/data=ties", "four values: copies of the k-th displace larger keys"),
    ("top_k/c=1000,r=2,k=500/data=ties", "the same beyond a candidate buffer of 64"),
    ("top_k/c=212,r=10,k=20/data=uniform", "k above 16: places past a fixed limit stay zero"),
    ("top_k/c=129,r=3,k=17/data=zeros", "one above 16, signed zeros tie at the k-th key"),
    ("top_k/c=1024,r=3,k=1/data=sorted", "the largest in the last column"),
    ("top_k/c=1025,r=3,k=1/data=reverse", "the largest in the first column, one above the usual work-group"),
    ("top_k/c=1025,r=3,k=1024/data=bits", "all but one"),
    ("top_k/c=4097,r=2,k=100/data=same", "one value: more candidates than any buffer"),
    ("top_k/c=8193,r=2,k=4097/data=cluster", "over 4096 keys share the top byte, and the k-th is among them"),
    ("top_k/c=65536,k=2048/data=cluster", "the same in a long row"),
    ("top_k/c=8192,r=8,k=999/data=sub", "subnormal keys: a device that flushes them ties them all"),
    ("top_k/c=32000,r=2,k=40/data=uniform", "a vocabulary, as a sampler asks"),
    ("top_k/c=65536,r=2,k=9999/data=distinct", "columns beyond 16 bits, k no power of two"),
    ("top_k/c=65536,k=65536/data=bits", "everything of a long row"),
    ("top_k/c=65537,k=100/data=nan", "NaN in a long row: the choice must end"),
    ("top_k/c=151936,k=100/data=inf", "a large vocabulary with masked entries"),
    ("top_k/c=500000,r=2,k=20/data=uniform", "a reported case of indices out of range"),
    ("top_k/c=1048576,k=1000/data=distinct", "the longest row of the usual grids"),
    ("top_k/c=4,r=65536,k=2/data=distinct", "one row more than a 16-bit grid has"),
    ("top_k/c=3,r=70001,k=2,v=c/data=ties", "rows beyond 65535 as a view"),
    ("top_k/c=17,r=3,r2=2,r3=2,k=5,v=crst/data=uniform", "a view with a margin in every dimension"),
    ("top_k/c=1,r=2,r2=32769,k=1/data=same", "rows beyond 65535 in a higher dimension"),
];
