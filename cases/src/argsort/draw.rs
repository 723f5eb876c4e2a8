//! Which sorts are drawn, and which are in every profile.

use super::Argsort;
use crate::draw::Draw;
use crate::keys::KeyRows;
use crate::plan::Order;

/// Draws a case within the drawer's budget.
pub(super) fn draw(d: &mut Draw) -> Argsort {
    let rows = KeyRows::draw(d);
    let order = if d.one_in(2) { Order::Desc } else { Order::Asc };
    Argsort { rows, order }
}

/// Sorts that every profile runs, each with its reason.
pub(super) const NAMED: &[(&str, &str)] = &[
    ("argsort/c=1/data=same", "the smallest sort"),
    ("argsort/c=1,r=257,o=desc/data=nan", "nothing to order, many rows"),
    ("argsort/c=2,o=desc/data=inf", "infinities equal to a padding sentinel, two columns"),
    ("argsort/c=3/data=distinct", "three experts: not a power of two"),
    ("argsort/c=5,o=desc/data=sorted", "a one-dimensional path that forgets the direction"),
    ("argsort/c=32/data=inf", "full padding-free row with infinities"),
    ("argsort/c=33,r=5/data=inf", "infinities beside 31 padding columns"),
    ("argsort/c=33,r=5,o=desc/data=inf", "the same, descending: the sentinel has the other sign"),
    ("argsort/c=60,r=10,r2=10,r3=10/data=uniform", "experts of a common model, four dimensions"),
    ("argsort/c=160,r=33,o=desc/data=ties", "160 experts, ties"),
    ("argsort/c=1023,r=3/data=cluster", "one below the usual work-group limit, shared upper bits"),
    ("argsort/c=1024,r=3,o=desc/data=bits", "the usual work-group limit"),
    ("argsort/c=1025,r=3/data=bits", "one above the usual work-group limit"),
    ("argsort/c=2049,r=2,o=desc/data=sub", "subnormal keys: a device that flushes them ties them all"),
    ("argsort/c=4097,r=2/data=ties", "more equal keys than a fixed candidate buffer"),
    ("argsort/c=8193,r=2,o=desc/data=zeros", "padded row beyond 48 KiB of keys and indices, signed zeros"),
    ("argsort/c=16384/data=reverse", "a reported launch failure"),
    ("argsort/c=32769,o=desc/data=uniform", "index beyond 16 bits signed"),
    ("argsort/c=65536,r=2/data=distinct", "index beyond 16 bits"),
    ("argsort/c=151936,o=desc/data=uniform", "a large vocabulary"),
    ("argsort/c=1048575/data=bits", "the longest row of the usual grids, one short of a power of two"),
    ("argsort/c=1048576,o=desc/data=distinct", "the longest row of the usual grids"),
    ("argsort/c=65536,o=desc/data=nan", "NaN in a long row: the network must end"),
    ("argsort/c=4,r=65535,o=desc/data=distinct", "the last number of rows that fits a 16-bit grid"),
    ("argsort/c=4,r=65536/data=distinct", "one row more"),
    ("argsort/c=3,r=70001,o=desc,v=c/data=ties", "rows beyond 65535 as a view"),
    ("argsort/c=17,r=3,r2=2,r3=2,v=crst/data=uniform", "a view with a margin in every dimension"),
    ("argsort/c=1,r=2,r2=32769/data=same", "rows beyond 65535 in a higher dimension"),
];
