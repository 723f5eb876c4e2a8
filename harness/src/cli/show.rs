//! `conform show`: what a case unfolds to, and its numbers as .npy files.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use conform_cases::case::Case;
use conform_cases::formats::{ElemType, read_f32, read_i32};
use conform_cases::inputs::Decoded;
use conform_cases::judge::values::Class;
use conform_cases::judge::{Capabilities, POISONS};
use conform_cases::plan::{Part, Role, Step, Tensor};
use conform_cases::state::container::Container;
use conform_cases::state::io::StateWrite;
use conform_cases::state::memory::{Memory as StateMemory, What};
use conform_cases::state::plain::PlainMemory;
use npyz::{AutoSerialize, WriterBuilder};
use serde_json::json;

use super::args::Show;
use super::{Exit, Outcome, say, say_json};
use crate::run::Prepared;
use crate::state_file::FileWriter;
use crate::worker::Memory;

/// Bounds are shown for a device that promises what ours do.
const SHOWN_FOR: Capabilities = Capabilities::OWN;

pub(super) fn show(args: &Show) -> Outcome {
    let case: Case = args.case.parse().map_err(|e: conform_cases::id::IdError| e.to_string())?;
    let prepared = Prepared::new(&case, vec![SHOWN_FOR], &Memory::default())?;
    let files = match &args.dump {
        Some(dir) => dump(&prepared, dir).map_err(|e| format!("--dump: cannot write to {}: {e}", dir.display()))?,
        None => Vec::new(),
    };
    let cost = case.body().cost();
    let lines = case.describe(&prepared.inputs());
    if args.json {
        say_json(&json!({
            "case": case.id(),
            "group": case.group(),
            "plan": prepared.plan,
            "operations": cost.operations,
            "input_elements": cost.input_elements,
            "decoded_by_build": prepared.is_decoded_by_build(),
            "description": lines,
            "files": files,
        }))?;
        return Ok(Exit::Good);
    }
    let mut text = vec![format!("case      {case}")];
    text.extend(prepared.plan.tensors.iter().map(tensor_line));
    text.extend(prepared.plan.steps.iter().map(|s| format!("step      {}", step_line(s, &prepared.plan.tensors))));
    text.push(format!("cost      {} operations, {} input elements", cost.operations, cost.input_elements));
    if let Some(model) = case.body().model(&SHOWN_FOR).filter(|_| !prepared.is_decoded_by_build()) {
        text.push(format!("model     {} (on our own devices)", model.name));
    }
    if prepared.is_decoded_by_build() {
        let why = "decoded-by-build: expected values need a build that decodes the weights";
        let dumped = if files.is_empty() { "" } else { "; only inputs are written" };
        text.push(format!("weights   {why}{dumped}"));
    }
    text.extend(lines);
    text.extend(files.iter().map(|f| format!("wrote     {f}")));
    say(&(text.join("\n") + "\n"))?;
    Ok(Exit::Good)
}

fn shape(s: [usize; 4]) -> String {
    let dims = s.iter().rposition(|d| *d != 1).map_or(1, |last| last + 1);
    let text: Vec<String> = s[..dims].iter().map(usize::to_string).collect();
    format!("[{}]", text.join(", "))
}

fn tensor_line(t: &Tensor) -> String {
    let role = match t.role {
        Role::Weights | Role::Input => "input",
        Role::Output => "output",
        Role::View { .. } => "view",
    };
    let view = if t.is_contiguous() {
        String::new()
    } else {
        format!("   view of {} at byte {}, strides {:?}", shape(t.parent), t.offset(), t.strides())
    };
    format!("{role:<9} {:<8} {:<6} {}   {} bytes{view}", t.name, t.ty, shape(t.shape), t.parent_bytes())
}

fn step_line(step: &Step, tensors: &[Tensor]) -> String {
    let name = |i: usize| tensors[i].name.as_str();
    match step {
        Step::MulMatId { weights, x, ids, out } => {
            format!("{} = mul_mat_id({}, {}, {})", name(*out), name(*weights), name(*x), name(*ids))
        }
        Step::Argsort { x, out, order } => format!("{} = argsort({}, {order})", name(*out), name(*x)),
        Step::TopK { x, out } => format!("{} = top_k({}, {})", name(*out), name(*x), tensors[*out].shape[0]),
        Step::Copy { from, parts } => format!("copy from {}: {}", name(*from), pieces(parts)),
        Step::Upload { from, parts } => format!("upload from buffer {from}: {}", pieces(parts)),
        Step::Fetch { to, parts } => format!("fetch into buffer {to}: {}", pieces(parts)),
        Step::Llama { calls, .. } => format!("{} calls of libllama", calls.len()),
        Step::Fill { tensor, byte } => format!("fill {} with {byte:#04x}", name(*tensor)),
    }
}

fn pieces(parts: &[Part]) -> String {
    let (pieces, bytes) = parts.iter().fold((0, 0), |(n, b), p| (n + p.count, b + p.bytes()));
    format!("{bytes} bytes in {pieces} pieces")
}

/// Writes inputs (views as numbers, stored bytes too where they are blocks), expected values, bounds and classes. Where
/// only a build decodes the weights there are no numbers of theirs, and nothing is expected.
/// Arrays are in C order, so that their shape lists the slowest dimension first.
fn dump(prepared: &Prepared, dir: &Path) -> io::Result<Vec<String>> {
    std::fs::create_dir_all(dir)?;
    // What another case left there would pass for a part of this one.
    if dir.read_dir()?.next().is_some() {
        return Err(io::Error::other("the folder is not empty"));
    }
    let mut files = Vec::new();
    let inputs = prepared.inputs();
    for (i, t) in prepared.plan.tensors.iter().enumerate().filter(|(_, t)| t.is_input()) {
        let (t, bytes) = (t, inputs.tensor(i).1);
        let rows = || (0..t.parent_rows()).filter_map(|r| t.view_row(r)).map(|at| &bytes[t.row_range(at)]);
        let path = dir.join(format!("{}.npy", t.name));
        match t.ty {
            ElemType::F32 => write(&path, t.shape, rows().flat_map(read_f32))?,
            ElemType::I32 => write(&path, t.shape, rows().flat_map(read_i32))?,
            ty if ty.is_decoded_by_build() => {}
            _ => write(&path, t.shape, rows().flat_map(|r| decode(t, r)))?,
        }
        if !t.ty.is_decoded_by_build() {
            files.push(path.display().to_string());
        }
        if t.ty.is_blocked() {
            let path = dir.join(format!("{}.blocks.npy", t.name));
            write(&path, [t.parent_row_bytes(), t.parent[1], t.parent[2], t.parent[3]], bytes.iter().copied())?;
            files.push(path.display().to_string());
        }
    }
    if let Some(memory) = prepared.case.engine() {
        files.push(dump_session(prepared, &memory, dir)?);
    }
    if prepared.is_decoded_by_build() {
        return Ok(files);
    }
    let answer = prepared.answer(Decoded::default());
    let oracle = &answer.oracle;
    let &[output] = &oracle.repeated()[..] else { return Ok(files) };
    let shape = prepared.plan.tensors[output].shape;
    let expected = oracle.expected(&inputs, &SHOWN_FOR);
    let classes = expected.iter().map(|e| match e.class {
        Class::Exact => 0u8,
        Class::Finite => 1,
        Class::Infinite => 2,
        Class::NaN => 3,
        Class::Untouched => 4,
        Class::Inconclusive => 5,
    });
    let path = |name: &str| dir.join(name);
    write(&path("expected.npy"), shape, expected.iter().map(|e| e.value))?;
    write(&path("bound.npy"), shape, expected.iter().map(|e| e.bound))?;
    write(&path("class.npy"), shape, classes)?;
    files.extend(["expected.npy", "bound.npy", "class.npy"].map(|n| path(n).display().to_string()));
    Ok(files)
}

/// Writes the state that the case ends with as a session file, so that it can be compared with a real build's.
fn dump_session(prepared: &Prepared, memory: &StateMemory, dir: &Path) -> io::Result<String> {
    let mut device = PlainMemory::of_plan(&prepared.plan, &prepared.inputs(), POISONS[0]);
    prepared.plan.steps.iter().try_for_each(|step| device.step(step)).map_err(io::Error::other)?;
    let path = dir.join("session.bin");
    let mut file = FileWriter::new(&path);
    file.write(&Container::SessionFile { tokens: vec![], architecture: "conform".to_owned() }.head());
    memory.write(What::All, false, &mut file);
    file.finish(&mut device).map_err(io::Error::other)?;
    Ok(path.display().to_string())
}

fn decode(t: &Tensor, row: &[u8]) -> Vec<f64> {
    let mut out = vec![0.0; t.shape[0]];
    t.ty.decode(row, &mut out);
    out
}

fn write<T: AutoSerialize>(path: &Path, shape: [usize; 4], values: impl Iterator<Item = T>) -> io::Result<()> {
    let shape: Vec<u64> = shape.iter().rev().map(|d| *d as u64).collect();
    let mut file = BufWriter::new(File::create(path)?);
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(&mut file).begin_nd()?;
    writer.extend(values)?;
    writer.finish()?;
    file.flush()
}
