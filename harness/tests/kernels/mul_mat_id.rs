//! `mul_mat_id` against naive host loops.

use std::ops::RangeInclusive;

use conform_cases::formats::{ElemType, Parts, read_f32, read_i32};
use conform_cases::plan::{Order, Part, Place, Plan, Role, Step, Tensor};
use conform_cases::stream::Stream;
use conform_harness::backend::Device;

use super::{POISON, device, run};

/// Shapes and contents of a `mul_mat_id` case.
pub(crate) struct Spec {
    pub(crate) ty: ElemType,
    pub(crate) k: usize,
    pub(crate) m: usize,
    pub(crate) experts: usize,
    pub(crate) used: usize,
    pub(crate) tokens: usize,
    pub(crate) per_token: usize,
    pub(crate) margins: bool,
    pub(crate) ids: fn(slot: usize, experts: usize) -> i32,
    /// MXFP4 scale bytes to draw from.
    pub(crate) scales: RangeInclusive<u8>,
    /// The device multiplies tiles in f16: it may flush what is below the normal numbers.
    pub(crate) half: bool,
}

fn spread(slot: usize, experts: usize) -> i32 {
    (slot * 7 % experts) as i32
}

impl Default for Spec {
    fn default() -> Self {
        Spec {
            ty: ElemType::Mxfp4,
            k: 64,
            m: 65,
            experts: 5,
            used: 2,
            tokens: 3,
            per_token: 1,
            margins: false,
            ids: spread,
            scales: 120..=134,
            half: false,
        }
    }
}

const W: usize = 0;
const X: usize = 1;
const IDS: usize = 2;
const OUT: usize = 3;

impl Spec {
    fn plan(&self) -> Plan {
        let tensor = |name, ty, shape, role| {
            let t = Tensor::whole(name, ty, shape, role);
            if self.margins { t.with_margins([true, true, true, false]) } else { t }
        };
        Plan {
            case: String::new(),
            tensors: vec![
                tensor("w", self.ty, [self.k, self.m, self.experts, 1], Role::Weights),
                tensor("x", ElemType::F32, [self.k, self.per_token, self.tokens, 1], Role::Input),
                tensor("ids", ElemType::I32, [self.used, self.tokens, 1, 1], Role::Input),
                tensor("out", ElemType::F32, [self.m, self.used, self.tokens, 1], Role::Output),
            ],
            steps: vec![Step::MulMatId { weights: W, x: X, ids: IDS, out: OUT }],
            ..Plan::default()
        }
    }

    /// The bytes of a block (or element) of a tensor; margins get any bytes.
    fn block(&self, t: &Tensor, stream: Stream) -> Vec<u8> {
        let word = stream.word(0);
        let unit = (word >> 40) as f32 / (1 << 23) as f32 - 1.0;
        match t.ty {
            ElemType::F32 => unit.to_le_bytes().to_vec(),
            ElemType::F16 => half::f16::from_f32(unit).to_le_bytes().to_vec(),
            ElemType::Bf16 => half::bf16::from_f32(unit).to_le_bytes().to_vec(),
            blocked => {
                let byte = |i: usize| stream.word(100 + i as u64) as u8;
                let mask = (1u16 << blocked.code_bits()) - 1;
                let span = u64::from(self.scales.end() - self.scales.start()) + 1;
                let scale = match blocked {
                    ElemType::Mxfp4 => u16::from(self.scales.start() + stream.below(40, span) as u8),
                    _ => half::f16::from_f32(unit).to_bits(),
                };
                let mut block = vec![0; blocked.block_bytes()];
                let parts = Parts {
                    scale,
                    min: half::f16::from_f32(0.5 - unit * 3.0).to_bits(),
                    sub_scales: std::array::from_fn(byte),
                    sub_mins: std::array::from_fn(|i| byte(16 + i)),
                    codes: std::array::from_fn(|i| byte(32 + i) & mask as u8),
                };
                blocked.encode_block(&parts, &mut block);
                block
            }
        }
    }

    fn bytes(&self, t: &Tensor, domain: u64) -> Vec<u8> {
        let stream = Stream::new(1, domain);
        let mut bytes: Vec<u8> = (0..t.parent_bytes()).map(|i| stream.at(9).word(i as u64) as u8).collect();
        let size = t.ty.block_bytes();
        for row in 0..t.parent_rows() {
            let Some(at) = t.view_row(row) else { continue };
            let row = &mut bytes[t.row_range(at)];
            for (i, block) in row.chunks_exact_mut(size).enumerate() {
                let here = at.iter().fold(stream, |s, &a| s.at(a as u64)).at(i as u64);
                let value = match t.ty {
                    ElemType::I32 => (self.ids)(at[0] * self.used + i, self.experts).to_le_bytes().to_vec(),
                    _ => self.block(t, here),
                };
                block.copy_from_slice(&value);
            }
        }
        bytes
    }

    /// Whether this goes through tiles in f16.
    fn is_half(&self) -> bool {
        self.half && self.ty == ElemType::Mxfp4 && self.tokens > 1
    }

    /// The error of one output by the roundings on its path, as the kernels' headers state them: relative to the sum of
    /// magnitudes of its products, and near zero.
    fn errors(&self) -> (f64, f64) {
        let (k, unit) = (self.k as f64, 2f64.powi(-24));
        let near_zero = 2f64.powi(-148);
        if self.is_half() {
            (8.0 * 2f64.powi(-11) + k / 8.0 * unit, 2.0 * k * 2f64.powi(-14))
        } else if self.ty == ElemType::Mxfp4 && self.tokens == 1 {
            ((k.min(32.0) + crate::joins(self.k) + 4.0) * unit, near_zero)
        } else {
            ((k + 1.0 + crate::MORE_ROUNDINGS) * unit, near_zero)
        }
    }
}

fn decode(t: &Tensor, bytes: &[u8], at: [usize; 3]) -> Vec<f64> {
    let mut values = vec![0.0; t.shape[0]];
    t.ty.decode(&bytes[t.row_range(at)], &mut values);
    values
}

fn write_all(device: &mut dyn Device, inputs: &[Vec<u8>]) {
    for (i, bytes) in inputs.iter().enumerate() {
        device.write(i, 0, bytes).unwrap();
    }
}

fn read_back(device: &mut dyn Device, plan: &Plan, inputs: &[Vec<u8>]) {
    for (i, bytes) in inputs.iter().enumerate() {
        let mut back = vec![0xA5; bytes.len()];
        device.read(i, 0, &mut back).unwrap();
        assert!(back == *bytes, "{} differs when read back", plan.tensors[i].name);
    }
}

/// Runs a case and compares every element, what surrounds it, a second run after poisoned scratch, and the inputs.
pub(crate) fn check(device: &mut dyn Device, spec: &Spec) {
    let (plan, inputs, bytes) = execute(device, spec);
    compare(spec, &plan, &inputs, &bytes).unwrap();

    device.poison_scratch(0x7fc0_1234).unwrap();
    assert!(run(device, &plan, OUT) == bytes, "{spec}: poisoned scratch changes the result");
    read_back(device, &plan, &inputs);
}

/// Runs a case: its plan, its inputs and the output's allocation.
pub(crate) fn execute(device: &mut dyn Device, spec: &Spec) -> (Plan, Vec<Vec<u8>>, Vec<u8>) {
    let plan = spec.plan();
    let inputs: Vec<_> = (0..OUT).map(|i| spec.bytes(&plan.tensors[i], i as u64)).collect();
    device.load(&plan).unwrap();
    write_all(device, &inputs);
    let bytes = run(device, &plan, OUT);
    (plan, inputs, bytes)
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Spec { ty, k, m, experts, used, tokens, per_token, margins, .. } = self;
        write!(f, "{ty} k={k} m={m} e={experts} u={used} n={tokens} b={per_token} margins={margins}")
    }
}

/// Compares every element and what surrounds it. The error says what the first difference is.
pub(crate) fn compare(spec: &Spec, plan: &Plan, inputs: &[Vec<u8>], bytes: &[u8]) -> Result<(), String> {
    let require = |holds: bool, why: &dyn Fn() -> String| match holds {
        true => Ok(()),
        false => Err(format!("{spec}: {}", why())),
    };
    let (relative, near_zero) = spec.errors();
    let convert = |values: Vec<f64>| match spec.is_half() {
        true => values.into_iter().map(|v| f64::from(half::f16::from_f32(v as f32))).collect(),
        false => values,
    };
    let [w, x, ids, out] = [W, X, IDS, OUT].map(|i| &plan.tensors[i]);
    for parent_row in 0..out.parent_rows() {
        let row = &bytes[parent_row * out.parent_row_bytes()..][..out.parent_row_bytes()];
        let untouched = |bytes: &[u8]| bytes.iter().all(|b| *b == 0xFF);
        let Some([e, t, _]) = out.view_row(parent_row) else {
            require(untouched(row), &|| format!("margin row {parent_row} written"))?;
            continue;
        };
        let view = out.start[0] * 4..(out.start[0] + out.shape[0]) * 4;
        let beside = untouched(&row[..view.start]) && untouched(&row[view.end..]);
        require(beside, &|| "margin beside a row written".to_owned())?;
        let got: Vec<f32> = read_f32(&row[view.clone()]).collect();
        let id = read_i32(&inputs[IDS][ids.row_range([t, 0, 0])]).nth(e).unwrap();
        if id < 0 || id as usize >= spec.experts {
            require(untouched(&row[view]), &|| format!("slot {e} of token {t} has id {id} and was written"))?;
            continue;
        }
        let activations = convert(decode(x, &inputs[X], [e % spec.per_token, t, 0]));
        let mut offsets = vec![0.0; spec.k];
        for (r, got) in got.iter().enumerate() {
            let weights = convert(decode(w, &inputs[W], [r, id as usize, 0]));
            w.ty.offsets(&inputs[W][w.row_range([r, id as usize, 0])], false, &mut offsets);
            let want: f64 = weights.iter().zip(&activations).map(|(w, x)| w * x).sum();
            let sizes = weights.iter().zip(&offsets).map(|(w, o)| (w - o).abs() + o.abs());
            let size: f64 = sizes.zip(&activations).map(|(size, x)| size * x.abs()).sum();
            let bound = size * relative + near_zero;
            let close = match want {
                // An infinite weight may meet an activation that was flushed.
                want if spec.is_half() && want.is_infinite() => f64::from(*got) == want || got.is_nan(),
                want => (f64::from(*got) - want).abs() <= bound || want.is_nan() && got.is_nan(),
            };
            require(close, &|| format!("[{r}, {e}, {t}] is {got}, not {want} ± {bound}"))?;
        }
    }
    Ok(())
}

#[test]
fn mul_mat_id_of_every_type() {
    let Some(mut device) = device() else { return };
    for ty in ElemType::WEIGHTS {
        for tokens in [1, 3] {
            for margins in [false, true] {
                let k = 2 * ty.block_len().max(32);
                check(&mut *device, &Spec { ty, k, tokens, margins, ..Spec::default() });
            }
        }
    }
}

/// A device may keep weights in a layout of its own: what is moved are the bytes that were written all the same, before a
/// run and after it, and the next run sees them.
#[test]
fn bytes_of_converted_weights_move() {
    let Some(mut device) = device() else { return };
    let spec = Spec { margins: true, ..Spec::default() };
    let mut plan = spec.plan();
    plan.tensors.push(Tensor { name: "other".to_owned(), ..plan.tensors[W].clone() });
    let inputs: Vec<_> = (0..OUT).map(|i| spec.bytes(&plan.tensors[i], i as u64)).collect();
    let (other, bytes) = (OUT + 1, inputs[W].len());
    let part = |tensor, at, size| Part { tensor, here: Place::at(at), there: Place::at(at), size, count: 1 };
    let fetch = |device: &mut dyn Device, tensor| {
        let mut to = vec![0xA5; bytes];
        device.fetch(&mut to, &[part(tensor, 0, bytes)]).unwrap();
        to
    };
    device.load(&plan).unwrap();
    let junk: Vec<u8> = inputs[W].iter().map(|b| b ^ 0x13).collect();
    device.upload(&junk, &[part(W, 0, bytes), part(other, 0, bytes)]).unwrap();
    device.upload(&inputs[X], &[part(X, 0, inputs[X].len())]).unwrap();
    device.upload(&inputs[IDS], &[part(IDS, 0, inputs[IDS].len())]).unwrap();
    run(&mut *device, &plan, OUT);
    assert!(fetch(&mut *device, W) == junk);
    // Every other row first, so that rows of both kinds lie side by side, then the rest out of another tensor.
    let row = plan.tensors[W].parent_row_bytes();
    let rows = |tensor, first: usize| {
        let every = Place { at: first * row, stride: 2 * row };
        Part { tensor, here: every, there: every, size: row, count: (bytes / row - first).div_ceil(2) }
    };
    device.upload(&inputs[W], &[rows(W, 0), rows(other, 1)]).unwrap();
    let mixed: Vec<u8> = (0..bytes).map(|i| if (i / row).is_multiple_of(2) { inputs[W][i] } else { junk[i] }).collect();
    assert!(fetch(&mut *device, W) == mixed);
    run(&mut *device, &plan, OUT);
    device.copy(other, &[rows(W, 1)]).unwrap();
    assert!(fetch(&mut *device, W) == inputs[W]);
    let out = run(&mut *device, &plan, OUT);
    compare(&spec, &plan, &inputs, &out).unwrap();
    device.copy(W, &[part(other, 0, bytes)]).unwrap();
    assert!(fetch(&mut *device, other) == inputs[W]);
}

#[test]
fn mul_mat_id_edge_sizes() {
    let Some(mut device) = device() else { return };
    for tokens in [1, 2, 33, 65] {
        for (k, m) in [(32, 1), (32, 63), (96, 64), (96, 65), (160, 129)] {
            check(&mut *device, &Spec { k, m, tokens, margins: tokens == 2, ..Spec::default() });
        }
    }
    for (ty, k) in
        [(ElemType::F32, 1), (ElemType::F32, 33), (ElemType::F16, 7), (ElemType::Bf16, 7), (ElemType::Q8_0, 96)]
    {
        check(&mut *device, &Spec { ty, k, m: 3, margins: true, ..Spec::default() });
    }
    // One k block more than the lane groups of gemv divide evenly, and many.
    check(&mut *device, &Spec { k: 32 * 37, m: 17, tokens: 1, ..Spec::default() });
}

#[test]
fn mul_mat_id_activation_rows() {
    let Some(mut device) = device() else { return };
    for ty in [ElemType::Mxfp4, ElemType::F16] {
        for per_token in [1, 2, 3, 6] {
            for tokens in [1, 4] {
                check(&mut *device, &Spec { ty, used: 6, per_token, tokens, margins: true, ..Spec::default() });
            }
        }
    }
}

#[test]
fn mul_mat_id_routing() {
    let Some(mut device) = device() else { return };
    let patterns: [fn(usize, usize) -> i32; 4] = [
        |_, experts| experts as i32 - 1,
        |slot, experts| [0, -1, 0, experts as i32, 1, i32::MAX, i32::MIN, 2][slot % 8],
        |_, experts| experts as i32,
        |slot, _| (slot % 2) as i32 * 3,
    ];
    for ids in patterns {
        for ty in [ElemType::Mxfp4, ElemType::Q4_0] {
            for (used, tokens) in [(1, 40), (8, 1), (17, 5), (64, 1)] {
                check(&mut *device, &Spec { ty, ids, used, tokens, m: 20, margins: true, ..Spec::default() });
            }
        }
    }
    // More experts than work-items in a group, and more slots per token than a work-group could hold of them.
    check(&mut *device, &Spec { experts: 130, used: 100, tokens: 3, m: 5, k: 32, ..Spec::default() });
    check(&mut *device, &Spec { used: 1024, per_token: 512, tokens: 2, m: 2, k: 32, ..Spec::default() });
}

#[test]
fn mxfp4_scale_bytes() {
    let Some(mut device) = device() else { return };
    for tokens in [1, 3] {
        for scales in [0..=0, 0..=3, 1..=1, 230..=244, 255..=255] {
            check(&mut *device, &Spec { scales, tokens, ..Spec::default() });
        }
    }
}

/// With one sign everywhere, an infinite scale would give infinity where NaN is due.
#[test]
fn scale_byte_255_is_nan() {
    let Some(mut device) = device() else { return };
    for tokens in [1, 2] {
        let spec = Spec { tokens, k: 32, ..Spec::default() };
        let plan = spec.plan();
        let mut inputs: Vec<_> = (0..OUT).map(|i| spec.bytes(&plan.tensors[i], i as u64)).collect();
        inputs[W]
            .chunks_exact_mut(17)
            .for_each(|b| ElemType::Mxfp4.encode_block(&Parts { scale: 255, codes: [2; 256], ..Parts::default() }, b));
        inputs[X].chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&1f32.to_le_bytes()));
        device.load(&plan).unwrap();
        write_all(&mut *device, &inputs);
        let bytes = run(&mut *device, &plan, OUT);
        // The poison is a NaN as well.
        assert!(read_f32(&bytes).all(|v| v.is_nan() && v.to_bits() != POISON), "{tokens} tokens");
    }
}

/// Router, then two layers over its ids: all at once, step by step, and step by step in memory that was used before.
#[test]
fn steps_in_sequence() {
    let Some(mut device) = device() else { return };
    let spec = Spec { used: 5, tokens: 9, ..Spec::default() };
    let mut plan = spec.plan();
    let logits = Tensor::whole("logits", ElemType::F32, [5, 9, 1, 1], Role::Input);
    let second = Tensor { name: "second".to_owned(), ..plan.tensors[OUT].clone() };
    plan.tensors.extend([logits, second]);
    plan.tensors[IDS].role = Role::Output;
    plan.steps = vec![
        Step::Argsort { x: 4, out: IDS, order: Order::Desc },
        Step::MulMatId { weights: W, x: X, ids: IDS, out: OUT },
        Step::MulMatId { weights: W, x: X, ids: IDS, out: 5 },
    ];
    let inputs = [W, X, 4].map(|i| (i, spec.bytes(&plan.tensors[i], i as u64)));
    device.load(&plan).unwrap();
    inputs.iter().for_each(|(i, bytes)| device.write(*i, 0, bytes).unwrap());
    let first = run(&mut *device, &plan, OUT);
    let mut ids = vec![0; plan.tensors[IDS].parent_bytes()];
    device.read(IDS, 0, &mut ids).unwrap();
    compare(&spec, &plan, &[inputs[0].1.clone(), inputs[1].1.clone(), ids], &first).unwrap();
    let mut again = vec![0; first.len()];
    for step in 0..3 {
        device.poison_scratch(step as u32).unwrap();
        device.run(step..step + 1).unwrap();
    }
    for out in [OUT, 5] {
        device.read(out, 0, &mut again).unwrap();
        assert!(again == first, "tensor {out} differs between whole and single steps");
    }
    assert!(device.run(2..4).is_err() && device.run(0..0).is_ok());
}

#[test]
fn infinite_activations_follow_ieee() {
    let Some(mut device) = device() else { return };
    for tokens in [1, 2] {
        let spec = Spec { tokens, m: 4, k: 32, ..Spec::default() };
        let plan = spec.plan();
        let mut inputs: Vec<_> = (0..OUT).map(|i| spec.bytes(&plan.tensors[i], i as u64)).collect();
        inputs[X][..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
        device.load(&plan).unwrap();
        write_all(&mut *device, &inputs);
        let bytes = run(&mut *device, &plan, OUT);
        for (r, got) in read_f32(&bytes[..16]).enumerate() {
            let id = read_i32(&inputs[IDS]).next().unwrap() as usize;
            let weight = decode(&plan.tensors[W], &inputs[W], [r, id, 0])[0];
            let want = weight * f64::INFINITY;
            assert!(f64::from(got) == want || got.is_nan() && want.is_nan(), "row {r}: {got}, not {want}");
        }
    }
}

#[test]
fn weights_survive_writes_in_pieces() {
    let Some(mut device) = device() else { return };
    let spec = Spec { margins: true, ..Spec::default() };
    let plan = spec.plan();
    let mut inputs: Vec<_> = (0..OUT).map(|i| spec.bytes(&plan.tensors[i], i as u64)).collect();
    // Every byte pattern, not only those of numbers.
    let stream = Stream::new(3, 3);
    inputs[W].iter_mut().enumerate().for_each(|(i, b)| *b = stream.word(i as u64) as u8);
    device.load(&plan).unwrap();
    write_all(&mut *device, &inputs);
    read_back(&mut *device, &plan, &inputs);
    run(&mut *device, &plan, OUT);
    for (at, len) in [(0, 1), (300, 700), (inputs[W].len() - 5, 5)] {
        inputs[W][at..at + len].iter_mut().for_each(|b| *b ^= 0x5A);
        device.write(W, at, &inputs[W][at..at + len]).unwrap();
        run(&mut *device, &plan, OUT);
        let mut back = vec![0; len + 20];
        let from = at.saturating_sub(20);
        device.read(W, from, &mut back[..at + len - from]).unwrap();
        assert_eq!(back[..at + len - from], inputs[W][from..at + len]);
        read_back(&mut *device, &plan, &inputs);
    }
    // The last weights written are the ones that count.
    inputs[W] = spec.bytes(&plan.tensors[W], 77);
    device.write(W, 0, &inputs[W]).unwrap();
    compare(&spec, &plan, &inputs, &run(&mut *device, &plan, OUT)).unwrap();
}
