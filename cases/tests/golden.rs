//! What must never change under an id: ids, bytes and exact values, as snapshots in `golden/`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use conform_cases::case::Case;
use conform_cases::formats::{ElemType, Parts};
use conform_cases::inputs::Inputs;
use conform_cases::judge::Capabilities;
use conform_cases::judge::values::Class;
use conform_cases::model::{Kernels, probe};
use conform_cases::mul_mat_id::Data;
use conform_cases::plan::Layout;
use conform_cases::profile::Profile;
use conform_cases::state::case_type;
use conform_cases::state::lower::lower;
use conform_cases::state::ops::{Mix, Recipe, Script};
use conform_cases::state::shape::{KvShape, RecurrentShape, Shape};
use conform_cases::state::stages::Stages;

fn snapshot(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../golden"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

fn smoke() -> impl Iterator<Item = Case> {
    Profile::Smoke.cases(Profile::FIXED_SEED, Profile::Smoke.drawn())
}

#[test]
fn smoke_cases() {
    let ids: String = smoke().fold(String::new(), |text, case| text + &case.id() + "\n");
    snapshot("smoke_cases", &ids);
}

/// FNV-1a, 64 bits: short, and equal everywhere.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

struct Filled {
    case: Case,
    plan: conform_cases::plan::Plan,
    layout: Layout,
    file: Vec<u8>,
}

impl Filled {
    fn new(case: Case) -> Self {
        let plan = case.plan();
        let layout = Layout::new(&plan, 1);
        let mut file = vec![0; layout.input_bytes];
        case.fill_all(&plan, &layout, &mut file);
        Filled { case, plan, layout, file }
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs::new(&self.plan, &self.layout, &self.file)
    }
}

/// A case id gives the same bytes on any host, forever. Every recipe of every type is here, views included.
#[test]
fn input_bytes() {
    let small = |c: &Case| c.body().cost().input_elements < 40_000 && !is_decoded_by_build(c);
    let is_state = |c: &Case| case_type::is_state(c.body().op());
    snapshot("input_bytes", &hashes(smoke().filter(|c| !is_state(c) && !has_steps(c)).filter(small).take(400)));
}

/// The same for layers and sequences of calls.
#[test]
fn step_bytes() {
    let small = |c: &Case| c.body().cost().input_elements < 40_000;
    snapshot("step_bytes", &hashes(smoke().filter(has_steps).filter(small).take(40)));
}

fn has_steps(case: &Case) -> bool {
    case.plan().has_several_operations()
}

/// The same for models that are loaded by a libllama, and what is done with them.
#[test]
fn llama_models() {
    let calls = |case: &Case| serde_json::to_string(&case.plan().steps).unwrap();
    let line = |case: Case| {
        let (calls, model) = (hash(calls(&case).as_bytes()), Filled::new(case.clone()).file);
        format!("{} {:016x} {calls:016x}\n", case.id(), hash(&model))
    };
    snapshot(
        "llama_models",
        &Profile::Llama.cases(1, 0).filter(|case| case.id().ends_with("/v1-1")).map(line).collect::<String>(),
    );
}

/// The same for state that is saved and loaded: new rows, and blobs that are given.
#[test]
fn state_bytes() {
    snapshot("state_bytes", &hashes(Profile::State.cases(1, 40)));
}

/// The same for weights that only a build decodes: every recipe of every type.
#[test]
fn build_bytes() {
    let mut text = String::new();
    for w in ElemType::DECODED_BY_BUILD {
        let k = 2 * w.block_len();
        let id = |data: &Data| format!("mul_mat_id/w={w},x=f32,e=2,u=1,m=3,n=2,k={k}/route=shuffle,data={data}/v1-2a");
        // Those that a type cannot have are refused, which is part of what must not change.
        text += &hashes(Data::ALL.iter().filter_map(|data| id(data).parse().ok()));
    }
    snapshot("build_bytes", &text);
}

fn is_decoded_by_build(case: &Case) -> bool {
    case.plan().tensors.iter().any(|t| t.ty.is_decoded_by_build())
}

/// The same for the recipes that are only probed with.
#[test]
fn probe_bytes() {
    let probes = ElemType::WEIGHTS.into_iter().flat_map(|w| probe::cases(w, 2).unwrap());
    snapshot("probe_bytes", &hashes(probes.map(|(_, case)| case)));
}

/// A hash of each input of each case.
fn hashes(cases: impl Iterator<Item = Case>) -> String {
    let mut text = String::new();
    for case in cases {
        let f = Filled::new(case);
        writeln!(text, "{}", f.case).unwrap();
        for (i, t) in f.plan.tensors.iter().enumerate().filter(|(_, t)| t.is_input()) {
            writeln!(text, "  {:016x} {}", hash(f.inputs().tensor(i).1), t.name).unwrap();
        }
        for (i, b) in f.plan.buffers.iter().enumerate().filter(|(_, b)| b.is_given) {
            writeln!(text, "  {:016x} {}", hash(f.inputs().buffer(i)), b.name).unwrap();
        }
    }
    text
}

/// Exact recipes have one right answer on every host and for every correct device.
#[test]
fn exact_values() {
    let own = Capabilities { kernels: Kernels::Own, ..Capabilities::default() };
    let mut text = String::new();
    for w in ElemType::WEIGHTS {
        for (data, n) in [("wide", 1), ("wide", 3), ("narrow", 2)] {
            let id = format!("mul_mat_id/w={w},x=f32,e=3,u=2,m=4,n={n},k=256/route=shuffle,data={data}/v1-2a");
            let f = Filled::new(id.parse().unwrap());
            let expected = f.case.oracle(&f.inputs()).expected(&f.inputs(), &own);
            assert!(expected.iter().all(|e| e.class == Class::Exact), "{id}");
            writeln!(text, "{id}").unwrap();
            for row in expected.chunks(4) {
                writeln!(text, "  {:?}", row.iter().map(|e| e.value).collect::<Vec<_>>()).unwrap();
            }
        }
    }
    for (id, per_row) in [
        ("argsort/c=9,r=2/data=distinct/v1-2a", 9),
        ("argsort/c=9,r=2,o=desc/data=distinct/v1-2a", 9),
        ("top_k/c=9,r=2,k=4/data=distinct/v1-2a", 4),
    ] {
        let f = Filled::new(id.parse().unwrap());
        writeln!(text, "{id}").unwrap();
        for row in f.case.oracle(&f.inputs()).expected(&f.inputs(), &own).chunks(per_row) {
            writeln!(text, "  {:?}", row.iter().map(|e| e.value).collect::<Vec<_>>()).unwrap();
        }
    }
    snapshot("exact_values", &text);
}

/// One MXFP4 block, byte for byte: scale, then nibbles (value i low, value i + 16 high).
#[test]
fn mxfp4_layout() {
    let codes = std::array::from_fn(|i| (i % 16) as u8);
    let mut block = [0u8; 17];
    let mut text = String::new();
    for scale in [0u8, 1, 127, 128, 254, 255] {
        ElemType::Mxfp4.encode_block(&Parts { scale: u16::from(scale), codes, ..Parts::default() }, &mut block);
        let mut values = [0.0; 32];
        ElemType::Mxfp4.decode(&block, &mut values);
        let hex: Vec<String> = block.iter().map(|b| format!("{b:02x}")).collect();
        writeln!(text, "scale {scale}: {}", hex.join(" ")).unwrap();
        writeln!(text, "  values 0..15: {:?}", &values[..16]).unwrap();
    }
    snapshot("mxfp4_layout", &text);
}

/// A blob of each format, with the name of every field.
#[test]
fn state_blobs() {
    let kv = |v_trans, has_xy| KvShape {
        streams: 2,
        cells: 6,
        sequences: 3,
        layers: 1,
        k_embd: 32,
        v_embd: 3,
        k_type: ElemType::Q8_0,
        v_type: ElemType::F16,
        v_trans,
        has_xy,
        window: 0,
    };
    let recurrent = |s_trans| RecurrentShape {
        cells: 4,
        sequences: 3,
        layers: 1,
        others: 0,
        r_embd: 2,
        s_embd: 3,
        r_type: ElemType::F32,
        s_type: ElemType::F32,
        s_trans,
    };
    let mut text = String::new();
    for (name, shape) in [
        ("attention", Shape { kv: Some(kv(false, true)), recurrent: None }),
        ("attention, V transposed", Shape { kv: Some(kv(true, false)), recurrent: None }),
        ("recurrent, S transposed", Shape { kv: None, recurrent: Some(recurrent(true)) }),
        ("hybrid", Shape { kv: Some(kv(false, false)), recurrent: Some(recurrent(false)) }),
    ] {
        let script = Script::draw(&shape, &Recipe { ops: 6, mix: Mix::Any, ring: 0 }, 42);
        let lowered = lower(&shape, &script, 0, 42, Stages::default());
        writeln!(text, "{name}\n{}", lowered.saved.last().unwrap().blob(&shape)).unwrap();
    }
    snapshot("state_blobs", &text);
}
