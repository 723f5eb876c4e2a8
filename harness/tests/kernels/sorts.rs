//! Sorts and top-ks against host sorts.

use conform_cases::formats::{ElemType, read_f32, read_i32};
use conform_cases::plan::{Order, Plan, Role, Step, Tensor};
use conform_cases::stream::Stream;
use conform_harness::backend::Device;

use super::{device, run};

/// A sort of random keys.
pub(crate) fn plan(shape: [usize; 4], margins: bool, order: Order) -> Plan {
    let x = Tensor::whole("x", ElemType::F32, shape, Role::Input).with_margins([margins; 4]);
    let out = Tensor::whole("out", ElemType::I32, shape, Role::Output);
    Plan {
        case: String::new(),
        tensors: vec![x, out],
        steps: vec![Step::Argsort { x: 0, out: 1, order }],
        ..Plan::default()
    }
}

/// Ties, both zeros, both infinities and (if wanted) NaN among other values.
fn sort_value(stream: Stream, i: u64, nan: bool) -> f32 {
    match stream.below(2 * i, 8) {
        0 => f32::INFINITY,
        1 => f32::NEG_INFINITY,
        2 => 0.0,
        3 => -0.0,
        4 => 1.5,
        5 if nan => f32::NAN,
        _ => f32::from_bits((stream.word(2 * i + 1) as u32) & 0xBFFF_FFFF),
    }
}

fn check_sort(device: &mut dyn Device, shape: [usize; 4], margins: bool, order: Order, nan: bool) {
    let plan = plan(shape, margins, order);
    let (x, out) = (&plan.tensors[0], &plan.tensors[1]);
    let stream = Stream::new(5, shape[0] as u64);
    let bytes: Vec<u8> =
        (0..x.parent_bytes() as u64 / 4).flat_map(|i| sort_value(stream, i, nan).to_le_bytes()).collect();
    device.load(&plan).unwrap();
    device.write(0, 0, &bytes).unwrap();
    let sorted = run(device, &plan, 1);
    for row in 0..out.parent_rows() {
        let at = out.view_row(row).unwrap();
        let values: Vec<f32> = read_f32(&bytes[x.row_range(at)]).collect();
        let got: Vec<usize> = read_i32(&sorted[out.row_range(at)]).map(|i| i as usize).collect();
        let mut seen = vec![false; values.len()];
        got.iter().for_each(|&i| assert!(!std::mem::replace(&mut seen[i], true), "{shape:?} {order:?}: {i} twice"));
        let monotone = |w: &[usize]| {
            let (a, b) = (values[w[0]], values[w[1]]);
            if order == Order::Asc { a <= b } else { a >= b }
        };
        assert!(nan || got.windows(2).all(monotone), "{shape:?} {order:?}: row {at:?} is not sorted");
        let ties_in_order = |w: &[usize]| values[w[0]].to_bits() != values[w[1]].to_bits() || w[0] < w[1];
        assert!(got.windows(2).all(ties_in_order), "{shape:?} {order:?}: row {at:?} has ties out of order");
    }
    device.poison_scratch(0).unwrap();
    assert!(run(device, &plan, 1) == sorted, "{shape:?}: poisoned scratch changes the result");
}

#[test]
fn argsort_sizes() {
    let Some(mut device) = device() else { return };
    for order in [Order::Asc, Order::Desc] {
        for cols in [1, 2, 3, 63, 65, 255, 257, 1023, 1025, 2048, 2049, 5000] {
            check_sort(&mut *device, [cols, 3, 1, 1], false, order, false);
            check_sort(&mut *device, [cols, 2, 3, 2], true, order, cols % 2 == 1);
        }
    }
    check_sort(&mut *device, [65536, 3, 1, 1], false, Order::Asc, false);
    check_sort(&mut *device, [65536, 1, 1, 1], true, Order::Desc, true);
}

#[test]
fn argsort_many_rows() {
    let Some(mut device) = device() else { return };
    check_sort(&mut *device, [1, 70000, 1, 1], false, Order::Asc, false);
    check_sort(&mut *device, [3, 70000, 1, 1], false, Order::Desc, false);
    // Rows beyond local memory, in more than one portion.
    check_sort(&mut *device, [2049, 1030, 1, 1], false, Order::Desc, false);
}

/// Compares with a host sort: the k largest, of ties the first, by index. Both zeros count as they are stored.
fn check_top_k(device: &mut dyn Device, shape: [usize; 4], k: usize, margins: bool) {
    let Plan { mut tensors, .. } = plan(shape, margins, Order::Desc);
    tensors[1] = Tensor::whole("out", ElemType::I32, [k, shape[1], shape[2], shape[3]], Role::Output);
    let plan = Plan { case: String::new(), tensors, steps: vec![Step::TopK { x: 0, out: 1 }], ..Plan::default() };
    let (x, out) = (&plan.tensors[0], &plan.tensors[1]);
    let stream = Stream::new(6, shape[0] as u64);
    let bytes: Vec<u8> =
        (0..x.parent_bytes() as u64 / 4).flat_map(|i| sort_value(stream, i, true).to_le_bytes()).collect();
    device.load(&plan).unwrap();
    device.write(0, 0, &bytes).unwrap();
    let chosen = run(device, &plan, 1);
    for row in 0..out.parent_rows() {
        let at = out.view_row(row).unwrap();
        let values: Vec<f32> = read_f32(&bytes[x.row_range(at)]).collect();
        let mut want: Vec<usize> = (0..values.len()).collect();
        want.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
        want.truncate(k);
        want.sort_unstable();
        assert!(read_i32(&chosen[out.row_range(at)]).map(|i| i as usize).eq(want), "{shape:?}, k {k}: row {at:?}");
    }
}

#[test]
fn top_k_sizes() {
    let Some(mut device) = device() else { return };
    for cols in [1usize, 2, 3, 63, 64, 65, 160, 257, 1025, 5000] {
        for k in [1, cols.div_ceil(3), cols] {
            check_top_k(&mut *device, [cols, 3, 1, 1], k, false);
            check_top_k(&mut *device, [cols, 2, 3, 2], k, true);
        }
    }
    check_top_k(&mut *device, [65537, 3, 1, 1], 20, false);
    check_top_k(&mut *device, [3, 70000, 1, 1], 2, false);
}
