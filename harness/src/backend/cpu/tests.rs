//! The whole device through its interface, on plans made by hand.

use conform_cases::formats::{ElemType, read_f32, read_i32};
use conform_cases::plan::{Order, Part, Place, Plan, Role, Step, Tensor};

use super::super::{Device, Driver, LoadError, Probe};
use super::arguments::Interleaved;
use super::stages::Placing;
use super::{CpuDevice, CpuDriver, Ids, Sizes, Stages};

const POISON: u8 = 0xa5;

/// Bytes that decode to small finite numbers in every weight type.
fn weight_bytes(t: &Tensor) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..t.parent_bytes()).map(|i| (i * 193 + i / 7) as u8).collect();
    for (i, block) in bytes.chunks_exact_mut(t.ty.block_bytes()).enumerate() {
        let small = (i * 29 % 97) as f32 / 32.0 - 1.4;
        match t.ty {
            ElemType::F32 => block.copy_from_slice(&small.to_le_bytes()),
            ElemType::Bf16 => block.copy_from_slice(&half::bf16::from_f32(small).to_le_bytes()),
            ElemType::Mxfp4 => block[0] = 122 + (i % 8) as u8,
            ElemType::Q6K => block[208..].copy_from_slice(&half::f16::from_f32(small).to_le_bytes()),
            _ => block[..2].copy_from_slice(&half::f16::from_f32(small).to_le_bytes()),
        }
        // The minimum, or the scale of minima.
        if matches!(t.ty, ElemType::Q4_1 | ElemType::Q5_1 | ElemType::Q4K) {
            block[2..4].copy_from_slice(&half::f16::from_f32(0.7 - small).to_le_bytes());
        }
    }
    bytes
}

fn f32_bytes(t: &Tensor) -> Vec<u8> {
    (0..t.parent_bytes() / 4).flat_map(|i| ((i * 57 % 211) as f32 / 100.0 - 1.03).to_le_bytes()).collect()
}

/// One expert matmul with everything a view, and its input bytes.
struct Matmul {
    plan: Plan,
    inputs: [Vec<u8>; 3],
    ids: Vec<i32>,
    sizes: Sizes,
}

fn matmul(ty: ElemType, sizes: Sizes, id: impl Fn(usize) -> i32) -> Matmul {
    let Sizes { k, m, experts, used, b, n } = sizes;
    let tensors = vec![
        Tensor::whole("w", ty, [k, m, experts, 1], Role::Weights).with_margins([true; 4]),
        Tensor::whole("x", ElemType::F32, [k, b, n, 1], Role::Input).with_margins([true; 4]),
        Tensor::whole("ids", ElemType::I32, [used, n, 1, 1], Role::Input).with_margins([true; 4]),
        Tensor::whole("out", ElemType::F32, [m, used, n, 1], Role::Output),
    ];
    let ids: Vec<i32> = (0..used * n).map(id).collect();
    let mut id_bytes = vec![0; tensors[2].parent_bytes()];
    for (token, row) in ids.chunks(used).enumerate() {
        let row: Vec<u8> = row.iter().flat_map(|id| id.to_le_bytes()).collect();
        id_bytes[tensors[2].row_range([token, 0, 0])].copy_from_slice(&row);
    }
    let inputs = [weight_bytes(&tensors[0]), f32_bytes(&tensors[1]), id_bytes];
    let steps = vec![Step::MulMatId { weights: 0, x: 1, ids: 2, out: 3 }];
    Matmul { plan: Plan { case: "by hand".to_owned(), tensors, steps, ..Plan::default() }, inputs, ids, sizes }
}

impl Matmul {
    fn load(&self, device: &mut CpuDevice) {
        device.load(&self.plan).unwrap();
        for (tensor, bytes) in self.inputs.iter().enumerate() {
            device.write(tensor, 0, bytes).unwrap();
        }
    }

    fn run(&self, device: &mut CpuDevice) -> Vec<u8> {
        let mut out = vec![POISON; self.plan.tensors[3].parent_bytes()];
        device.write(3, 0, &out).unwrap();
        device.run(0..1).unwrap();
        device.read(3, 0, &mut out).unwrap();
        out
    }

    /// Compares with a plain f64 sum; rows of slots without an expert must hold poison.
    fn judge(&self, out: &[u8]) {
        let Sizes { k, m, experts, used, b, .. } = self.sizes;
        let [w, x, ..] = &self.plan.tensors[..] else { unreachable!() };
        let (mut weights, mut offsets) = (vec![0.0; k], vec![0.0; k]);
        for (slot, (id, out)) in self.ids.iter().zip(out.chunks(4 * m)).enumerate() {
            if !(0..experts as i32).contains(id) {
                assert!(out.iter().all(|b| *b == POISON), "slot {slot} of expert {id} was written");
                continue;
            }
            let x = &self.inputs[1][x.row_range([slot % used % b, slot / used, 0])];
            for (row, got) in read_f32(out).enumerate() {
                let stored = &self.inputs[0][w.row_range([row, *id as usize, 0])];
                w.ty.decode(stored, &mut weights);
                w.ty.offsets(stored, false, &mut offsets);
                let (mut sum, mut size) = (0.0, 0.0);
                for ((w, o), x) in weights.iter().zip(&offsets).zip(read_f32(x).map(f64::from)) {
                    sum += w * x;
                    size += ((w - o).abs() + o.abs()) * x.abs();
                }
                let allowed = size * (k + 36) as f64 * f64::from(f32::EPSILON) / 2.0;
                assert!((f64::from(got) - sum).abs() <= allowed, "{} slot {slot} row {row}: {got} for {sum}", w.ty);
            }
        }
    }
}

/// All memory of a plan has guards, and an output that is taken to lie elsewhere in its allocation hits one.
#[test]
fn guards_are_whole_until_something_is_written_beside_its_memory() {
    let place_of: [Placing; 3] = [
        Stages::default().place,
        |all, own| &mut all[own.start - 8..own.end - 8],
        |all, own| &mut all[own.start + 12..own.end + 12],
    ];
    for (place, hit) in place_of.into_iter().zip([None, Some(-8), Some(4 * 70 * 6 * 2)]) {
        let case =
            matmul(ElemType::Mxfp4, Sizes { k: 64, m: 70, experts: 4, used: 6, b: 3, n: 2 }, |slot| slot as i32 % 4);
        let mut device = CpuDevice::new(Stages { place, ..Stages::default() });
        case.load(&mut device);
        case.run(&mut device);
        let guards = device.guards().unwrap().unwrap();
        // Tensors, scales and codes, and of scratch a table of three parts, counters, rows, products and keys.
        assert_eq!(guards.looked_at, 4 + 2 + 3 + 4);
        let damaged: Vec<_> = guards.damaged.iter().map(|d| (d.name.as_str(), d.at)).collect();
        assert_eq!(damaged, hit.map(|at| ("out", at)).into_iter().collect::<Vec<_>>());
    }
}

/// Distinct, repeated and out-of-range ids.
fn any_id(slot: usize) -> i32 {
    [0, 3, 3, 1, -1, 4, 2, i32::MIN, 0, i32::MAX, 1][slot * 5 % 11]
}

#[test]
fn every_weight_type_single_and_many_tokens() {
    for ty in ElemType::WEIGHTS {
        for (m, used, b, n) in [(70, 6, 3, 1), (65, 6, 2, 33), (8, 17, 17, 5)] {
            let k = if ty.is_blocked() { 3 * ty.block_len() } else { 37 };
            let case = matmul(ty, Sizes { k, m, experts: 4, used, b, n }, any_id);
            let mut device = CpuDevice::new(Stages::default());
            case.load(&mut device);
            let first = case.run(&mut device);
            case.judge(&first);
            for pattern in [0, 1, u32::MAX, 0x7fc0_0000] {
                device.poison_scratch(pattern).unwrap();
                assert_eq!(case.run(&mut device), first, "{ty} after poison {pattern:#x}");
            }
        }
    }
}

#[test]
fn inputs_read_back_as_written_and_partial_writes_count() {
    for ty in ElemType::WEIGHTS {
        let k = 2 * ty.block_len().max(32);
        let mut case = matmul(ty, Sizes { k, m: 5, experts: 3, used: 2, b: 1, n: 3 }, |slot| slot as i32 % 3);
        let mut device = CpuDevice::new(Stages::default());
        case.load(&mut device);
        case.run(&mut device);
        let w = &mut case.inputs[0];
        let (from, to) = (w.len() / 3, w.len() / 2);
        // Within a block every byte may change but for its scale; small scales keep the numbers small.
        let changed: Vec<u8> = w[from..to].iter().map(|byte| byte & 0x3f).collect();
        device.write(0, from, &changed).unwrap();
        w[from..to].copy_from_slice(&changed);
        let mut back = vec![0; w.len()];
        device.read(0, 0, &mut back).unwrap();
        assert_eq!(&back, w, "{ty}");
        let out = case.run(&mut device);
        case.judge(&out);
        for tensor in 0..3 {
            let mut back = vec![0; case.inputs[tensor].len() - 3];
            device.read(tensor, 3, &mut back).unwrap();
            assert_eq!(back, case.inputs[tensor][3..], "{ty} tensor {tensor}");
        }
    }
}

#[test]
fn a_broken_conversion_shows_when_weights_are_read() {
    let case = matmul(ElemType::Mxfp4, Sizes { k: 64, m: 5, experts: 3, used: 2, b: 1, n: 3 }, |_| 0);
    let none = |_: Interleaved<'_>, _: &Tensor, _: &mut [u8]| {};
    let mut device = CpuDevice::new(Stages { restore: none, ..Stages::default() });
    case.load(&mut device);
    let mut back = vec![0; case.inputs[0].len()];
    device.read(0, 0, &mut back).unwrap();
    assert_ne!(back, case.inputs[0]);
}

#[test]
fn order_inside_an_expert_changes_nothing() {
    fn backwards(ids: Ids<'_>, offset: &[u32], counters: &mut [u32], slots: &mut [u32], tile_expert: &mut [u32]) {
        for slot in (0..ids.sizes.slots()).rev() {
            let Some(expert) = ids.expert(slot) else { continue };
            let place = offset[expert] as usize * 32 + counters[expert] as usize;
            counters[expert] += 1;
            slots[place] = slot as u32;
            tile_expert[place / 32] = expert as u32;
        }
    }
    let case = matmul(ElemType::Mxfp4, Sizes { k: 64, m: 66, experts: 4, used: 4, b: 2, n: 40 }, any_id);
    let [forward, reversed] = [Stages::default(), Stages { scatter: backwards, ..Stages::default() }].map(|stages| {
        let mut device = CpuDevice::new(stages);
        case.load(&mut device);
        case.run(&mut device)
    });
    assert_eq!(forward, reversed);
}

#[test]
fn scale_byte_255_is_nan_in_both_paths() {
    for n in [1, 2] {
        let mut case = matmul(ElemType::Mxfp4, Sizes { k: 64, m: 2, experts: 1, used: 1, b: 1, n }, |_| 0);
        let row = case.plan.tensors[0].row_range([1, 0, 0]);
        case.inputs[0][row][..17].copy_from_slice(&[255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut device = CpuDevice::new(Stages::default());
        case.load(&mut device);
        let out = case.run(&mut device);
        for row in read_f32(&out).collect::<Vec<_>>().chunks(2) {
            assert!(row[0].is_finite() && row[1].is_nan());
        }
    }
}

#[test]
fn a_sort_feeds_a_matmul() {
    let t = Tensor::whole;
    let tensors = vec![
        t("logits", ElemType::F32, [3, 5, 1, 1], Role::Input).with_margins([true; 4]),
        t("order", ElemType::I32, [3, 5, 1, 1], Role::Output),
        t("w", ElemType::F32, [7, 2, 3, 1], Role::Weights),
        t("x", ElemType::F32, [7, 1, 5, 1], Role::Input),
        t("out", ElemType::F32, [2, 3, 5, 1], Role::Output),
    ];
    let steps =
        vec![Step::Argsort { x: 0, out: 1, order: Order::Desc }, Step::MulMatId { weights: 2, x: 3, ids: 1, out: 4 }];
    let plan = Plan { case: "by hand".to_owned(), tensors, steps, ..Plan::default() };
    let run = |cuts: &[usize]| {
        let mut device = CpuDevice::new(Stages::default());
        device.load(&plan).unwrap();
        for tensor in [0, 2, 3] {
            device.write(tensor, 0, &f32_bytes(&plan.tensors[tensor])).unwrap();
        }
        cuts.windows(2).for_each(|part| device.run(part[0]..part[1]).unwrap());
        let (mut order, mut out) = (vec![0; 15 * 4], vec![0; 30 * 4]);
        device.read(1, 0, &mut order).unwrap();
        device.read(4, 0, &mut out).unwrap();
        assert!(read_i32(&order).all(|i| (0..3).contains(&i)));
        out
    };
    let whole = run(&[0, 2]);
    assert_eq!(whole, run(&[0, 1, 2]));
    assert!(read_f32(&whole).all(|v| v != 0.0));
}

#[test]
fn driver_and_errors_are_one_line() {
    let Probe::Found(devices) = CpuDriver.probe() else { panic!("always there") };
    assert_eq!((devices[0].key.as_str(), devices.len()), ("cpu", 1));
    assert!(CpuDriver.open("cpu-1").is_err());
    let mut device = CpuDriver.open("cpu").unwrap();
    assert_eq!(device.run(0..0).unwrap_err().0, "run: no plan is loaded");
    let case = matmul(ElemType::F32, Sizes { k: 3, m: 2, experts: 1, used: 1, b: 1, n: 1 }, |_| 0);
    device.load(&case.plan).unwrap();
    assert_eq!(device.run(0..2).unwrap_err().0, "run: steps 0..2 of 1");
    assert_eq!(device.write(3, 5, &[0; 4]).unwrap_err().0, "write: 4 bytes at 5 exceed tensor out of 8 bytes");
    assert_eq!(device.read(9, 0, &mut []).unwrap_err().0, "read: tensor 9 of 4");
    assert!(device.read(0, usize::MAX, &mut [0]).is_err());

    let mut huge = case.plan;
    huge.tensors[1] = Tensor::whole("x", ElemType::F32, [3, 1 << 58, 1, 1], Role::Input);
    let why = device.load(&huge).unwrap_err();
    assert!(matches!(&why, LoadError::Unsupported(why) if why.contains("allocation refused")), "{why}");
}

/// Moved are the bytes that were written, whatever form weights have after a run; the next run sees what was moved.
#[test]
fn bytes_of_converted_weights_move() {
    let mut matmul = matmul(ElemType::Mxfp4, Sizes { k: 64, m: 5, experts: 5, used: 3, b: 1, n: 4 }, any_id);
    let bytes = matmul.inputs[0].len();
    matmul.plan.tensors.push(Tensor::whole("bytes", ElemType::I8, [bytes, 1, 1, 1], Role::Input));
    let part =
        |tensor, here, there, size| Part { tensor, here: Place::at(here), there: Place::at(there), size, count: 1 };
    let mut device = CpuDevice::new(Stages::default());
    matmul.load(&mut device);
    let out = matmul.run(&mut device);
    matmul.judge(&out);
    let fetch = |device: &mut CpuDevice, tensor| {
        let mut all = vec![0; bytes];
        device.fetch(&mut all, &[part(tensor, 0, 0, bytes)]).unwrap();
        all
    };
    let half = bytes / 2;
    device.copy(0, &[part(4, 0, 0, bytes), part(0, 0, half, half)]).unwrap();
    assert!(fetch(&mut device, 4) == matmul.inputs[0]);
    let doubled = [&matmul.inputs[0][half..2 * half], &matmul.inputs[0][half..]].concat();
    assert!(fetch(&mut device, 0) == doubled);
    matmul.run(&mut device);
    assert!(fetch(&mut device, 0) == doubled);
    device.copy(4, &[part(0, 0, 0, half)]).unwrap();
    assert_eq!(matmul.run(&mut device), out);
    device.upload(&doubled, &[part(0, 0, 0, half)]).unwrap();
    assert!(fetch(&mut device, 0) == doubled);
}
