//! Steps that move bytes, against host memory: random plans on a device and on vectors.

use conform_cases::formats::ElemType;
use conform_cases::plan::{Buffer, Part, Place, Plan, Role, Step, Tensor};
use conform_cases::state::plain::PlainMemory;
use conform_cases::stream::Stream;
use conform_harness::backend::{Device, DeviceError};

/// Any bytes in tensors and in buffers.
pub(crate) fn host(plan: &Plan, seed: u64) -> PlainMemory {
    let fill = |i: usize, bytes: usize| {
        let stream = Stream::new(seed, 77).at(i as u64);
        (0..bytes).map(|at| stream.word(at as u64) as u8).collect::<Vec<_>>()
    };
    let tensors = plan.tensors.iter().enumerate().map(|(i, t)| fill(i, t.parent_bytes())).collect();
    let buffers = plan.buffers.iter().enumerate().map(|(i, b)| fill(1000 + i, b.bytes)).collect();
    PlainMemory { tensors, buffers }
}

/// Does a step on a device. Host memory that it was given holds something else as soon as it says that it is done.
pub(crate) fn step_on(
    device: &mut dyn Device,
    buffers: &mut [Vec<u8>],
    plan: &Plan,
    i: usize,
) -> Result<(), DeviceError> {
    match &plan.steps[i] {
        Step::Copy { from, parts } => device.copy(*from, parts),
        Step::Upload { from, parts } => {
            let mut bytes = buffers[*from].clone();
            let done = device.upload(&bytes, parts);
            bytes.fill(0xA5);
            std::hint::black_box(&bytes);
            done
        }
        Step::Fetch { to, parts } => device.fetch(&mut buffers[*to], parts),
        Step::Fill { tensor, byte } => device.write(*tensor, 0, &vec![*byte; plan.tensors[*tensor].parent_bytes()]),
        _ => device.run(i..i + 1),
    }
}

/// Runs a plan on both; the error says what differs first.
pub(crate) fn compare(device: &mut dyn Device, plan: &Plan, seed: u64) -> Result<(), String> {
    let mut host = host(plan, seed);
    device.load(plan).map_err(|e| e.to_string())?;
    for (i, bytes) in host.tensors.iter().enumerate() {
        device.write(i, 0, bytes).map_err(|e| e.0)?;
    }
    let mut buffers = host.buffers.clone();
    for (i, step) in plan.steps.iter().enumerate() {
        host.step(step)?;
        step_on(device, &mut buffers, plan, i).map_err(|e| format!("step {i}: {e}"))?;
        if let Step::Fetch { to, .. } = step {
            same(&format!("step {i}"), &host.buffers[*to], &buffers[*to])?;
        }
    }
    for (i, want) in host.tensors.iter().enumerate() {
        let mut got = vec![0; want.len()];
        device.read(i, 0, &mut got).map_err(|e| e.0)?;
        same(&format!("tensor {i}"), want, &got)?;
    }
    device.free();
    Ok(())
}

fn same(what: &str, want: &[u8], got: &[u8]) -> Result<(), String> {
    match want.iter().zip(got).position(|(a, b)| a != b) {
        Some(at) => Err(format!("{what}: byte {at} of {} is {:#04x}, not {:#04x}", want.len(), got[at], want[at])),
        None => Ok(()),
    }
}

/// A stream read from one value to the next.
struct Draw(Stream, u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.1 += 1;
        self.0.below(self.1, n as u64) as usize
    }

    fn of<const N: usize>(&mut self, choices: [usize; N]) -> usize {
        choices[self.below(N)]
    }

    /// Pieces that do not overlap, in a range of bytes.
    fn carve(&mut self, tensor: usize, from: usize, to: usize) -> Vec<Part> {
        let (mut at, mut parts) = (from, Vec::new());
        // Some plans have few pieces and some as many as fit.
        let most = self.of([1, 3, 200]);
        while parts.len() < most {
            let gap = [0, 1, 5, 97][self.below(4)];
            let (size, count) = (1 + self.of([0, 0, 1, 6, 63, 254]), 1 + self.of([0, 1, 4, 40]));
            let stride = size + self.of([0, 0, 1, 3, size]);
            at += self.below(gap + 1);
            let end = at + (count - 1) * stride + size;
            if end > to {
                break;
            }
            parts.push(Part { tensor, here: Place { at, stride }, there: Place::at(0), size, count });
            at = end;
        }
        parts
    }

    /// Places the other side in a buffer: one part after the other, from a start and with strides that are odd.
    fn place_in_buffer(&mut self, parts: &mut [Part]) -> usize {
        let mut at = self.below(3);
        for p in parts {
            let stride = p.size + self.of([0, 0, 0, 1, p.size]);
            p.there = Place { at, stride };
            at += (p.count - 1) * stride + p.size + self.of([0, 0, 1]);
        }
        at + self.below(3)
    }

    /// Places the other side anywhere in a range of bytes of a tensor.
    fn place_in_tensor(&mut self, parts: &mut Vec<Part>, from: usize, to: usize) {
        parts.retain_mut(|p| {
            let stride = [p.size, p.here.stride, 2 * p.size, 0][self.below(4)];
            let span = (p.count - 1) * stride + p.size;
            let fits = span <= to - from;
            if fits {
                p.there = Place { at: from + self.below(to - from - span + 1), stride };
            }
            fits
        });
    }
}

/// A plan of many steps over a few tensors, in which a copy is often followed by what sees it.
pub(crate) fn random(seed: u64) -> Plan {
    let mut draw = Draw(Stream::new(seed, 76), 0);
    let shapes = [
        (ElemType::I8, [4999, 1, 1, 1]),
        (ElemType::I8, [61, 53, 2, 1]),
        (ElemType::F16, [128, 33, 1, 1]),
        (ElemType::F16, [64, 80, 1, 1]),
        (ElemType::Q8_0, [64, 40, 1, 1]),
        (ElemType::I8, [1, 1, 1, 1]),
    ];
    let tensors: Vec<Tensor> = shapes
        .into_iter()
        .enumerate()
        .map(|(i, (ty, shape))| Tensor::whole(&format!("t{i}"), ty, shape, Role::Output))
        .collect();
    let (mut buffers, mut steps) = (Vec::new(), Vec::new());
    let mut buffer = |bytes: usize, is_given: bool| {
        buffers.push(Buffer { name: format!("b{}", buffers.len()), bytes, is_given });
        buffers.len() - 1
    };
    for _ in 0..12 {
        let tensor = draw.below(tensors.len());
        let bytes = tensors[tensor].parent_bytes();
        match draw.below(7) {
            0 => steps.push(Step::Fill { tensor, byte: draw.below(256) as u8 }),
            1 | 2 => {
                let mut parts = draw.carve(tensor, 0, bytes);
                let from = buffer(draw.place_in_buffer(&mut parts), true);
                steps.push(Step::Upload { from, parts });
            }
            3 => {
                let mut parts = draw.carve(tensor, 0, bytes);
                let to = buffer(draw.place_in_buffer(&mut parts), false);
                steps.push(Step::Fetch { to, parts });
            }
            kind => {
                let from = draw.below(tensors.len());
                let has = tensors[from].parent_bytes();
                let (mut parts, low) = match from == tensor {
                    true => (draw.carve(tensor, 0, bytes / 2), bytes / 2),
                    false => (draw.carve(tensor, 0, bytes), 0),
                };
                draw.place_in_tensor(&mut parts, low, has);
                let mut seen = parts.clone();
                steps.push(Step::Copy { from, parts });
                if kind != 4 && !seen.is_empty() {
                    let to = buffer(draw.place_in_buffer(&mut seen), false);
                    steps.push(Step::Fetch { to, parts: seen });
                }
            }
        }
    }
    Plan { case: format!("moves {seed}"), tensors, buffers, steps, ..Plan::default() }
}

/// Rows that lie between each other are copied inside of one tensor, and whole blocks of types that have them.
pub(crate) fn rows() -> Plan {
    let tensors = vec![
        Tensor::whole("k", ElemType::Q8_0, [64, 16, 1, 1], Role::Output),
        Tensor::whole("k2", ElemType::Q8_0, [64, 16, 1, 1], Role::Output),
        Tensor::whole("v", ElemType::F16, [24, 31, 1, 1], Role::Output),
    ];
    let part = |tensor, here: [usize; 2], there: [usize; 2], size, count| {
        let place = |[at, stride]: [usize; 2]| Place { at, stride };
        Part { tensor, here: place(here), there: place(there), size, count }
    };
    let buffers = vec![Buffer { name: "b".into(), bytes: 68 * 32 + 1488, is_given: false }];
    let everything = vec![part(0, [0, 0], [0, 0], 1088, 1), part(1, [0, 0], [1088, 0], 1088, 1)];
    let of_v = part(2, [0, 48], [2176, 48], 48, 31);
    let steps = vec![
        Step::Copy { from: 0, parts: vec![part(0, [0, 136], [68, 136], 68, 8)] },
        Step::Copy { from: 0, parts: vec![part(1, [68, 68], [0, 136], 68, 8), part(1, [0, 0], [952, 0], 68, 1)] },
        Step::Copy { from: 2, parts: vec![part(2, [2, 96], [48, 96], 2, 15), part(2, [6, 48], [10, 48], 4, 31)] },
        Step::Fetch { to: 0, parts: [everything, vec![of_v]].concat() },
    ];
    Plan { case: "rows".to_owned(), tensors, buffers, steps, ..Plan::default() }
}

/// More pieces than a device may queue, or describe, at once.
pub(crate) fn many() -> Plan {
    const COUNT: usize = 20_000;
    let tensor = |name| Tensor::whole(name, ElemType::I8, [10 * COUNT, 1, 1, 1], Role::Output);
    let parts = |tensor, first: usize| {
        let places = (0..COUNT).map(|i| (Place::at(i * 10 + first + i % 4), Place::at((i * 7) % COUNT * 3)));
        places.map(|(here, there)| Part { tensor, here, there, size: 3, count: 1 }).collect::<Vec<_>>()
    };
    let buffer = |name: &str, is_given| Buffer { name: name.into(), bytes: 3 * COUNT, is_given };
    Plan {
        case: "many".to_owned(),
        tensors: ["a", "b"].map(tensor).to_vec(),
        buffers: vec![buffer("from", true), buffer("to", false), buffer("seen", false)],
        steps: vec![
            Step::Upload { from: 0, parts: parts(0, 1) },
            Step::Copy { from: 0, parts: parts(1, 3) },
            Step::Fetch { to: 1, parts: parts(1, 4) },
            Step::Upload { from: 1, parts: [&parts(0, 0)[..4000], &parts(1, 2)[..4000]].concat() },
            Step::Fetch { to: 2, parts: parts(0, 2) },
        ],
        ..Plan::default()
    }
}

/// Every plan that a device must run.
pub(crate) fn plans() -> impl Iterator<Item = (u64, Plan)> {
    (0..150).map(|seed| (seed, random(seed))).chain([(1000, rows()), (1001, many())])
}

pub(crate) fn check(device: &mut dyn Device) {
    for (seed, plan) in plans() {
        if let Err(why) = compare(device, &plan, seed) {
            panic!("{}: plan '{}': {why}", device.info().key, plan.case);
        }
    }
    refuse_nonsense(device);
}

/// What does not lie inside is refused, and nothing is moved.
fn refuse_nonsense(device: &mut dyn Device) {
    let good =
        Part { tensor: 0, here: Place { at: 0, stride: 16 }, there: Place { at: 0, stride: 16 }, size: 16, count: 4 };
    let far = |mut part: Part| (part.here.at = usize::MAX - 8, part).1;
    assert!(device.upload(&[1; 64], &[good]).is_err(), "nothing is loaded");
    device.load(&rows()).unwrap();
    device.write(0, 0, &[9; 1088]).unwrap();
    for bad in [far(good), Part { tensor: 7, ..good }, Part { count: 5, ..good }] {
        assert!(device.upload(&[1; 64], &[good, bad]).is_err(), "{bad:?}");
        assert!(device.fetch(&mut [0; 64], &[bad]).is_err(), "{bad:?}");
    }
    assert!(device.copy(7, &[good]).is_err() && device.copy(1, &[far(good)]).is_err());
    let mut bytes = [0; 1088];
    device.read(0, 0, &mut bytes).unwrap();
    assert!(bytes == [9; 1088], "{}: a refused call has moved bytes", device.info().key);
    device.free();
}
